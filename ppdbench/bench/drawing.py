"""Many drawn outputs of a method, held against the model's own probabilities.

Outputs are drawn in lots, several outputs at once, and each lot is stored when it is done; a run
that goes on draws those that are missing. An output draws from a generator of its own, so that
neither order nor interruption changes it. The probabilities come from the stock model, which has
nothing of ours.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ppdbench.bench.faithful import (
    ALARM,
    DOUBTFUL,
    DrawnOutputs,
    Faithfulness,
    Floats,
    Prefix,
    following,
    to_json,
)
from ppdbench.bench.interleaved import PreparedMethod
from ppdbench.bench.runner import DecodeConfig, begin, built_for, labels, prepare
from ppdbench.decoding.batch import Batch
from ppdbench.decoding.decoder import Decoder, Proposer, Request, Setup
from ppdbench.decoding.draft import Draft, offspring
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.decoding.shared_prompt import KnownTexts, SharedPrompt
from ppdbench.decoding.verify import Outcome, accept_sampled
from ppdbench.errors import ConfigError, DataError, PpdbenchError
from ppdbench.files.whole import write_whole
from ppdbench.machine.clock import Clock
from ppdbench.methods import LENDERS, method
from ppdbench.methods.base import Strategy
from ppdbench.runs.running import Destination, Ready
from ppdbench.runs.store import HEADER
from ppdbench.runs.workload import Item, Workload, limits_of

LOT = 100  # outputs that are stored at once
SLOTS = 16  # outputs that are drawn at once
BATCH = 32  # prefixes that the stock model runs at once
KEPT = 10_000_000  # of its probabilities, 16 bytes each
LENGTH, PROMPTS = 8, 2  # tokens of an output and prompts, where nothing else is asked for
# Of an output the first token is not drafted, and the last the model's own.
NOT_DRAFTED = 2
AGAIN = 4  # times as many outputs, where the first may deviate by chance
FILE = "draws.jsonl"


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """The options of a test of faithfulness: of `draws` outputs, shared out over prompts."""

    decode: DecodeConfig
    draws: int

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ConfigError(f"--draws {self.draws}; use 1 or more")
        if self.decode.target.greedy:
            raise ConfigError(
                "--verify-distribution is about drawn outputs; give --target top-p, top-k or min-p"
            )
        if self.decode.strict:
            raise ConfigError("--strict compares with greedy decoding; leave it out")


# Wrong rules, which a test that can see anything must refuse


def keeps_all(
    draft: Draft,
    logits: torch.Tensor,
    target: Target,
    generator: torch.Generator,
    text: Sequence[int] = (),
) -> Outcome:
    """Keep the first sibling with probability 1, again and again."""
    children, path = offspring(draft.lineage), list[int]()
    while nodes := [n for n in children[1 + path[-1] if path else 0] if n < draft.proposed]:
        path.append(nodes[0])
    row = 1 + path[-1] if path else 0
    return Outcome(tuple(path), _plain(draft, logits, target, generator, text, path, row))


def forgets_residual(
    draft: Draft,
    logits: torch.Tensor,
    target: Target,
    generator: torch.Generator,
    text: Sequence[int] = (),
) -> Outcome:
    """Draw from the whole distribution once all siblings are rejected."""
    path = accept_sampled(draft, logits, target, generator, text).path
    row = 1 + path[-1] if path else 0
    return Outcome(path, _plain(draft, logits, target, generator, text, path, row))


def _plain(
    draft: Draft,
    logits: torch.Tensor,
    target: Target,
    generator: torch.Generator,
    text: Sequence[int],
    path: Sequence[int],
    row: int,
) -> int:
    so_far = [*text, *(draft.tokens[node] for node in path)]
    return int(target.choose(logits[row : row + 1], [generator], [so_far]))


class DepthOfDrafts:
    """The exact rule, which notes how deep the drafts went that it was given."""

    def __init__(self) -> None:
        self.deepest = 0

    def __call__(self, draft: Draft, *rest: Any) -> Outcome:
        """Verify a draft."""
        depths = draft.depths[: draft.proposed]
        self.deepest = max(self.deepest, *depths, 0)
        return accept_sampled(draft, *rest)


CONTROLS = {"accepts with probability 1": keeps_all, "forgets the residual": forgets_residual}


def check_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder of something else, and to go on with nothing or to begin over something."""
    path = folder / FILE
    if (folder / HEADER).exists():
        raise ConfigError(f"{folder} holds a run, and draws are none; choose another --out")
    if resume and not path.exists():
        raise ConfigError(f"{folder} holds no draws, so there is nothing to resume; drop --resume")
    if path.exists() and not resume:
        raise ConfigError(f"{path} exists; use --resume, or another --out")


