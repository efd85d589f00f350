"""The choice between flat and eager passes, made at load by measuring a few of the layers.

Layers are laid out both ways, timed in turns, and whatever was slower is dropped: nothing is known
of processors by their names. Then the weights of all layers are laid out one after another and
compared bit by bit with what they were made of. One product of each shape, and one layer where all
are alike, is held against itself as it was: number by number, and over states of real tokens.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from ppdbench.engine.cache import KVCache
from ppdbench.engine.flat import asking
from ppdbench.engine.flat.asking import Asking
from ppdbench.engine.flat.check import Wrong, check_stored
from ppdbench.engine.flat.library import Unavailable, library
from ppdbench.engine.flat.native import loaded
from ppdbench.engine.flat.parts import (
    FlatParts,
    attention_of,
    can_be_half,
    is_whole,
    why_in_parts,
    without_memory,
)
from ppdbench.engine.flat.passes import FlatLayers, FlatPasses, FlatReadout, is_there
from ppdbench.engine.flat.products import FlatProduct, plain
from ppdbench.engine.flat.stored import StoredLinear
from ppdbench.engine.flat.understood import NotUnderstoodError, RefusedError
from ppdbench.engine.flat.words import FlatWords, as_embedding
from ppdbench.engine.left_out import weight_bytes, without
from ppdbench.engine.levels import levels_of
from ppdbench.engine.masks import Step, StepMaker
from ppdbench.engine.packing import (
    Exchange,
    exchangeable,
    is_lookup,
    pack,
    packed,
    weights_of,
)
from ppdbench.engine.weights import is_plain
from ppdbench.machine.clock import Clock
from ppdbench.machine.pages import Files, trim
from ppdbench.stats import median

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter

DTYPES = (torch.float32, torch.bfloat16)
SAMPLE_BYTES = 4 << 20  # of layers that are timed, at least one of them
ROWS = (1, 9)
TURNS = 2  # at most
CLEAR = 2  # times as long: what needs no further turn
IN_A_TURN = 3

# A check over these rows: a chain, and a tree behind it. As many each as the stock model runs over
# (`held_family.FEWEST`): libraries make and keep kernels of their own for every number of rows.
CHAIN, TREE = 6, (-1, 0, 0, 1, 2, 2)
SEED = 0
CHECKED_ROWS = 5
HEAD_AND_WORDS = 2  # that have a weight between them
COLUMNS = 64  # of a product that are compared: at its beginning, its middle and its end
# Of the number itself, and of the terms that it is summed of or of what a layer adds to its row:
# three times what rounding explains, and less than one wrong term makes.
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-7}
OF_TERMS = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
OF_LAYERS = {torch.float32: 1e-4, torch.bfloat16: 2**-4}

EAGER: Final = "eager"
FLAT: Final = "flat"
FASTER: Final = "faster"
IN_PARTS = f"attention {FLAT}"  # of models of which not all can be

# What of a layer runs flat: all of it, its attention before the rest, or that within the rest.
WHOLE, HALF, WITHIN = range(3)


@dataclass(frozen=True, slots=True)
class PassPath:
    """The kernels that run a model's passes, and the reason."""

    kernels: str
    why: str
    prepared_s: float = 0.0

    @property
    def words(self) -> str:
        """The path, and why it was taken."""
        return f"{self.kernels} ({self.why})"


def kind_of_passes(kernels: str) -> str:
    """The passes that `lay_out` is to be asked for so that they run through these kernels."""
    return FLAT if kernels.startswith((FLAT, IN_PARTS)) else EAGER


