"""Models in GGUF files: found, read, described to transformers, and their weights dequantised."""
