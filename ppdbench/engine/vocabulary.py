"""The vocabulary: a hash of its pieces of text, and ranks of tokens in it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import Tensor


def vocabulary_hash(tokenizer: Any) -> str:
    """The same for two tokenizers iff their ids stand for the same pieces of text."""
    words = json.dumps(sorted(tokenizer.get_vocab().items())).encode()
    return hashlib.sha256(words).hexdigest()[:16]


def ranks_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Count the logits [rows, vocab] that are strictly larger than that of each row's token."""
    return (logits > logits.gather(1, tokens[:, None])).sum(-1)