def lay_out(
    adapter: Adapter, text: Sequence[int], passes: str = FASTER, clock: Clock | None = None
) -> tuple[FlatPasses | FlatParts | None, PassPath]:
    """Lay the weights out flat where that is possible and right, over a text; else leave them.

    And where it is faster, unless `passes` are to be flat, or eager. Of a model of which not all
    can run flat, what can.
    """
    if passes == EAGER:
        return None, PassPath(EAGER, "asked for")
    clock = clock or Clock(torch.device("cpu"))
    began = clock.now()
    try:
        if (why := _unfit(adapter)) is not None:
            return None, PassPath(EAGER, why)
        kernels = library(adapter.dtype).words
        times = measure(adapter, text, clock) if passes == FASTER else []
        if not all(pair.flat_s < pair.eager_s for pair in times):
            return None, PassPath(EAGER, _said(times), clock.now() - began)
        rest = why_in_parts(adapter)
        found = _lay_out_all(adapter, text) if rest is None else _lay_out_parts(adapter, text)
    except (Unavailable, NotUnderstoodError, RefusedError) as error:
        adapter.pack(plain)
        if isinstance(adapter.embedding, FlatWords):
            adapter.look_up(as_embedding(adapter.head))
        return None, PassPath(EAGER, f"no flat passes: {error}", clock.now() - began)
    why = _said(times)
    if rest is None:
        kernels += _stored_share(adapter)
        assert isinstance(found, FlatPasses)
        if (asked := _asking(adapter, found, clock)) is not None:
            why += f"; {asked.words}"
        return found, PassPath(f"{FLAT}, {kernels}", why, clock.now() - began)
    why += f"; the rest is eager: {rest}"
    return found, PassPath(f"{IN_PARTS}, {kernels}", why, clock.now() - began)


def _unfit(adapter: Adapter) -> str | None:
    """Say why a model's passes cannot be flat, as far as its weights tell; None if they can."""
    if adapter.device.type != "cpu":
        return "flat passes are for the CPU"
    if not adapter.in_one_place:
        return "its layers are on several devices or on disk"
    if not all(is_plain(p) for layer in adapter.layers for p in layer.parameters()):
        return "quantised weights are multiplied by the library that made them"
    return why_not_in_type(adapter)


def why_not_in_type(adapter: Adapter) -> str | None:
    """Say why a model's passes cannot be flat in its type of numbers; None if they can."""
    if adapter.dtype not in DTYPES:
        return f"no flat passes in {str(adapter.dtype).removeprefix('torch.')}"
    if adapter.anatomy.experts and adapter.dtype != torch.float32:
        # Held against the stock model, such a token would be far off.
        return "its layers choose between experts, in half precision by how attention rounds"
    return None


# The measurement


@dataclass(frozen=True, slots=True)
class PairedTime:
    """Seconds that some layers take for so many rows, flat and eager.

    Eager ones may take more if it is `at_least` that: one row alone took so long.
    """

    rows: int
    flat_s: float
    eager_s: float
    at_least: bool = False


def _said(times: Sequence[PairedTime]) -> str:
    """Say in words what was measured."""
    if not times:
        return "asked for"
    parts = (
        f"{t.rows} {'row' if t.rows == 1 else 'rows'}: {1e3 * t.flat_s:.2f} ms flat, "
        f"{'at least ' if t.at_least else ''}{1e3 * t.eager_s:.2f} ms eager"
        for t in times
    )
    return f"some of the layers took for {'; for '.join(parts)}"


@torch.inference_mode()
def measure(adapter: Adapter, text: Sequence[int], clock: Clock) -> list[PairedTime]:
    """Time a few layers both ways, in turns: medians.

    Eager passes of many rows only where those of one do not settle it.
    """
    sample = _sample(adapter)
    for index in sample:
        adapter = without_memory(adapter, index)  # it takes as long either way
    layers, trial = adapter.layers, Trial(adapter, text)
    eager = adapter.with_layers({i: _twin(layers[i], packed)[0] for i in sample})
    run = _sampled(adapter, sample, trial)
    trial.cache.begin(trial.steps.chain(0, CHAIN), sample.start, sample.stop)
    steps = [trial.steps.chain(CHAIN, rows) for rows in ROWS]
    given = [(trial.drawn(rows), step) for rows, step in zip(ROWS, steps, strict=True)]
    ours = [partial(run, hidden, step) for hidden, step in given]
    others = [partial(trial.eagerly, eager, hidden, sample, step) for hidden, step in given]
    seconds, least = list[list[list[float]]](), False
    while len(seconds) < TURNS and not (seconds and _is_clear(seconds[-1])):
        turn = [*_turn(ours, clock), *_turn(others[:1], clock)]
        flat_1, flat_9, eager_1 = turn
        least = not seconds and CLEAR * max(*flat_1, *flat_9) < min(eager_1)
        seconds.append([*turn, *([eager_1] if least else _turn(others[1:], clock))])
    one, nine, eager_one, eager_nine = (
        median([s for turn in turns for s in turn]) for turns in zip(*seconds, strict=True)
    )
    return [PairedTime(ROWS[0], one, eager_one), PairedTime(ROWS[1], nine, eager_nine, least)]


