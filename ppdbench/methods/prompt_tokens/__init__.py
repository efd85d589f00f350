"""Parallel prompt decoding: trained prompt tokens behind the text that guess ahead."""

from ppdbench.methods.prompt_tokens import plan as plan
from ppdbench.methods.prompt_tokens import strategy as strategy
