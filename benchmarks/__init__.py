"""Timings, kept apart from tests: they depend on the machine and are read as ratios."""
