"""Models that the hub does not give: one line that says why, and what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import errors

from ppdbench.engine.loading import ModelSpec, load
from ppdbench.errors import ConfigError

GATED = "meta-llama/Llama-3.1-8B-Instruct"


def answer(kind: type[errors.HfHubHTTPError]) -> errors.HfHubHTTPError:
    """The error of an answer of the hub."""
    response: Any = SimpleNamespace(headers={}, request=None, status_code=404)
    return kind("refused\nfor a reason", response=response)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (answer(errors.GatedRepoError), "is gated: accept its licence at https://.*hf auth"),
        (answer(errors.RepositoryNotFoundError), "not on the hub, or private: check the name"),
        (answer(errors.RevisionNotFoundError), "has no revision 'v9' on the hub"),
        (answer(errors.RemoteEntryNotFoundError), "has no file .* on the hub; where it holds"),
        (OSError("no route\nto host"), "could not be fetched from the hub; check the name and"),
    ],
)
@pytest.mark.parametrize("gguf", [None, "m-Q8_0.gguf"])
def test_what_the_hub_refuses_is_one_line(
    error: OSError, words: str, gguf: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from transformers import AutoConfig

    def wrapped(*_: object, **__: object) -> None:
        raise OSError("You are trying to access\nsomething") from error  # as transformers does

    def bare(*_: object, **__: object) -> None:
        raise error

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(AutoConfig, "from_pretrained", wrapped)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", bare)
    with pytest.raises(ConfigError, match=words) as caught:
        load(ModelSpec(name=GATED, gguf=gguf, revision="v9"))
    assert "\n" not in str(caught.value)
