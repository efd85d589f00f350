"""Hidden transfer: later tokens guessed from hidden states in the middle of the model."""
