"""Choosing tokens: sampling, stopping, the decoding loop and the identity of outputs."""
