"""Keep other people's libraries from talking over our results."""

from __future__ import annotations

import logging

from ppdbench.machine.garbage import import_for_good


def quiet() -> None:
    """Errors only from other libraries, and no progress bars; call before loading."""
    import_for_good("transformers.models.auto")
    from transformers.utils import logging as talk

    talk.set_verbosity_error()
    talk.disable_progress_bar()
    # The hub's client announces every retry; our error says once what came of them. What
    # quantises tells on import of kernels for devices that are not there.
    quantising = ("bitsandbytes", "torchao", "torch.utils._pytree")
    for library in ("accelerate", "huggingface_hub", *quantising):
        logging.getLogger(library).setLevel(logging.ERROR)
