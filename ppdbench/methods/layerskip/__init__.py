"""LayerSkip: drafts from an early exit, and the training that makes exits readable."""

from ppdbench.methods.layerskip import plan as plan
from ppdbench.methods.layerskip import strategy as strategy