def _sampled(
    adapter: Adapter, sample: range, trial: Trial
) -> Callable[[Tensor, Step], Tensor | None]:
    """A few layers laid out flat, to be timed, as far as they can be."""
    layers, cache = adapter.layers, trial.cache
    if why_in_parts(adapter) is None:
        flat = adapter.with_layers({i: _twin(layers[i], _unchecked)[0] for i in sample})
        program = FlatLayers(flat, sample)
        return lambda hidden, step: program.run(hidden, sample, step, cache)
    (index,) = sample
    twin, _, kind = _flat_twin(adapter, index, _unchecked)
    pack(twin)  # what is not flat, as it would run
    parts = FlatParts(adapter.with_layers({index: twin}), *_by_kind(kind, index))
    return lambda hidden, step: parts.run(index, hidden, step, cache)


@torch.inference_mode()
def _asking(adapter: Adapter, passes: FlatPasses, clock: Clock) -> Asking | None:
    """Measure which passes of few rows should ask ahead for weights, and have them do so or not.

    None where it makes no difference: weights stay in a cache, or kernels always ask for them. Of
    several models the one with most weights decides: behind its passes no cache holds the others'.
    """
    sample = _first_layers(adapter, asking.ENOUGH_BYTES, _plain_bytes)
    size = sum(_plain_bytes(adapter.layers[i]) for i in sample)
    if size < asking.LEAST_BYTES:
        return None
    native = loaded()
    always = native.in_tiles and adapter.dtype == torch.bfloat16
    if always or size < native.asked_over.get(adapter.dtype, 0):
        return None
    native.asked_over[adapter.dtype] = size
    rows = max(asking.ROWS)
    cache, steps = KVCache(adapter.cache_shape, rows), StepMaker(rows, adapter.device)
    cache.begin(steps.chain(0, rows), sample.start, sample.stop)
    drawn = torch.randn(1, rows, adapter.width, generator=torch.Generator().manual_seed(SEED))
    hidden = drawn.to(adapter.dtype)
    runs = [
        partial(passes.layers.run, hidden[:, :n], sample, steps.chain(0, n), cache)
        for n in asking.ROWS
    ]
    return asking.choose(native, adapter.dtype, runs, clock)


def _plain_bytes(layer: nn.Module) -> int:
    """The bytes of a layer's weights that are laid out as numbers."""
    products = (m.flat for m in layer.modules() if isinstance(m, FlatProduct))
    return sum(each.nbytes for each in products if not isinstance(each, StoredLinear))


def _is_clear(turn: Sequence[Sequence[float]]) -> bool:
    """True if every run of one side took less than half of any run of the other, row by row."""
    sides = turn[: len(ROWS)], turn[len(ROWS) :]
    return any(
        all(CLEAR * max(a) < min(b) for a, b in zip(one, other, strict=True))
        for one, other in (sides, sides[::-1])
    )


def _turn(runs: Sequence[Callable[[], object]], clock: Clock) -> list[list[float]]:
    """Seconds of some runs of each; before them each runs once.

    Threads of the other side, which wait awake for more to do, have gone to sleep by then.
    """
    for run in runs:
        run()
    return [[_timed(run, clock) for _ in range(IN_A_TURN)] for run in runs]


def _timed(run: Callable[[], object], clock: Clock) -> float:
    began = clock.now()
    run()
    return clock.now() - began


def _sample(adapter: Adapter) -> range:
    """The layers that are timed."""
    if why_in_parts(adapter) is not None:
        first = _that_attend(adapter)[0]
        return range(first, first + 1)
    return _first_layers(adapter, SAMPLE_BYTES, weight_bytes)


