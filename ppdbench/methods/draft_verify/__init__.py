"""Draft with layers left out, verify with all of them (Zhang et al. 2023)."""

from ppdbench.methods.draft_verify import strategy as strategy
