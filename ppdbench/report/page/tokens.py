"""Token ids as text, where the run's tokenizer is at hand; no model, no network.

Runs keep ids. A local folder, the embedded model and the hub's cache have the tokenizer, and
it is only believed if it decodes the outputs of the run to the texts stored beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ppdbench.files.resources import reference_is_there, reference_model
from ppdbench.runs.records import DecodedSample, Header, ModelFacts, Sample

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
METASPACE = "▁"  # what stands for a blank before a word in vocabularies of SentencePiece
CHECKED = 3  # outputs that have to decode to their texts


class Texts:
    """The texts of one model's tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, token: int) -> str:
        """One token, with the blank it begins with."""
        text: str = self._tokenizer.decode([token], skip_special_tokens=False)
        name = self._tokenizer.id_to_token(token) or ""
        return f" {text}" if name.startswith(METASPACE) and not text.startswith(" ") else text

    def joined(self, tokens: Sequence[int]) -> str:
        """A text in one piece."""
        text: str = self._tokenizer.decode(list(tokens))
        return text


def texts_of(header: Header, samples: Iterable[Sample]) -> Texts | None:
    """The texts of a run's tokens, or None where its tokenizer is not to be found."""
    path = _file(header.model)
    if path is None:
        return None
    from tokenizers import Tokenizer

    try:
        texts = Texts(Tokenizer.from_file(str(path)))
    except Exception:  # tokenizers raises a bare Exception for a file it cannot read
        return None
    written = (s for s in samples if isinstance(s, DecodedSample) and s.text and s.output_ids)
    first = islice(written, CHECKED)
    same = all(texts.joined(s.output_ids).strip().startswith(s.text.strip()) for s in first)
    return texts if same else None


def _file(model: ModelFacts) -> Path | None:
    name = model.name
    if model.synthetic:
        return None
    if name == "reference" and reference_is_there():
        return reference_model(FILE)
    if (Path(name) / FILE).is_file():
        return Path(name) / FILE
    return _cached(name, model.revision)


def _cached(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, FILE, revision=revision)
    except HFValidationError:  # a folder that is gone is no name on the hub
        return None
    return Path(found) if isinstance(found, str) else None
