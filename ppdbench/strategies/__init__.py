"""Decoding strategies, one method per file."""

from ppdbench.strategies import autoregressive as autoregressive
from ppdbench.strategies.base import METHODS as METHODS
