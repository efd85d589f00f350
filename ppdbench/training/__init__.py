"""Training what the papers learn: exit heads and the LayerSkip recipe."""
