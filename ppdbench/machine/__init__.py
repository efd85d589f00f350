"""The machine that runs: what it is busy with besides."""
