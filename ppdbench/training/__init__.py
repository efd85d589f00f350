"""Training what the papers learn: exit heads and the LayerSkip recipe."""

from ppdbench.training import head_plan as head_plan
