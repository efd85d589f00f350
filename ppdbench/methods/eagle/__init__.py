"""EAGLE 1, 2 and 3: a draft network that continues the model's own hidden states."""
