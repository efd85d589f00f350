"""Greedy decoding by other engines beside ours: `python -m benchmarks.engines`."""