def _first_layers(adapter: Adapter, enough: int, nbytes: Callable[[nn.Module], int]) -> range:
    """The first layers that this process runs, until they have enough bytes."""
    there = [i for i, layer in enumerate(adapter.layers) if is_there(layer)]
    sizes = accumulate(nbytes(adapter.layers[i]) for i in there)
    count = sum(1 for _ in takewhile(lambda size: size <= enough, sizes)) + 1
    return range(there[0], there[0] + min(count, len(there)))


def _that_attend(adapter: Adapter) -> list[int]:
    """The layers that this process runs and whose attention may run flat."""
    attending = adapter.anatomy.attending
    found = [i for i, layer in enumerate(adapter.layers) if i in attending and is_there(layer)]
    if not found:
        raise NotUnderstoodError("none of its layers attends")
    return found


class Trial:
    """Passes over a short cache: a chain of tokens, and a tree behind them."""

    def __init__(self, adapter: Adapter, text: Sequence[int]) -> None:
        rows = CHAIN + max(*ROWS, len(TREE)) + 1  # with some to spare, as in sessions
        adapter.prepare(rows)
        self.adapter, self.cache = adapter, KVCache(adapter.cache_shape, rows)
        self._other = KVCache(adapter.cache_shape, rows)  # of flat passes
        self.steps = StepMaker(rows, adapter.device, adapter.narrowest_window)
        self._heads_per_kv = adapter.heads_per_kv
        self._ids = torch.tensor([[*text]])
        self._text, self._seed = itertools.cycle(text), torch.Generator().manual_seed(SEED)
        self.hidden = [self.drawn(CHAIN), self.drawn(len(TREE))]

    def drawn(self, rows: int) -> Tensor:
        """Hidden states [1, row, hidden] of the next tokens of the text."""
        words = self.adapter.embedding.get_parameter("weight")
        if not words.numel():  # a model whose first layers run elsewhere
            drawn = torch.randn(1, rows, self.adapter.width, generator=self._seed)
            return drawn.to(self.adapter.dtype)
        ids = torch.tensor([list(itertools.islice(self._text, rows))])
        return self.adapter.embed(ids, self.steps.chain(0, rows))

    def words(self) -> Tensor:
        """The words of the text."""
        found: Tensor = self.adapter.embedding(self._ids)
        return found

    def compare_words(self, wanted: Tensor) -> None:
        """The same, looked up elsewhere, against these."""
        if not torch.equal(self.words(), wanted):
            raise RefusedError("words that are looked up in the head are others")

    def as_it_is(self, index: int) -> list[Tensor]:
        """Run a layer as it is, over the hidden states that come to it."""
        layers, runs = range(index, index + 1), zip(self.hidden, self._both, strict=True)
        return [self.eagerly(self.adapter, hidden, layers, step) for hidden, step in runs]

    def compare(self, index: int, flat: nn.Module, wanted: list[Tensor]) -> None:
        """A layer that is flat by now, or its flat copy, over the same against what it made."""
        program = FlatLayers(self.adapter.with_layers({index: flat}), [index])
        for number, step in enumerate(self._both):
            self._hold(program, index, number, step, wanted[number])
        self.hidden = wanted

    def compare_half(self, index: int, flat: nn.Module, *, rest: bool) -> None:
        """The same of a layer's attention alone.

        And that with the `rest` of it that makes the whole, which reads many of its experts.
        """
        adapter = self.adapter
        parts = FlatParts(adapter.with_layers({index: flat}), [], [index])
        half = without(adapter.blocks, adapter.layers[index], attention=False, mlp=True)
        attending = adapter.with_layers({index: half})
        for number, step in enumerate(self._both):
            hidden, layers = self.hidden[number], range(index, index + 1)
            wanted = self.eagerly(attending, hidden, layers, step)
            self._hold(parts.layers, index, number, step, wanted)
            if rest:
                whole = self.eagerly(adapter, hidden, layers, step)
                hold_rows(parts.rest(index, wanted, step), whole, f"the rest of layer {index}")
            self.hidden[number] = wanted

    def compare_within(self, index: int, flat: nn.Module, *, rest: bool) -> None:
        """The attention of a layer over what it is handed, against its flat copy.

        And the layer as it is with that and with the copy, if the `rest` does not choose by it.
        """
        adapter = without_memory(self.adapter, index)
        parts = FlatParts(adapter.with_layers({index: flat}), *_by_kind(WITHIN, index))
        for number, step in enumerate(self._both):
            hidden, layers = self.hidden[number], range(index, index + 1)
            with _seen(attention_of(adapter, index)) as calls:
                whole = self.eagerly(adapter, hidden, layers, step)
            if len(calls) != 1:
                raise NotUnderstoodError(f"layer {index} attends {len(calls)} times")
            given, wanted = calls[0]
            self._other.begin(step, index, index + 1)
            attention = parts.attentions[index]
            assert attention.over(step, self._other)
            found = attention(given)
            found = found[0] if isinstance(found, tuple) else found
            hold_rows(found, wanted, f"the attention of layer {index}")
            if rest:
                around = parts.run(index, hidden, step, self._other)
                assert around is not None
                hold_rows(around, whole, f"layer {index}")
            self.hidden[number] = whole

    @property
    def _both(self) -> tuple[Step, Step]:
        """A chain, and a tree behind it."""
        return self.steps.chain(0, CHAIN), self.steps.tree(CHAIN, TREE)

    def _hold(
        self, program: FlatLayers, index: int, number: int, step: Step, wanted: Tensor
    ) -> None:
        """A layer as a program over what comes to it, against what it makes as it is."""
        hidden = self.hidden[number]
        self._other.begin(step, index, index + 1)
        found = program.run(hidden, range(index, index + 1), step, self._other)
        assert found is not None
        added = (wanted - hidden).abs().amax(-1, keepdim=True)
        _hold_close(found, wanted, OF_LAYERS[found.dtype] * added, f"layer {index}")

    def compare_readout(self, flat: FlatReadout) -> None:
        """The final norm and the head behind the last layer, against their flat copies."""
        hidden = self.hidden[-1]
        wanted, found = self.adapter.logits(hidden), flat.read(hidden)
        assert found is not None
        hold_rows(found.logits, wanted, "the readout")

    def eagerly(self, adapter: Adapter, hidden: Tensor, layers: range, step: Step) -> Tensor:
        """Run layers as they are."""
        self.cache.begin(step, layers.start, layers.stop)
        kinds = [adapter.rope_kind(i) for i in layers]
        rotary = {kind: adapter.rotary(step, kind) for kind in set(kinds)}
        for i, kind in zip(layers, kinds, strict=True):
            mask = step.added(adapter.windows[i], self._heads_per_kv[i], hidden.dtype)
            hidden = adapter.call_layer(i, hidden, mask, rotary[kind], self.cache, step)
        return hidden