@dataclass
class Draws:
    """The stored outputs of a test, by method (or method and control), prompt and lot."""

    path: Path
    held: dict[tuple[str, str, int], list[list[int]]] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)  # of the drafts of a method that were seen

    @classmethod
    def open(cls, folder: Path, settings: dict[str, Any], *, resume: bool) -> Draws:
        """Begin the file, or read what it holds; a torn last line is drawn again."""
        path = folder / FILE
        if not resume:
            write_whole(path, json.dumps(settings) + "\n")
            return cls(path)
        draws = cls(path)
        try:
            whole = path.read_text(encoding="utf-8")
            first, *lines = whole[: whole.rfind("\n") + 1].splitlines()
            if json.loads(first) != json.loads(json.dumps(settings)):
                raise ConfigError(f"{path} was drawn with other options; use another --out")
            for line in map(json.loads, lines):
                draws.held[line["method"], line["example"], line["lot"]] = line["outputs"]
                draws.note_depth(line["method"], line.get("depth", 0))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged ({error}); use another --out") from error
        write_whole(path, "\n".join([first, *lines, ""]))
        return draws

    def note_depth(self, method: str, depth: int) -> None:
        """Keep the largest depth of a method's drafts."""
        self.depths[method] = max(self.depths.get(method, 0), depth)

    def add(
        self, method: str, example: str, lot: int, outputs: list[list[int]], depth: int
    ) -> None:
        """Store a lot at once, and how deep the drafts went that were verified for it."""
        self.held[method, example, lot] = outputs
        self.note_depth(method, depth)
        line = {"method": method, "example": example, "lot": lot, "depth": depth}
        line["outputs"] = outputs
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class TestedMethod:
    """The findings about one method.

    `before` are those about its first outputs, where they were in doubt and new ones decide.
    `depth` is how deep the drafts went that were verified, `room` how deep they could.
    """

    label: str
    exact: bool
    found: Faithfulness
    before: Faithfulness | None
    controls: dict[str, Faithfulness]
    drafts: dict[str, str]  # of each control the method whose drafts they are
    token: str | None  # that deviates most, spelled
    depth: int
    room: int

    def to_json(self) -> dict[str, Any]:
        """The fields that scripts read."""
        content: dict[str, Any] = {"method": self.label, "exact": self.exact}
        content |= {"verified_depth": self.depth, "room": self.room}
        content |= to_json(self.found, self.controls)
        before = self.before
        content["before"] = before and {"p_value": before.p_value, "draws": before.draws}
        if content["largest_deviation"] is not None:
            content["largest_deviation"]["text"] = self.token
        for control in content["controls"]:
            control["drafts"] = self.drafts[control["name"]]
        return content


def verify(config: VerifyConfig, to: Destination) -> list[TestedMethod]:
    """Draw what is missing of every method's outputs, and judge them."""
    asked = config.decode
    check_folder(to.out, resume=to.resume)
    built = built_for(asked.model, asked.methods)
    ready = Ready.load(to, Workload.read(asked, to.warn))
    names = labels(asked.methods)
    settings = {
        "draws": config.draws,
        "target": asdict(asked.target),
        "seed": asked.seed,
        "prompts": hashlib.sha256(repr([item.ids for item in ready.items]).encode()).hexdigest(),
        "weights": ready.loaded.fingerprint,
        "precision": ready.loaded.staged.precision,
        "methods": {
            label: chosen.values(strategy)
            for label, (chosen, strategy) in zip(names, built, strict=True)
        },
        "tokens": asked.max_new_tokens,
    }
    draws = Draws.open(to.out, settings, resume=to.resume)
    known, tests = KnownTexts(), []
    oracle = Oracle(ready.setup, asked.target)
    with ExitStack() as started:
        for label, (chosen, strategy) in zip(names, built, strict=True):
            entry = prepare(label, chosen, strategy, ready.setup, asked.target, alone=True)
            assert isinstance(entry, PreparedMethod)
            started.callback(entry.decoder.close)
            drawer = Drawer(entry, strategy, ready, config, draws, known, oracle)
            started.callback(drawer.close)
            tests.append(drawer.tested(exact=chosen.exact and entry.decoder.acceptance is None))
    return tests


