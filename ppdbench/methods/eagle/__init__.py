"""EAGLE 1, 2 and 3: a draft network that continues the model's own hidden states."""

from ppdbench.methods.eagle import plan as plan
from ppdbench.methods.eagle import strategy as strategy
