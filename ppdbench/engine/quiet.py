"""Keep other people's libraries from talking over our results."""

from __future__ import annotations


def quiet() -> None:
    """Errors only from transformers and accelerate, no progress bars; call before loading."""
    import logging

    from transformers.utils import logging as talk

    talk.set_verbosity_error()
    talk.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
