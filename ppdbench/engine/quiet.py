"""Keep other people's libraries from talking over our results."""

from __future__ import annotations


def quiet() -> None:
    """Errors only from transformers, and no progress bars of its own; call before loading."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
