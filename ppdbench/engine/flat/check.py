"""The check that kernels must pass before they are trusted: against float64, bit by bit.

Small cases of odd sizes, so that parts of blocks, of vectors and of lists take part. A row is
computed beside others, alone, and beside rows of NaN: its bits must be the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ppdbench.engine.flat.native import STORED_FORMS, loaded
from ppdbench.engine.flat.ops import UNTURNED, Buffer, CacheBlocks, Pass, Program
from ppdbench.engine.flat.stored import store
from ppdbench.engine.flat.weights import BLOCK, pack
from ppdbench.engine.levels import GROUP, Levels

# More inputs than kernels take at once where rows are several, in both types; and where they are as
# many as take turns over long stretches. Outputs make an odd number of blocks, the last not full.
INPUTS, OUTPUTS = 139, 75
LONG_INPUTS = 1061
ROWS = (1, 2, 13, 33)
# Heads of queries and of keys.
HEADS, KV_HEADS = 6, 2
# Of latents that serve all heads: how wide they are, one after another and in pairs, and the keys
# beside them; the room for each.
LATENTS, TURNED, ROOM = (21, 22), 6, 24
# The layer that attends, behind one of narrower rows.
LAYER = 1
SCALE = 20**-0.5
ROOM_BEHIND = 3  # rows of a cache that no pass asks for
# Behind so many slots a window begins within one vector's places for some rows and in the next for
# others.
WIDE_START, LONG_WINDOW = 48, 40
# Slots before a pass: none, some of the first part of a list, more than a part; there the rows of a
# branch see to the end of one vector's places and further.
STARTS = (0, 14, 142)
# Slopes are no powers of two, so that what they are multiplied by is rounded.
SLOPES = torch.tensor([0.7109375, 0.35546875, 0.2109375, 0.1015625, 0.05078125, 0.01953125])
SINKS = torch.linspace(-2.0, 3.0, HEADS)
# Of numbers that are clipped or cut, and of rows whose parts are mixed.
MOST, DEVIATIONS, PARTS = 0.75, 0.3, 3


@dataclass(frozen=True, slots=True)
class Shape:
    """The widths of keys and values, and the parents of a tree of rows that attend."""

    dim: int
    value: int
    parents: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The number of them."""
        return len(self.parents)

    @property
    def leaves(self) -> list[int]:
        """Rows that no other goes on from."""
        return [row for row in range(self.rows) if row not in self.parents]

    @property
    def lines(self) -> list[list[int]]:
        """The rows that each of them sees, itself the last."""
        lines: list[list[int]] = []
        for row, parent in enumerate(self.parents):
            lines.append([*(lines[parent] if parent >= 0 else ()), row])
        return lines


NARROW = Shape(20, 14, (-1, 0, 1, 0, 3))
# Whole tiles, and as many rows as are worked on in more than one block.
WIDE = Shape(96, 96, (-1, 0, 1, 0, *range(3, 17)))


@dataclass(frozen=True, slots=True)
class AttentionWay:
    """One way to attend."""

    window: int | None = None
    slopes: Tensor | None = None
    coarse: bool = False
    sinks: Tensor | None = None
    value_heads: range | None = None


WAYS = (
    AttentionWay(),
    AttentionWay(window=6),
    AttentionWay(slopes=SLOPES),
    AttentionWay(slopes=SLOPES, coarse=True, window=6),
    AttentionWay(sinks=SINKS),
    AttentionWay(value_heads=range(1, KV_HEADS)),
)
# Rounded once, a bfloat16 is off by 2^-9; float32 sums of this size by some 1e-7.
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8}
SLACK = 1e-5


class Wrong(Exception):
    """Says what kernels got wrong."""


def check(dtype: torch.dtype) -> None:
    """Refuse kernels for this type if any of them computes something else than it should."""
    made = torch.Generator().manual_seed(0)
    _check_products(dtype, made)
    _check_packing_in_place(dtype, made)
    _check_words(dtype, made)
    _check_long_products(dtype, made)
    _check_products_apart(dtype, made)
    _check_rows(dtype, made)
    for start in STARTS:
        for way in WAYS:
            _check_attention(dtype, made, start, way, NARROW)
        for latent in LATENTS:
            _check_latents(dtype, made, start, latent)
    _check_attention(dtype, made, WIDE_START, AttentionWay(window=LONG_WINDOW), WIDE)


