"""LayerSkip: drafts from an early exit, and the training that makes exits readable."""
