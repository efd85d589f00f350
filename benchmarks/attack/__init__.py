"""Attacks on the whole program, each judged from outside: `python -m benchmarks.attack`."""
