"""Predictive pipelined decoding: units that decode ahead while the model still decides."""

from ppdbench.methods.ppd import strategy as strategy
