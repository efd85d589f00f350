"""The accuracy of a method's guesses by distance and rank, on the model's own output.

The model decodes each prompt greedily, as it always would. At every place of that text the
method then guesses, from what it would know there while decoding: distance 1 is the token
after the model's own next one. What is kept is the rank of the true token among the guesses,
the number of tokens that score strictly higher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ppdbench.bench.runner import Choice, built_for, check_choices, labels
from ppdbench.decoding.decoder import Decoder, Guesser, Joining, Request
from ppdbench.decoding.loop import autoregressive
from ppdbench.decoding.stock_check import (
    FIRST,
    MethodOutput,
    check_end_tokens,
    check_ends,
    check_greedy,
    hold_states,
    hold_to_stock,
)
from ppdbench.engine.loading import Loaded
from ppdbench.engine.logit_watch import LogitWatch
from ppdbench.engine.session import Session
from ppdbench.engine.truth import StockTruth, TokenLine
from ppdbench.engine.vocabulary import ranks_of
from ppdbench.errors import ConfigError, NumericalError
from ppdbench.machine.clock import Clock
from ppdbench.methods import METHODS
from ppdbench.runs.records import (
    ComparedSample,
    GuessedSample,
    MethodRecord,
)
from ppdbench.runs.running import Destination, Ready
from ppdbench.runs.samples import Key
from ppdbench.runs.store import RunFolder
from ppdbench.runs.workload import (
    FinishedRun,
    Item,
    Report,
    RunConfig,
    Workload,
    asked,
    limits_of,
)

GUESSES_BUDGET = 128 << 20  # bytes of float32 guesses asked for at once
FARTHEST = 8  # distances that the budget is reckoned with


# What a sample says of a method: made of a session, an example and its greedy output.
Measure = Callable[[Session, Item, Sequence[int]], dict[str, Any]]
Measures = Callable[[str, Decoder], Measure]  # by the method's label


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftsConfig(RunConfig):
    """The options of a probe of guesses."""

    methods: tuple[Choice, ...]

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        check_choices(self.methods)


def run_drafts(
    config: DraftsConfig,
    to: Destination,
    *,
    kind: str = "drafts",
    measures: Measures | None = None,
    loaded: Loaded | None = None,
) -> FinishedRun:
    """Probe every example of this process's shard that the run folder does not hold yet."""
    built = built_for(config.model, config.methods)
    to.check()
    ready = Ready.load(to, Workload.read(config), loaded)
    loaded, setup = ready.loaded, ready.setup
    names = labels(config.methods)
    with ExitStack() as started:
        decoders = {}
        for name, (_, strategy) in zip(names, built, strict=True):
            decoders[name] = strategy.prepare(setup)
            started.callback(decoders[name].close)
        asked = {
            name: (measures or GuessRanks)(name, decoder) for name, decoder in decoders.items()
        }
        methods = {
            name: MethodRecord(
                name=chosen.name,
                options=dict(chosen.values(strategy)),
                loaded=dict(decoders[name].loaded),
            )
            for name, (chosen, strategy) in zip(names, built, strict=True)
        }
        facts = {name: dict(decoder.facts) for name, decoder in decoders.items()}
        header = ready.header(kind, config, methods=methods, facts=facts)
        spare = max(decoder.rows for decoder in decoders.values())
        session = Session(loaded.staged, setup.capacity, spare=spare)
        prober = DraftProber(
            loaded, session, ComparedSample if kind == "similarity" else GuessedSample
        )
        wanted = [_key(item, name) for item in ready.items for name in asked]
        probe = partial(_probe_missing, prober, ready.items, asked, decoders, to.report)
        return ready.store(header, probe, wanted)


def _key(item: Item, label: str) -> Key:
    return item.key(label, "greedy")


def _probe_missing(
    prober: DraftProber,
    items: Sequence[Item],
    asked: Mapping[str, Measure],
    decoders: Mapping[str, Decoder],
    report: Report,
    folder: RunFolder,
) -> None:
    ours, held = folder.shard.part(items), False
    for number, item in enumerate(ours):
        report(f"probing {item.task.name}", number, len(ours))
        missing = {n: m for n, m in asked.items() if _key(item, n) not in folder.done}
        if missing and not held:
            prober.hold(item, decoders)
            held = True
        for sample in prober.probe(item, missing):
            folder.append(sample)


