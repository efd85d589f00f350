"""Predictive pipelined decoding: units that decode ahead while the model still decides."""