class Drawer:
    """Draws the outputs of one method, and of its controls."""

    def __init__(
        self,
        entry: PreparedMethod,
        strategy: Strategy,
        ready: Ready,
        config: VerifyConfig,
        draws: Draws,
        known: KnownTexts,
        oracle: Oracle,
    ) -> None:
        self.label, self.ready = entry.label, ready
        self.config, self.draws, self.oracle = config, draws, oracle
        setup, session = ready.setup, partial(SharedPrompt, known=known)
        self.batch = Batch(setup, session=session)
        self.lenders = dict[str, Sequence[Decoder]]()  # as far as somebody needed them
        if entry.decoder.alone is None:
            self.decoders = self.batch.prepare(strategy.prepare, SLOTS)
        else:
            begin(entry, alone=True)
            self.decoders = [entry.decoder]
        staged, spare = ready.loaded.staged, self.decoders[0].rows
        self.batch.reserve(SLOTS, spare)
        self.session = session(staged, setup.capacity, spare=spare)
        self.clock = Clock(staged.device)

    def close(self) -> None:
        """End what was begun for the slots."""
        own = self.decoders if len(self.decoders) > 1 else ()
        for decoder in chain(own, *self.lenders.values()):
            decoder.close()

    def tested(self, *, exact: bool) -> TestedMethod:
        """Judge the method, and each control with as many draws as it takes to refuse it.

        Wrong rules go wrong with drafts alone. Where those of the method are too few or too poor
        for it to be seen, others show that the test would see it.
        """
        found, before = self._decided(self.config.draws)
        controls, drafts = {}, {}
        for name, rule in CONTROLS.items():
            for whose, label, decoders in self._drafting():
                controls[name] = self._control(f"{label} that {name}", decoders, rule)
                drafts[name] = whose
                if controls[name].p_value < ALARM:
                    break
        token = None
        if found.largest is not None:
            token = self.ready.loaded.tokenizer.decode([found.largest.token])
        depth = max(self.draws.depths.get(label, 0) for label in (self.label, self._again))
        room = max(self.config.decode.max_new_tokens or LENGTH, NOT_DRAFTED) - NOT_DRAFTED
        return TestedMethod(self.label, exact, found, before, controls, drafts, token, depth, room)

    def _drafting(self) -> Iterator[tuple[str, str, Sequence[Decoder]]]:
        """Yield who drafts, the method first if it does, and what its draws are stored as.

        A lender that this model is nothing for, such as one of a single layer, lends nothing.
        """
        if isinstance(self.decoders[0], Proposer):
            yield self.label, self.label, self.decoders
        for name in LENDERS:
            if name not in self.lenders:
                self.lenders[name] = self._lender(name)
            if self.lenders[name]:
                yield name, f"drafts of {name}", self.lenders[name]

    def _lender(self, name: str) -> Sequence[Decoder]:
        try:
            return self.batch.prepare(method(name).build({}).prepare, SLOTS)
        except PpdbenchError:
            return ()

    def _decided(self, draws: int) -> tuple[Faithfulness, Faithfulness | None]:
        """Judge the method; where chance may have refused it, by new outputs alone."""
        found = self._judged(self.label, self.decoders, None, draws)
        if not DOUBTFUL <= found.p_value < ALARM:
            return found, None
        again = self._judged(self._again, self.decoders, None, AGAIN * draws)
        # A deviation is found where both find it, and the first are the fewer.
        return replace(again, power=min(found.power, again.power)), found

    @property
    def _again(self) -> str:
        """The name of the outputs that decide where the first are in doubt."""
        return f"{self.label} again"

    def _control(self, label: str, drafting: Sequence[Decoder], rule: Any) -> Faithfulness:
        """Judge a wrong rule, by few draws if these are enough to refuse it."""
        for part in (10, 3, 1):
            found = self._judged(label, drafting, rule, -(-self.config.draws // part))
            if found.p_value < ALARM:
                break
        return found

    def _judged(self, label: str, decoders: Sequence[Decoder], rule: Any, n: int) -> Faithfulness:
        comparison, items = DrawnOutputs(), self.ready.items
        for number, item in enumerate(items):
            share = n // len(items) + (number < n % len(items))
            outputs = self._outputs(item, label, decoders, rule, share)
            after = following(outputs)
            comparison.add(
                f"{item.task.name} {item.example.id}", after, self.oracle.after(item.ids, [*after])
            )
        return comparison.judge(self.config.decode.seed)

    def _outputs(
        self, item: Item, label: str, decoders: Sequence[Decoder], rule: Any, n: int
    ) -> list[list[int]]:
        example, found = f"{item.task.name} {item.example.id}", list[list[int]]()
        for lot in range(-(-n // LOT)):
            first, count = lot * LOT, min(LOT, n - lot * LOT)
            held = self.draws.held.get((label, example, lot), [])
            if len(held) < count:
                missing, used = range(first + len(held), first + count), rule or DepthOfDrafts()
                requests = {draw: self._request(item, label, used, draw) for draw in missing}
                drawn = self._decoded(decoders, requests)
                held = [*held, *(drawn[draw] for draw in missing)]
                depth = used.deepest if isinstance(used, DepthOfDrafts) else 0
                self.draws.add(label, example, lot, held, depth)
            found += held[:count]
            self.ready.to.report(f"drawing {label}", len(found), n)
        return found

    def _request(self, item: Item, label: str, rule: Any, draw: int) -> Request:
        seed = self.config.decode.seed
        generator = generator_for(seed, item.task.name, item.example.id, label, f"draw {draw}")
        chooser = Chooser(self.config.decode.target, generator, rule)
        return Request(list(item.ids), limits_of(item, self.ready.loaded), self.clock, chooser)

    def _decoded(
        self, decoders: Sequence[Decoder], requests: Mapping[int, Request]
    ) -> dict[int, list[int]]:
        """The outputs of all requests, several at once where the method can."""
        if len(decoders) == 1:
            (alone,) = decoders
            return {
                draw: list(alone.decode(self.session, request).output_ids)
                for draw, request in requests.items()
            }
        found = {}
        for done in self.batch.decode(decoders[: len(requests)], requests.items()):
            if done.decoded is None:
                assert done.error is not None
                raise done.error
            found[done.key] = list(done.decoded.output_ids)
        return found


class Oracle:
    """The exact probabilities that the stock model gives, prefix by prefix.

    They are kept without their zeros, as far as there is room: what one method drew the next one
    draws again.
    """

    def __init__(self, setup: Setup, target: Target) -> None:
        self.model, self.target = setup.stock().model, target
        self._prompts: dict[Prefix, Any] = {}  # what the model gave for each, with its cache
        self._known: dict[tuple[Prefix, Prefix], tuple[npt.NDArray[np.int64], Floats, int]] = {}
        self._room = KEPT

    def after(
        self, prompt: Sequence[int], prefixes: Sequence[Prefix]
    ) -> Iterator[tuple[Prefix, Floats]]:
        """Yield each prefix with the probabilities of what follows it, the shortest first."""
        begun, ordered = tuple(prompt), sorted(prefixes, key=len)
        new = dict.fromkeys(prefix for prefix in ordered if (begun, prefix) not in self._known)
        rows = self._computed(begun, [*new])
        for prefix in ordered:
            if prefix in new:
                row = next(rows)
                self._keep(begun, prefix, row)
            else:
                tokens, likely, width = self._known[begun, prefix]
                row = np.zeros(width)
                row[tokens] = likely
            yield prefix, row

    def _keep(self, prompt: Prefix, prefix: Prefix, row: Floats) -> None:
        (tokens,) = row.nonzero()
        if len(tokens) <= self._room:
            self._known[prompt, prefix] = tokens, row[tokens], len(row)
            self._room -= len(tokens)

    def _computed(self, prompt: Prefix, prefixes: Sequence[Prefix]) -> Iterator[Floats]:
        """The probabilities behind prefixes, which come by length."""
        for length, group in groupby(prefixes, len):
            same = [*group]
            for start in range(0, len(same), BATCH):
                yield from self._behind(prompt, same[start : start + BATCH], length)

    @torch.inference_mode()
    def _behind(self, prompt: Prefix, part: Sequence[Prefix], length: int) -> Floats:
        """The probabilities behind prefixes of one length, row by row."""
        device = self.model.device
        if prompt not in self._prompts:
            ids = torch.tensor([prompt], device=device)
            self._prompts[prompt] = self.model(ids, use_cache=True)
        first = self._prompts[prompt]
        logits = first.logits[:, -1].expand(len(part), -1)
        if length:
            past = copy.deepcopy(first.past_key_values)
            past.batch_repeat_interleave(len(part))
            ids = torch.tensor(part, device=device)
            logits = self.model(ids, past_key_values=past).logits[:, -1]
        texts = [[*prompt, *prefix] for prefix in part]
        rows: Floats = self.target.distribution(logits, texts).double().cpu().numpy()
        return rows
