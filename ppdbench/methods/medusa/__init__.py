"""Medusa: further heads on the last hidden state, each for one token further ahead."""
