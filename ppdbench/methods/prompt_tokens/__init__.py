"""Parallel prompt decoding: trained prompt tokens behind the text that guess ahead."""