class DraftProber:
    """Greedy outputs, and what is measured of methods at each place of them."""

    def __init__(
        self, loaded: Loaded, session: Session, form: type[GuessedSample | ComparedSample]
    ) -> None:
        self.loaded, self.session, self.form = loaded, session, form
        self.clock = Clock(loaded.staged.device)

    def hold(self, item: Item, decoders: Mapping[str, Decoder]) -> None:
        """Refuse to go on where an example's passes are not those of the stock model.

        The greedy output and what chose it, the states of the text that guesses are made of,
        and the rows that some methods put behind it.
        """
        truth, limits = StockTruth.load(self.loaded.spec), limits_of(item, self.loaded)
        self.session.watch = watch = LogitWatch(range(FIRST))
        try:
            greedy = autoregressive(self.session, Request(item.ids, limits, self.clock))
        finally:
            self.session.watch = None
        check_end_tokens(self.loaded.eos_ids, truth.eos_ids)
        check_ends("greedy decoding", greedy, limits, truth.eos_ids)
        check_greedy(greedy)
        hold_to_stock(truth, item.ids, [MethodOutput("greedy decoding", greedy, watch, True)])
        text = [*item.ids, *greedy.output_ids[:FIRST]]
        hold_guesses(truth, self.session, text, len(item.ids) - 1, decoders)

    def probe(
        self, item: Item, measures: dict[str, Measure]
    ) -> list[GuessedSample | ComparedSample]:
        """A sample for each of the methods."""
        if not measures:
            return []
        limits = limits_of(item, self.loaded)
        output = autoregressive(self.session, Request(item.ids, limits, self.clock)).output_ids
        return [
            self.form(
                **asked(item),
                method=label,
                target="greedy",
                verdict="identical",
                output_ids=list(output),
                **measure(self.session, item, output),
            )
            for label, measure in measures.items()
        ]


@torch.inference_mode()
def hold_guesses(
    truth: StockTruth,
    session: Session,
    text: list[int],
    first: int,
    decoders: Mapping[str, Decoder],
) -> None:
    """Refuse to go on where what guesses are made of is not what the stock model gives.

    The states of a text from row `first` on, and the rows that some methods put behind it.
    """
    states: dict[int, Tensor] = {}

    def tap(layer: int, hidden: Tensor) -> None:
        states[layer] = hidden[0, first:].clone()

    session.reset(text)
    session.prefill(tap=tap)
    hold_states(truth, "the pass over a text", TokenLine(text), first, states)
    for label, decoder in decoders.items():
        if isinstance(decoder, Joining):
            behind = f"what {label} puts behind a text"
            places = _spread(range(first, len(text) - decoder.farthest))
            for line in decoder.lines(session, text, places):
                hold_states(truth, behind, line, len(line.ids), line.states)


def _spread(places: range) -> list[int]:
    """The first, the middle and the last of some places, as far as there are so many."""
    if not places:
        return []
    return sorted({places[0], places[len(places) // 2], places[-1]})


class GuessRanks:
    """The ranks of the true tokens among a method's guesses, by distance."""

    def __init__(self, label: str, decoder: Decoder) -> None:
        if not isinstance(decoder, Guesser):
            trained = [name for name in METHODS if METHODS.get(name).trained]
            raise ConfigError(
                f"--method {label}: it makes no guesses by distance; use one that is trained to: "
                f"{', '.join(trained)}"
            )
        self.label, self.guesser = label, decoder

    @torch.inference_mode()
    def __call__(self, session: Session, item: Item, output: Sequence[int]) -> dict[str, Any]:
        text = [*item.ids, *output]
        # From the last token of the prompt to the last one with a token two places further on.
        places = range(len(item.ids) - 1, len(text) - 2)
        at_once = max(1, GUESSES_BUDGET // (4 * FARTHEST * session.model.vocab_size))
        ranks: dict[str, list[int]] = {}
        for first in range(0, len(places), at_once):
            some = places[first : first + at_once]
            guesses = self.guesser.guesses(session, text, some)
            if bool(torch.isnan(guesses).any()):
                raise NumericalError(
                    f"example {item.example.id}: {self.label} guesses NaN; check its weights"
                )
            for distance in range(1, guesses.shape[1] + 1):
                known = [place for place in some if place + 1 + distance < len(text)]
                truth = torch.tensor([text[p + 1 + distance] for p in known], device=guesses.device)
                found = ranks_of(guesses[: len(known), distance - 1], truth)
                ranks.setdefault(str(distance), []).extend(found.tolist())
        return {"ranks": ranks}
