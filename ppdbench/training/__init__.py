"""Training, whatever is trained: text, steps, checkpoints, memory; and heads for exit layers."""

from ppdbench.training import head_plan as head_plan
