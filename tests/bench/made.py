"""Commands that verify the distribution of draws."""

from __future__ import annotations

MODEL = "synthetic:layers=2,hidden=16,heads=2,vocab=300"
WORDS = ["decode", "--model", MODEL, "--data", "builtin", "--task", "xsum", "--limit", "1"]
WORDS += ["--verify-distribution", "--target", "top-k", "--top-k", "3", "--format", "json"]
LAYERSKIP = ["--method", "layerskip:exit_layer=1", "--max-new-tokens", "3"]
