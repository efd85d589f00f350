"""How close pseudo states come to those that the true tokens have, layer by layer.

Hidden Transfer (Wu et al. 2024), Figure 4. The model decodes a prompt greedily. Behind every
place of that text the pseudo states of all steps are run, and compared after each layer with
the state that the token really had at their position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ppdbench.bench.stats import deviation, mean
from ppdbench.bench.summary import ALL
from ppdbench.engine.masks import Step
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, DataError
from ppdbench.strategies.base import Decoder
from ppdbench.strategies.hidden_transfer import Transferring
from ppdbench.workload import Item

DIGITS = 5  # kept of a cosine


class Cosines:
    """The cosine of each pseudo state and the true one: by step, then by layers run."""

    def __init__(self, label: str, decoder: Decoder) -> None:
        if not isinstance(decoder, Transferring):
            raise ConfigError(f"--method {label}: it has no pseudo states; use hidden-transfer")
        self.decoder = decoder

    @torch.inference_mode()
    def __call__(self, session: Session, item: Item, output: Sequence[int]) -> dict[str, Any]:
        text, steps = [*item.ids, *output], len(self.decoder.all_steps)
        # From the last token of the prompt to the last one with a true token for every step.
        places = range(len(item.ids) - 1, len(text) - steps)
        cosines: dict[str, dict[str, list[float]]] = {}
        for (step, layer), values in self._measured(session, text, places):
            found = [round(value, DIGITS) for value in values.tolist()]
            cosines.setdefault(str(step), {}).setdefault(str(layer), []).extend(found)
        return {"similarity": cosines}

    def _measured(
        self, session: Session, text: list[int], places: range
    ) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Cosines of some of the places by (step, layers run), and so on for the others."""
        true = self.decoder.read(session, text)
        for some in self.decoder.portions(session, text, places):
            seen: dict[int, Tensor] = {}

            def run(
                rows: Tensor, first: int, last: int, step: Step, seen: dict[int, Tensor] = seen
            ) -> Tensor:
                seen[first] = rows
                return session.run(rows, first, last, step, tap=seen.__setitem__)

            self.decoder.behind(session, self.decoder.all_steps, true, len(text), some, run)
            n = len(some)
            for i, transferred_at in enumerate(self.decoder.all_steps.layers):
                positions = slice(some[0] + i + 1, some[-1] + i + 2)
                for layer in range(transferred_at, session.model.n_layers + 1):
                    pseudo = seen[layer][0, i * n : (i + 1) * n]
                    yield (
                        (i + 1, layer),
                        cosine_similarity(
                            pseudo.float(), true[layer][0, positions].float(), dim=-1
                        ),
                    )


@dataclass(frozen=True, slots=True)
class Similarity:
    """The mean cosine of one step's pseudo states with true ones after so many layers."""

    task: str
    method: str
    step: int
    layer: int
    similarity: float
    deviation: float | None
    n: int


def similarities(samples: Sequence[Mapping[str, Any]]) -> list[Similarity]:
    """Per task and method, then over all tasks if there are several."""
    tasks = list(dict.fromkeys(sample["task"] for sample in samples))
    groups = [(task, [s for s in samples if s["task"] == task]) for task in tasks]
    if len(tasks) > 1:
        groups.append((ALL, list(samples)))
    rows = [row for task, group in groups for row in _by_method(task, group)]
    if not rows:
        raise DataError("no output is long enough to guess in; raise --max-new-tokens")
    return rows


def _by_method(task: str, samples: Sequence[Mapping[str, Any]]) -> Iterator[Similarity]:
    values: dict[tuple[str, int, int], list[float]] = {}
    for sample in samples:
        for step, by_layer in sample["similarity"].items():
            for layer, cosines in by_layer.items():
                key = (sample["method"], int(step), int(layer))
                values.setdefault(key, []).extend(cosines)
    for (method, step, layer), found in sorted(values.items()):
        if found:
            yield Similarity(task, method, step, layer, mean(found), deviation(found), len(found))


def to_json(rows: Sequence[Similarity], header: Mapping[str, Any], run: str) -> dict[str, Any]:
    """What `probe --what similarity --format json` prints."""
    return {
        "model": header["model"]["name"],
        "task": ",".join(header["config"]["tasks"]),
        "rows": [asdict(row) for row in rows],
        "run": run,
    }
