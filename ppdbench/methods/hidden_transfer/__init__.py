"""Hidden transfer: later tokens guessed from hidden states in the middle of the model."""

from ppdbench.methods.hidden_transfer import plan as plan
from ppdbench.methods.hidden_transfer import strategy as strategy
