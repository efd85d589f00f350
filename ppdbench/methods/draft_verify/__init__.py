"""Draft with layers left out, verify with all of them (Zhang et al. 2023)."""
