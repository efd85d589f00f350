"""Predictive Pipelined Decoding on compute units: what each runs, and what passes between them."""
