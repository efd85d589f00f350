"""Comparing a run with a stored baseline: what must hold, what may move, and by how much."""
