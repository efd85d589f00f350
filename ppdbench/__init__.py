"""Match rates and speedups of exact LLM decoding, with every output checked against greedy."""

__version__ = "0.1.0"
