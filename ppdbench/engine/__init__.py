"""Running a transformers model layer range by layer range, over a KV cache of our own."""
