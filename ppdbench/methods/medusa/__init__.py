"""Medusa: further heads on the last hidden state, each for one token further ahead."""

from ppdbench.methods.medusa import plan as plan
from ppdbench.methods.medusa import strategy as strategy
