"""The place where sequences that are decoded together wait for one another's passes.

Each sequence is decoded by its own ordinary loop, in a light thread of its own that runs until
it asks a model for a pass. When all of them wait, passes of one kind (the same model and layers,
or a readout) run as one over the rows of all who asked, so that weights are read once, and each
gets its own rows back. A loop sees nothing of it: what it calls takes longer, no more.

Of several kinds the cheapest runs first: readouts before layers, a few layers before many, lower
ones before upper ones. So whoever is behind catches up, and the passes that cost most are those
that all share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, TypeVar

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor

from ppdbench.engine.cache import KVCache
from ppdbench.engine.flat.passes import is_joinable
from ppdbench.engine.joined import JoinedCache, JoinedStep
from ppdbench.engine.masks import Step, StepMaker, numbers
from ppdbench.engine.reading import Reading
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.taps import Tap, joined

Kind = tuple[object, ...]
A = TypeVar("A", "Readout", "LayersPass | WholePass")


@dataclass(eq=False, slots=True)
class Readout:
    """The readout of some rows [1, row, hidden], as one sequence asks for it."""

    model: StagedModel
    hidden: Tensor
    is_prompt: ClassVar = False
    moved: ClassVar = False
    overdue: ClassVar = False

    @property
    def kind(self) -> Kind:
        """The same for those that may share a pass."""
        return (id(self.model),)


@dataclass(eq=False, slots=True)
class LayersPass:
    """Layers over some rows [1, row, hidden], as one sequence asks for them.

    Of a prompt that runs in pieces `done` and `tapped` is what came out so far. `moved` says that
    it had its turn in this round, `overdue` that it had none in the last.
    """

    model: StagedModel
    hidden: Tensor
    layers: range
    step: Step
    cache: KVCache
    tap: Tap | None
    done: list[Tensor] = field(default_factory=list)
    tapped: dict[int, list[Tensor]] = field(default_factory=dict)
    moved: bool = False
    overdue: bool = False

    @property
    def kind(self) -> Kind:
        """The same for those that may share a pass."""
        return _kind(self.model, self.layers.start, self.layers.stop, self.cache, self.step)

    @property
    def is_prompt(self) -> bool:
        """True for the rows that a sequence begins with."""
        return self.step.start == 0

    @property
    def in_order(self) -> bool:
        """True if the rows are a plain chain, which can run in pieces."""
        return self.step.contiguous and not self.step.given and not self.step.idle

    def piece(self, n: int, steps: StepMaker) -> LayersPass:
        """The next `n` rows at most, as a pass of its own."""
        first = sum(rows.shape[1] for rows in self.done)
        hidden = self.hidden[:, first : first + n]
        step = steps.chain(first, hidden.shape[1])
        tap = None if self.tap is None else self._keep
        return LayersPass(self.model, hidden, self.layers, step, self.cache, tap)

    def _keep(self, layer: int, hidden: Tensor) -> None:
        self.tapped.setdefault(layer, []).append(hidden)

    def take(self, out: Tensor) -> Tensor | None:
        """Take in a piece; all that came out, once none is left."""
        self.done.append(out)
        if sum(rows.shape[1] for rows in self.done) < self.hidden.shape[1]:
            return None
        if self.tap is not None:
            for layer, pieces in self.tapped.items():
                self.tap(layer, torch.cat(pieces, dim=1))
        return torch.cat(self.done, dim=1)


@dataclass(eq=False, slots=True)
class WholePass:
    """All layers over tokens behind a prompt, and their readout, for one sequence."""

    model: StagedModel
    tokens: Sequence[int]
    step: Step
    cache: KVCache
    tap: Tap | None
    is_prompt: ClassVar = False
    moved: ClassVar = False
    overdue: ClassVar = False

    @property
    def layers(self) -> range:
        """The layers that it runs."""
        return range(self.model.n_layers)

    @property
    def hidden(self) -> Tensor:
        """The rows as the first layer takes them."""
        return self.model.embed(numbers(self.tokens, self.model.device), self.step)

    @property
    def kind(self) -> Kind:
        """The same for those that may share a pass, which others run without the readout."""
        return _kind(self.model, 0, self.model.n_layers, self.cache, self.step)


Asked = Readout | LayersPass | WholePass
# Of a whole pass rows and what was read out of them; or an error that the pass ended with.
Answer = Tensor | Reading | tuple[Tensor, Reading] | Exception


class MeetingPlace:
    """Members ask for passes; `advance` runs those of one kind and lets who asked go on.

    With `prompt_rows` prompts run in pieces of so many rows beside the passes of others, a piece
    in each round; else apart, one after another and before all else. `unjoined` says of models
    whose passes cannot be joined why not: theirs run one after another.
    """

    def __init__(self, prompt_rows: int | None = None) -> None:
        self.prompt_rows = prompt_rows
        self.unjoined: dict[StagedModel, str] = {}
        self._members: dict[greenlet, None] = {}  # in the order in which they came
        self._waiting: dict[greenlet, Asked] = {}
        self._costs: dict[tuple[StagedModel, range], int] = {}
        self._steps: dict[tuple[StagedModel, int], StepMaker] = {}
        # Of the newest pass: the next one is most often of the same sequences.
        self._joined: JoinedCache | None = None

    # What members call, through their models

    def takes_part(self) -> bool:
        """True if who asks is a member."""
        return getcurrent() in self._members

    def run(
        self,
        model: StagedModel,
        hidden: Tensor,
        layers: range,
        step: Step,
        cache: KVCache,
        tap: Tap | None,
    ) -> Tensor:
        """Wait for layers over the rows of one sequence."""
        found: Tensor = _wait(LayersPass(model, hidden, layers, step, cache, tap))
        return found

    def read(self, model: StagedModel, hidden: Tensor) -> Reading:
        """Wait for the readout of rows of one sequence."""
        found: Reading = _wait(Readout(model, hidden))
        return found

    def run_and_read(
        self,
        model: StagedModel,
        tokens: Sequence[int],
        step: Step,
        cache: KVCache,
        tap: Tap | None,
    ) -> tuple[Tensor, Reading]:
        """Wait for all layers over tokens of one sequence, and for the readout of each row."""
        found: tuple[Tensor, Reading] = _wait(WholePass(model, tokens, step, cache, tap))
        return found

    # What the host calls

    def invite(self, work: Callable[[], None]) -> None:
        """Take in a member that begins its work with the next `advance`."""
        self._members[greenlet(work)] = None

    @property
    def is_over(self) -> bool:
        """True if all members have ended."""
        return not self._members

    def advance(self) -> None:
        """Let newcomers begin; run passes of one kind and let who asked for them go on."""
        if torch.is_inference_mode_enabled():  # entered once for many of these
            self._advance()
        else:
            with torch.inference_mode():
                self._advance()

    def _advance(self) -> None:
        for member in [m for m in self._members if m not in self._waiting]:
            self._let(member)
        if not self._waiting:
            return
        chosen = self._chosen()
        for member, answer in zip(chosen, self._answers(chosen), strict=True):
            if answer is not None:
                self._let(member, answer)

    def end_round(self) -> None:
        """Give prompts in pieces another turn each; those that had none are overdue."""
        for asked in self._waiting.values():
            if isinstance(asked, LayersPass) and asked.is_prompt:
                asked.overdue, asked.moved = not asked.moved, False

    @torch.inference_mode()  # as when they were last let run, so that what they leave is that
    def dismiss(self) -> None:
        """End all members where they stand."""
        for member in self._members:
            member.parent = getcurrent()
            member.throw()
        self._members.clear()
        self._waiting.clear()

    def _let(self, member: greenlet, *answers: Answer) -> None:
        """Let a member run, with what it asked for, until it asks for something else or ends."""
        self._waiting.pop(member, None)
        member.parent = getcurrent()
        try:
            if answers and isinstance(answers[0], Exception):
                asked = member.throw(answers[0])
            else:
                asked = member.switch(*answers)
        except BaseException:
            del self._members[member]
            raise
        if member.dead:
            del self._members[member]
        else:
            self._waiting[member] = asked

    # The choice

    def _chosen(self) -> list[greenlet]:
        """Choose whose turn it is: all who ask for passes of one kind."""
        prompts: dict[greenlet, Asked] = {}
        others: dict[greenlet, Asked] = {}
        for member, asked in self._waiting.items():
            (prompts if asked.is_prompt else others)[member] = asked
        if not prompts:
            return self._cheapest(others)
        if self.prompt_rows is None:
            # What a prompt ends with comes before the next prompt: somebody waits for it.
            ready = {m: asked for m, asked in others.items() if isinstance(asked, Readout)}
            return self._cheapest(ready) or list(prompts)[:1]
        overdue = {m: asked for m, asked in prompts.items() if asked.overdue}
        if overdue or not others:
            return self._cheapest(overdue or prompts)
        chosen = self._cheapest(others)
        kind = others[chosen[0]].kind
        beside = [m for m, asked in prompts.items() if asked.kind == kind and not asked.moved]
        return [*chosen, *beside]

    def _cheapest(self, waiting: Mapping[greenlet, Asked]) -> list[greenlet]:
        """Choose who asks for the kind of pass that comes first."""
        kinds: dict[Kind, list[greenlet]] = {}
        for member, asked in waiting.items():
            kinds.setdefault(asked.kind, []).append(member)
        if len(kinds) < 2:
            return [*waiting]
        return min(kinds.values(), key=lambda some: self._place(waiting[some[0]]))

    def _place(self, asked: Asked) -> tuple[int, int]:
        """Bytes of weights to read, then how far down the layers lie."""
        if isinstance(asked, Readout):
            return 0, 0
        key = asked.model, asked.layers
        if key not in self._costs:
            self._costs[key] = sum(map(asked.model.layer_bytes, asked.layers))
        return self._costs[key], asked.layers.start

    # The passes

    def _answers(self, chosen: Sequence[greenlet]) -> list[Answer | None]:
        """Compute what each of them asked for; None for prompts of which pieces are left."""
        asked = [self._waiting[member] for member in chosen]
        readouts = [each for each in asked if isinstance(each, Readout)]
        if readouts:
            return [*self._each(readouts, _read_together)]
        layers = [each for each in asked if not isinstance(each, Readout)]
        passes = [self._part(each) for each in layers]
        found = self._each(passes, self._run_together)
        return [
            each.take(out)
            if each is not part and isinstance(each, LayersPass) and isinstance(out, Tensor)
            else out
            for each, part, out in zip(layers, passes, found, strict=True)
        ]

    def _part(self, asked: LayersPass | WholePass) -> LayersPass | WholePass:
        """All of it, or the next piece of a long prompt."""
        if self.prompt_rows is None or isinstance(asked, WholePass) or not asked.is_prompt:
            return asked
        asked.moved, asked.overdue = True, False
        if not asked.in_order or asked.hidden.shape[1] <= self.prompt_rows:
            return asked
        model, rows = asked.model, asked.cache.capacity
        if (model, rows) not in self._steps:
            window = model.adapter.narrowest_window
            self._steps[model, rows] = StepMaker(rows, model.device, window)
        return asked.piece(self.prompt_rows, self._steps[model, rows])

    def _each(
        self, asked: Sequence[A], together: Callable[[Sequence[A]], Sequence[Answer]]
    ) -> list[Answer]:
        """The answers of one joined pass; where that fails, of one for each, or their errors."""
        model = asked[0].model
        if len(asked) == 1 or self._is_unjoined(model):
            return [_alone(each, together) for each in asked]
        try:
            return list(together(asked))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        alone = [_alone(each, together) for each in asked]
        if not any(map(_failed, alone)):
            self.unjoined[model] = told
        return alone

    def _is_unjoined(self, model: StagedModel) -> bool:
        """True for a model whose passes cannot be joined, by what it is or by what was tried."""
        if model.flat is None and (why := model.adapter.why_not_joined()) is not None:
            self.unjoined[model] = why
        return model in self.unjoined

    def _run_together(self, asked: Sequence[LayersPass | WholePass]) -> list[Answer]:
        """Run layers over the rows of all at once, and read out those of whole passes."""
        model, layers = asked[0].model, asked[0].layers
        if len(asked) == 1:
            return [_run_alone(asked[0])]
        parts = tuple(each.cache for each in asked)
        if (cache := self._joined) is None or cache.parts != parts:
            cache = self._joined = JoinedCache(parts)
        step = JoinedStep.of([each.step for each in asked], cache)
        seen = dict[int, Tensor]()
        tap = joined([each.tap for each in asked], seen)
        counts = [part.n_query for part in step.parts]
        answers: list[Answer]
        if all(isinstance(each, WholePass) for each in asked):
            answers = [*model.pass_and_read(_entering(asked, step), step, cache, tap, counts)]
        else:
            hidden = torch.cat([each.hidden for each in asked], dim=1)
            out = model.pass_over(hidden, layers.start, layers.stop, step, cache, tap)
            answers = _with_readings(asked, torch.split(out, counts, dim=1))
        cache.check_attended()
        # Only now: a pass that fails is made again, and nobody is to see its layers twice.
        for layer, given in seen.items():
            for each, own in zip(asked, torch.split(given, counts, dim=1), strict=True):
                if each.tap is not None:
                    each.tap(layer, own)
        return answers


def _kind(model: StagedModel, start: int, stop: int, cache: KVCache, step: Step) -> Kind:
    # Rows that cannot run flat would draw others away from it: they would round differently.
    flat = model.flat is not None and is_joinable(step)
    return (id(model), start, stop, cache.room, flat)


def _wait(asked: Asked) -> Any:
    """Hand over to the host until it has an answer."""
    host = getcurrent().parent
    assert host is not None, "members are let run by a host"
    return host.switch(asked)


def _alone(asked: A, together: Callable[[Sequence[A]], Sequence[Answer]]) -> Answer:
    """One answer, or the error in its place, which is for who asked."""
    try:
        return together([asked])[0]
    except Exception as error:
        return error


def _failed(answer: Answer) -> bool:
    return isinstance(answer, Exception)


def _read_together(asked: Sequence[Readout]) -> list[Reading]:
    """Read out the rows of all at once."""
    model = asked[0].model
    if len(asked) == 1:
        return [model.read_out(asked[0].hidden)]
    found = model.read_out(torch.cat([each.hidden for each in asked], dim=1))
    return found.parts([each.hidden.shape[1] for each in asked])


def _run_alone(asked: LayersPass | WholePass) -> Answer:
    """Run what one sequence asks for."""
    model, step, cache, tap = asked.model, asked.step, asked.cache, asked.tap
    if isinstance(asked, WholePass):
        return model.run_and_read(asked.tokens, step, cache, tap=tap)
    return model.run(asked.hidden, asked.layers.start, asked.layers.stop, step, cache, tap=tap)


def _entering(asked: Sequence[LayersPass | WholePass], step: JoinedStep) -> Tensor:
    """Of whole passes, what goes in: tokens together, but where rows of others may round them."""
    model = asked[0].model
    if model.adapter.embeds_by_row:
        tokens = [each.tokens for each in asked if isinstance(each, WholePass)]
        return model.entering(numbers([*chain(*tokens)], model.device), step)
    return torch.cat([each.hidden for each in asked], dim=1)


def _with_readings(
    asked: Sequence[LayersPass | WholePass], states: Sequence[Tensor]
) -> list[Answer]:
    """The rows of each, and with those of whole passes what is read out of them."""
    whole = [i for i, each in enumerate(asked) if isinstance(each, WholePass)]
    answers: list[Answer] = [*states]
    if whole:
        rows = torch.cat([states[i] for i in whole], dim=1)
        found = asked[0].model.read_out(rows).parts([states[i].shape[1] for i in whole])
        for i, reading in zip(whole, found, strict=True):
            answers[i] = states[i], reading
    return answers
