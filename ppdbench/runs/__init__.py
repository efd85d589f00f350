"""Stored runs: what a run folder holds, how it is written and read again."""
