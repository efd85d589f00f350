"""Settings that a model wants found before it decodes."""