def _random(made: torch.Generator, *size: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*size, generator=made).to(dtype)


def _wide(x: Tensor) -> np.ndarray:
    """Copy into float64, and numpy's: its sums start no threads that spin where others compute.

    Whatever it holds: what nobody has written may be no number, which is no news here.
    """
    with np.errstate(invalid="ignore"):
        return x.float().numpy().astype(np.float64)


def _close(what: str, found: Tensor, wanted: np.ndarray, sizes: np.ndarray) -> None:
    """`sizes` are those of what was summed."""
    allowed = ROUNDING[found.dtype] * np.abs(wanted) + SLACK * sizes
    off = np.abs(_wide(found) - wanted)
    if not (off <= allowed).all():
        raise Wrong(
            f"{what} of {str(found.dtype).removeprefix('torch.')} is off by {off.max():.1e}"
        )


def _check_products(dtype: torch.dtype, made: torch.Generator) -> None:
    weight = _random(made, OUTPUTS, INPUTS, dtype=dtype)
    bias = _random(made, OUTPUTS, dtype=dtype)
    rows = _random(made, ROWS[-1], INPUTS, dtype=dtype)
    for given in (bias, None):
        packed = pack(weight, given)
        if not torch.equal(packed.unpacked(), weight):
            raise Wrong("a weight that was packed comes back changed")
        _poison(dtype)
        found = packed(rows)
        _check_product(found, rows, weight, given)
        for n in ROWS:
            _same("a product", packed(rows[-n:]), found[-n:])
        beside = rows.clone()
        beside[1::2] = torch.nan
        _same("a product", packed(beside)[::2], found[::2])