@contextmanager
def _seen(block: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Collect what a block is handed, and what it gives."""
    calls: list[tuple[Tensor, Tensor]] = []

    def see(_: nn.Module, given: Sequence[Tensor], named: dict[str, Tensor], out: Any) -> None:
        states = given[0] if given else named["hidden_states"]
        calls.append((states, out[0] if isinstance(out, tuple) else out))

    hook = block.register_forward_hook(see, with_kwargs=True)
    try:
        yield calls
    finally:
        hook.remove()


# Layouts


def _by_kind(kind: int, index: int) -> list[list[int]]:
    """One layer among those that run flat in some way, as `FlatParts` takes them."""
    return [[index] if kind == each else [] for each in (WHOLE, HALF, WITHIN)]


def _twin(
    layer: nn.Module, make: Exchange, within: nn.Module | None = None
) -> tuple[nn.Module, dict[int, nn.Module]]:
    """A copy of a layer with its products exchanged, and those by the old ones' ids.

    Of those `within` a part of it, if that is given. All other weights are shared, and products
    that another layer, which has the same, has laid out already.
    """
    made = {id(m): make(m) for m in exchangeable(layer if within is None else within)}
    shared = {id(weight): weight for weight in layer.parameters()}
    laid_out = {id(m): m for m in layer.modules() if isinstance(m, FlatProduct)}
    return copy.deepcopy(layer, dict[int, Any](made) | shared | laid_out), made


def _flat_twin(
    adapter: Adapter, index: int, make: Exchange
) -> tuple[nn.Module, dict[int, nn.Module], int]:
    """The same for what can run flat of a layer, and what that is."""
    layer = adapter.layers[index]
    if is_whole(adapter, index):
        twin, made = _twin(layer, make)
        try:
            FlatLayers(adapter.with_layers({index: twin}), [index])
        except NotUnderstoodError:
            pass  # its attention may be understood all the same
        else:
            return twin, made, WHOLE
    kind = HALF if can_be_half(adapter, index) else WITHIN
    twin, made = _twin(layer, make, attention_of(adapter, index))
    _, halves, within = _by_kind(kind, index)
    FlatLayers(adapter.with_layers({index: twin}), [index], unfed=halves, within=within)
    return twin, made, kind


def _unchecked(product: nn.Module) -> nn.Module:
    """A product laid out flat, to be timed."""
    held = weights_of(product)
    return product if held is None else FlatProduct(*held, levels_of(product))


def _stored_share(adapter: Adapter) -> str:
    """Words that say so where products multiply by weights as a file stores them."""
    modules = (m for part in (*adapter.layers, adapter.head) for m in part.modules())
    made = [isinstance(m.flat, StoredLinear) for m in modules if isinstance(m, FlatProduct)]
    return f", {sum(made)} of {len(made)} weights as stored" if any(made) else ""


@torch.inference_mode()
def _lay_out_all(adapter: Adapter, text: Sequence[int]) -> FlatPasses:
    """Lay all products out flat, no two layers at once, and check what tells them apart.

    Of layers that differ in nothing but weights one stands for all.
    """
    trial, checks, wanted = Trial(adapter, text), ProductChecks(adapter), dict[int, list[Tensor]]()
    there = [i for i, layer in enumerate(adapter.layers) if is_there(layer)]
    compared = set(there[:1] if adapter.anatomy.alike else there)

    def before(index: int) -> None:
        if index in compared:
            wanted[index] = trial.as_it_is(index)

    def behind(index: int) -> None:
        if index in wanted:
            trial.compare(index, adapter.layers[index], wanted.pop(index))

    words = None if checks.words_at is None else trial.words()
    adapter.pack(checks.for_good, before, behind)
    head = adapter.head
    if words is not None and isinstance(head, FlatProduct) and head.in_place:
        adapter.look_up(FlatWords(head.flat))
        trial.compare_words(words)
    passes = FlatPasses(adapter)
    if is_there(adapter.head):
        trial.compare_readout(passes.readout)
    # Norms were read from the file once more.
    Files.behind(adapter.model.parameters()).release()
    trim()
    return passes


@torch.inference_mode()
def _lay_out_parts(adapter: Adapter, text: Sequence[int]) -> FlatParts:
    """Lay out flat what can run so of layers, and check what tells them apart; the first must."""
    trial, checks, ready = Trial(adapter, text), ProductChecks(), dict[int, nn.Module]()
    attending, found = _that_attend(adapter), (list[int](), list[int](), list[int]())

    def before(index: int) -> None:
        ready.clear()
        if index not in attending:
            return
        try:
            twin, made, kind = _flat_twin(without_memory(adapter, index), index, checks.flat)
        except NotUnderstoodError:
            if index == attending[0]:
                raise
            return  # it runs eagerly
        same = found[kind]
        if not (same and adapter.anatomy.alike):
            if kind == WHOLE:
                trial.compare(index, twin, trial.as_it_is(index))
            elif kind == HALF:
                trial.compare_half(index, twin, rest=not same)
            else:
                trial.compare_within(index, twin, rest=not adapter.anatomy.experts)
        same.append(index)
        ready.update(made)

    def exchanged(module: nn.Module) -> nn.Module:
        return checks.flat(module) if module is head else ready.get(id(module), module)

    head = adapter.head
    adapter.pack(exchanged, before)
    parts = FlatParts(adapter, *found)
    if is_there(adapter.head) and parts.readout is not None:
        trial.compare_readout(parts.readout)
    Files.behind(adapter.model.parameters()).release()
    return parts


# Checks


class ProductChecks:
    """Products laid out flat: the weights of each are held against what they were made of.

    The first of each shape is multiplied by, too, and held against plain rows.
    """

    def __init__(self, adapter: Adapter | None = None) -> None:
        self._multiplied = set[object]()
        parts = () if adapter is None else adapter.model.modules()
        owned = (p for part in parts for p in part._parameters.values())
        self._users = Counter(p.data_ptr() for p in owned if p is not None and is_plain(p))
        self.words_at = None if adapter is None else self._place_of_words(adapter)
        """The address of words that head and embedding alone have, which are looked up by rows."""

    def _place_of_words(self, adapter: Adapter) -> int | None:
        held, words = weights_of(adapter.head), adapter.embedding
        if held is None or not is_lookup(words) or held[0].shape != words.weight.shape:
            return None
        place = held[0].data_ptr()
        shared = place == words.weight.data_ptr() and self._users[place] == HEAD_AND_WORDS
        return place if shared else None

    def flat(self, product: nn.Module, *, in_place: bool = False) -> nn.Module:
        """Lay a product out and check it; others, and freed ones, stay.

        `in_place`: where its weight lies, if that can be; nobody may call it any more.
        """
        held, levels = weights_of(product), levels_of(product)
        if held is None or not held[0].numel():
            return product
        weight, bias = held
        if levels is not None and not self._multiplied:
            hold_stored(weight.dtype)
        kind = weight.shape, weight.stride(), weight.dtype, bias is None, levels is None
        sample = None if kind in self._multiplied else SampledProduct(weight, bias)
        self._multiplied.add(kind)
        made = FlatProduct(weight, bias, levels, in_place=in_place)
        if sample is not None:
            sample.hold(made)
        if not made.in_place and not made.flat.holds(weight, bias):
            raise RefusedError(f"a product of {made.out_features} columns holds other weights")
        return made

    def for_good(self, product: nn.Module) -> nn.Module:
        """The same of a product of the model that nobody calls any more.

        In place, unless others have its weight too; words may be looked up in the head's.
        """
        held = weights_of(product)
        place = None if held is None else held[0].data_ptr()
        alone = place is not None and (place == self.words_at or self._users[place] == 1)
        return self.flat(product, in_place=alone)


def hold_stored(dtype: torch.dtype) -> None:
    """Refuse kernels that make something else of stored weights than of the same plain ones."""
    try:
        check_stored(dtype)
    except Wrong as error:
        raise RefusedError(str(error)) from error


class SampledProduct:
    """Some columns of a product, the first and the last among them, of rows that are drawn."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        outputs, inputs = weight.shape
        seed = torch.Generator().manual_seed(SEED)
        self._x = torch.randn(CHECKED_ROWS, inputs, generator=seed).to(weight.dtype)
        places = [torch.arange(at, min(at + COLUMNS, outputs)) for at in _places(outputs)]
        self._columns = torch.cat(places)
        x, rows = self._x.float(), weight[self._columns].float()
        self._wanted = x @ rows.t()
        self._terms = x.square().sum(-1, keepdim=True).sqrt() * rows.square().sum(-1).sqrt()
        if bias is not None:
            self._wanted += bias[self._columns].float()

    def hold(self, made: FlatProduct) -> None:
        """Refuse a product that makes others of them."""
        found = made(self._x)[:, self._columns]
        what = f"a product of {made.out_features} columns"
        _hold_close(found, self._wanted, OF_TERMS[found.dtype] * self._terms, what)


def _places(columns: int) -> list[int]:
    """The first columns of the parts that are compared."""
    return sorted({0, max(0, columns // 2 - COLUMNS), max(0, columns - COLUMNS)})


def hold_rows(found: Tensor, wanted: Tensor, what: str) -> None:
    """Refuse rows that are off by more than a layer may be, of the largest number of each."""
    largest = wanted.float().abs().amax(-1, keepdim=True)
    _hold_close(found, wanted, OF_LAYERS[wanted.dtype] * largest, what)


def _hold_close(found: Tensor, wanted: Tensor, margin: Tensor, what: str) -> None:
    """Refuse numbers that are off by more than their own rounding and a margin."""
    allowed = ROUNDING[found.dtype] * wanted.float().abs() + margin.float()
    off = (found.float() - wanted.float()).abs() / allowed
    if not bool((off <= 1).all()):
        raise RefusedError(f"{what} is off by {float(off.max()):.1f} times what is allowed")
