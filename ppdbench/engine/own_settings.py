"""Settings that a model brings for `generate()` and that would change greedy decoding.

Some models come with a repetition penalty or with tokens that are never to be given. Every method
here decodes without them, transformers' own included, so that what is compared is the model's
likeliest tokens; whoever calls `generate()` on the model gets other ones, and is told so.
"""

from __future__ import annotations

import warnings
from typing import Any

from ppdbench.errors import PpdbenchWarning

# What changes greedy decoding, and the value that changes nothing.
NEUTRAL: dict[str, object] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "num_beams": 1,
    "guidance_scale": 1.0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
}


def that_change_greedy(declared: Any) -> list[str]:
    """Return the settings of a generation config that change greedy decoding, as `name=value`."""
    held = {name: getattr(declared, name, None) for name in NEUTRAL}
    return [
        f"{name}={_short(value)}"
        for name, value in held.items()
        if value not in (None, [], {}, NEUTRAL[name])
    ]


def _short(value: object) -> str:
    return "..." if isinstance(value, list | tuple | dict) else str(value)


def warn_of_own_settings(model: Any, name: str) -> None:
    """Say which settings of a model its greedy decoding is measured without, if there are any."""
    if found := that_change_greedy(model.generation_config):
        warnings.warn(
            f"model {name!r} brings {', '.join(found)} for generate(); all methods decode without, "
            "and give the likeliest tokens",
            PpdbenchWarning,
            stacklevel=2,
        )