def _check_product(found: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    added = 0 if bias is None else _wide(bias)
    wanted = _wide(rows) @ _wide(weight).T + added
    _close("a product", found, wanted, np.abs(_wide(rows)) @ np.abs(_wide(weight)).T + 1)


def _check_packing_in_place(dtype: torch.dtype, made: torch.Generator) -> None:
    weight = _random(made, 3 * BLOCK, 2 * BLOCK, dtype=dtype)
    wanted = pack(weight).blob
    if not loaded().move_in_place(weight) or not torch.equal(weight.view(-1), wanted):
        raise Wrong("a weight that is packed where it lies comes out changed")


def _check_words(dtype: torch.dtype, made: torch.Generator) -> None:
    """Rows of a weight, which tokens are looked up in."""
    weight, program = _random(made, OUTPUTS, INPUTS, dtype=dtype), Program(dtype, INPUTS)
    tokens = torch.tensor([0, OUTPUTS - 1, BLOCK, BLOCK - 1])
    found = torch.empty(len(tokens), INPUTS, dtype=dtype)
    program.run(0, 0, tokens, found, program.hidden, words=pack(weight))
    if not torch.equal(found, weight[tokens]):
        raise Wrong("a word that is looked up in a weight is another")


def _check_long_products(dtype: torch.dtype, made: torch.Generator) -> None:
    """Sums over many inputs, of a block of outputs."""
    weight = _random(made, BLOCK, LONG_INPUTS, dtype=dtype)
    rows, packed = _random(made, ROWS[-2], LONG_INPUTS, dtype=dtype), pack(weight)
    _check_product(found := packed(rows), rows, weight, None)
    for n in ROWS[:-2]:
        _same("a product", packed(rows[-n:]), found[-n:])


def check_stored(dtype: torch.dtype) -> None:
    """Refuse kernels that make another product of stored weights than of the same plain ones."""
    made = torch.Generator().manual_seed(0)
    groups = 7
    inputs = groups * GROUP
    rows = _random(made, ROWS[-1], inputs, dtype=dtype)
    for bits, times in itertools.product(STORED_FORMS, (1, 3)):  # three times a half is none
        levels = torch.randint(1 << bits, (OUTPUTS, inputs), generator=made, dtype=torch.uint8)
        drawn = (torch.randn(OUTPUTS, groups, generator=made).half() for _ in range(2))
        held = Levels(bits, levels, *(part.float() * times for part in drawn))
        ours, plain = store(held, None, dtype), pack(held.numbers(dtype))
        for n in ROWS:
            if not torch.equal(ours(rows[:n]), plain(rows[:n])):
                raise Wrong(f"a product of stored weights of {bits} bits is not that of plain ones")


def _check_products_apart(dtype: torch.dtype, made: torch.Generator) -> None:
    """Products of parts of a row, each against the same of its part alone.

    Of parts that are no whole tiles, and of such as tiles may read where they lie.
    """
    for inputs, before in ((INPUTS, 1), (2 * BLOCK, 0)):
        firsts = inputs + before, before, 2 * inputs + before
        weights = [pack(_random(made, OUTPUTS, inputs, dtype=dtype)) for _ in firsts]
        program = Program(dtype, len(firsts) * inputs + before)
        sources = [program.hidden.part(first, inputs) for first in firsts]
        out = program.buffer(len(firsts) * OUTPUTS)
        targets = [out.part(i * OUTPUTS, OUTPUTS) for i in range(len(firsts))]
        program.linear_apart(*zip(sources, targets, weights, strict=True))
        x = _random(made, ROWS[-1], program.hidden.width, dtype=dtype)
        alone = (w(x[:, at : at + inputs]) for w, at in zip(weights, firsts, strict=True))
        if not torch.equal(found := _run(program, x, out, None), torch.cat([*alone], dim=1)):
            raise Wrong("a product of a part of a row is that of another part")
        for n in ROWS:
            _same("products of parts", _run(program, x[-n:], out, None), found[-n:])
        x[:, sources[0].first :][:, :inputs] = torch.nan
        if not torch.equal(_run(program, x, out, None)[:, OUTPUTS:], found[:, OUTPUTS:]):
            raise Wrong("a product of a part of a row depends on another part")


def _poison(dtype: torch.dtype) -> None:
    """Leave NaN wherever a pass keeps numbers, to be seen if a later one reads them."""
    wide = pack(torch.ones(2 * OUTPUTS, 2 * INPUTS, dtype=dtype))
    wide(torch.full((2 * ROWS[-1], 2 * INPUTS), torch.nan, dtype=dtype))


def _same(what: str, found: Tensor, wanted: Tensor) -> None:
    if not torch.equal(found, wanted):
        raise Wrong(f"a row of {what} depends on the rows beside it")


def _check_rows(dtype: torch.dtype, made: torch.Generator) -> None:
    x = _random(made, 5, OUTPUTS, dtype=dtype)
    weight = _random(made, OUTPUTS, dtype=dtype)
    wide, w = _wide(x), _wide(weight)
    centred = wide - wide.mean(-1, keepdims=True)
    cases: Iterable[tuple[str, Callable[[Program, Buffer], None], np.ndarray]] = (
        (
            "a root mean square norm",
            lambda p, out: p.rms_norm(p.hidden, out, weight, 1e-6, round_first=False),
            wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * w,
        ),
        (
            "a layer norm",
            lambda p, out: p.layer_norm(p.hidden, out, weight, weight, 1e-6),
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w + w,
        ),
        (
            "an activation",
            lambda p, out: p.act(p.hidden, out, "silu"),
            wide / (1 + np.exp(-wide)),
        ),
        ("a soft step", lambda p, out: p.act(p.hidden, out, "softplus"), np.logaddexp(0.0, wide)),
        ("weights", lambda p, out: p.weigh(p.hidden, out, weight), wide * w),
        ("a cut", lambda p, out: p.cut(p.hidden, out, float(DEVIATIONS)), _cut(x)),
        ("mixed parts", _mix, _mixed(x)),
        ("a clip", lambda p, out: p.clip(p.hidden, out, MOST), np.clip(wide, -MOST, MOST)),
    )
    for what, operation, wanted in cases:
        program = Program(dtype, OUTPUTS)
        out = program.buffer(OUTPUTS)
        operation(program, out)
        _close(what, _run(program, x, out, None), wanted, np.abs(wanted) + 1)


def _held(x: np.ndarray | float, dtype: torch.dtype) -> np.ndarray:
    """Numbers as a type holds them."""
    return _wide(torch.as_tensor(x).to(dtype))


def _cut(x: Tensor) -> np.ndarray:
    """Numbers less what lies so many deviations above the mean of a row, or nought if below."""
    wide, own = _wide(x), x.dtype
    far = _held(_held(wide.std(-1, keepdims=True), own) * _held(DEVIATIONS, own), own)
    least = _held(_held(wide.mean(-1, keepdims=True), own) + far, own)
    found: np.ndarray = np.maximum(wide - least, 0.0)
    return found


def _mix(program: Program, out: Buffer) -> None:
    """Onto all parts of rows the first of them, by numbers of the last."""
    each = OUTPUTS // PARTS
    factors = program.hidden.part(2 * each, 2 * PARTS)
    program.copy(program.hidden, out)
    program.mix(program.hidden.part(0, 2 * each), factors, out, PARTS)


def _mixed(x: Tensor) -> np.ndarray:
    """The same in float64, but for what is rounded on the way."""
    parts = _wide(x).reshape(len(x), PARTS, -1)
    factors = parts[:, 2, : 2 * PARTS].reshape(len(x), PARTS, 2)
    more = np.einsum("rij,rjw->riw", factors, parts[:, :2])
    found: np.ndarray = parts + _held(more, x.dtype)
    return found.reshape(len(x), -1)


def _run(program: Program, x: Tensor, out: Buffer, given: Pass | None) -> Tensor:
    found = torch.empty(len(x), out.width, dtype=x.dtype)
    program.run(0, program.mark(), x, found, out, given)
    return found


def _check_attention(
    dtype: torch.dtype, made: torch.Generator, start: int, way: AttentionWay, shape: Shape
) -> None:
    """Attention of heads that have keys and values in groups."""
    capacity, dim = start + shape.rows + ROOM_BEHIND, shape.dim
    keys, values = (_random(made, 1, KV_HEADS, capacity, dim, dtype=dtype) for _ in range(2))
    values[..., shape.value :] = torch.nan  # there is room for more
    behind = (HEADS + KV_HEADS) * dim
    width = behind + KV_HEADS * shape.value
    program = Program(dtype, width)
    queries = program.hidden.part(0, HEADS * dim)
    new_keys = program.hidden.part(HEADS * dim, KV_HEADS * dim)
    new_values = program.hidden.part(behind, KV_HEADS * shape.value)
    out = program.buffer(HEADS * shape.value)
    program.store(new_keys, new_values, LAYER, KV_HEADS, dim, shape.value)
    program.attend(
        *(queries, out, LAYER, HEADS, KV_HEADS, dim, SCALE),
        window=way.window,
        slopes=way.slopes,
        coarse=way.coarse,
        sinks=way.sinks,
        value_dim=shape.value,
        value_heads=way.value_heads,
    )
    x = _random(made, shape.rows, width, dtype=dtype)
    wanted = _attended(x, keys, values, start, way, shape)
    _check_tree("attention", program, x, out, start, (keys, values), wanted, shape)


def _check_latents(dtype: torch.dtype, made: torch.Generator, start: int, latent: int) -> None:
    """Attention of heads that look at the same latents."""
    capacity = start + NARROW.rows + ROOM_BEHIND
    keys, values = (_random(made, 1, 1, capacity, ROOM, dtype=dtype) for _ in range(2))
    keys[..., latent:], values[..., TURNED:] = torch.nan, torch.nan  # there is room for more
    asked, wide = HEADS * (TURNED + latent), latent + TURNED
    program = Program(dtype, asked + wide)
    queries, kept = program.hidden.part(0, asked), program.hidden.part(asked, wide)
    out = program.buffer(HEADS * latent)
    program.store(kept.part(0, latent), kept.part(latent, TURNED), LAYER, 1, latent, TURNED)
    program.attend(queries, out, LAYER, HEADS, 1, wide, SCALE, latents=latent)
    x = _random(made, NARROW.rows, asked + wide, dtype=dtype)
    wanted = _attended_latents(x, keys, values, start, latent)
    _check_tree("attention to latents", program, x, out, start, (keys, values), wanted, NARROW)


def _check_tree(
    what: str,
    program: Program,
    x: Tensor,
    out: Buffer,
    start: int,
    held: tuple[Tensor, Tensor],
    wanted: np.ndarray,
    shape: Shape,
) -> None:
    """A tree of two branches behind a text, and each of them as a chain."""
    beside = torch.full((1, 1, held[0].shape[2], shape.dim // 2), torch.nan, dtype=x.dtype)
    lines, blocks = shape.lines, CacheBlocks([(beside, beside), held])
    found = _run(program, x, out, _tree(start, lines, blocks))
    _close(what, found, wanted, np.abs(wanted) + 1)
    for leaf in shape.leaves:
        line = lines[leaf]
        chain = _chain(start, len(line), blocks)
        branch = _run(program, x[line].contiguous(), out, chain)
        if not torch.equal(branch, found[line]):
            raise Wrong("a branch of a tree is attended otherwise than a chain")
        before_nan = x[line]
        before_nan[-1] = torch.nan
        _same(what, _run(program, before_nan, out, chain)[:-1], branch[:-1])


def _tree(start: int, lines: list[list[int]], blocks: CacheBlocks) -> Pass:
    ends = [0]
    for line in lines:
        ends.append(ends[-1] + len(line))
    seen = [start + row for line in lines for row in line]
    slots = list(range(start, start + len(lines)))
    positions = [start + len(line) - 1 for line in lines]
    return Pass(start, slots, positions, seen, ends, UNTURNED, blocks)


def _chain(start: int, n: int, blocks: CacheBlocks) -> Pass:
    places = list(range(start, start + n))
    return Pass(start, places, places, None, None, UNTURNED, blocks, causal=True)


def _attended(
    x: Tensor, keys: Tensor, values: Tensor, start: int, way: AttentionWay, shape: Shape
) -> np.ndarray:
    """Attention in float64, row by row: [row, HEADS * value]."""
    dim, value = shape.dim, shape.value
    parts = np.split(_wide(x), [HEADS * dim, (HEADS + KV_HEADS) * dim], axis=1)
    queries, *new = (
        part.reshape(len(x), -1, width).swapaxes(0, 1)
        for part, width in zip(parts, (dim, dim, value), strict=True)
    )
    before = (_wide(held[0, :, :start]) for held in (keys, values[..., :value]))
    both = (np.concatenate(pair, axis=1) for pair in zip(before, new, strict=True))
    own_keys, own_values = both
    if way.value_heads is not None:
        own_values = own_values[np.resize(way.value_heads, KV_HEADS)]
    all_keys, all_values = (x.repeat(HEADS // KV_HEADS, axis=0) for x in (own_keys, own_values))
    return _gathered(queries, all_keys, all_values, start, way, shape)


def _attended_latents(
    x: Tensor, keys: Tensor, values: Tensor, start: int, latent: int
) -> np.ndarray:
    """The same over latents: [row, HEADS * latent]."""
    asked = HEADS * (TURNED + latent)
    queries, latents, turned = np.split(_wide(x), [asked, asked + latent], axis=1)
    latents = np.concatenate([_wide(keys)[0, 0, :start, :latent], latents])
    turned = np.concatenate([_wide(values)[0, 0, :start, :TURNED], turned])
    rows = np.concatenate([turned, latents], axis=1), latents
    of_keys, of_values = (np.broadcast_to(part, (HEADS, *part.shape)) for part in rows)
    heads = queries.reshape(len(x), HEADS, -1).swapaxes(0, 1)
    return _gathered(heads, of_keys, of_values, start, AttentionWay(), NARROW)


def _gathered(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    start: int,
    way: AttentionWay,
    shape: Shape,
) -> np.ndarray:
    """The values that rows gather, head by head, all of them [head, row, number]."""
    own = np.array([start + len(line) - 1 for line in shape.lines])
    places = np.concatenate([np.arange(start), own])
    seen = np.zeros((shape.rows, len(places)), bool)
    seen[:, :start] = True
    for row, line in enumerate(shape.lines):
        seen[row, [start + each for each in line]] = True
    if way.window is not None:
        seen &= places > own[:, None] - way.window
    scores = (queries @ keys.swapaxes(1, 2) + _tilted(way, places)) * SCALE
    scores = np.where(seen, scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    sinks = np.full(HEADS, -np.inf) if way.sinks is None else _wide(way.sinks)
    weights, unheard = np.exp(scores - largest), np.exp(sinks[:, None, None] - largest)
    gathered = weights / (weights.sum(-1, keepdims=True) + unheard) @ values
    found: np.ndarray = gathered.swapaxes(0, 1).reshape(shape.rows, -1)
    return found


def _tilted(way: AttentionWay, places: np.ndarray) -> np.ndarray:
    """The scores that each head adds for keys at these places: [head, 1, key]."""
    if way.slopes is None:
        return np.zeros((HEADS, 1, 1))
    grown = way.slopes[:, None, None] * torch.from_numpy(places)
    return _wide(grown.bfloat16() if way.coarse else grown)
