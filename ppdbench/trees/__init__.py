"""Sparse trees of guesses: which to verify, and how large a tree pays on a machine."""
