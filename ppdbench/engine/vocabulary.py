"""Which token id stands for which piece of text, as a hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def vocabulary_hash(tokenizer: Any) -> str:
    """The same for two tokenizers iff their ids stand for the same pieces of text."""
    words = json.dumps(sorted(tokenizer.get_vocab().items())).encode()
    return hashlib.sha256(words).hexdigest()[:16]
