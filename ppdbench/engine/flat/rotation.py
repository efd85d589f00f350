"""The turn that attention gives to heads by their positions, found out by asking it.

Families pair the numbers of a head in two ways, halves or neighbours, and hand over tables that
say each angle twice: half apart, or side by side. The function that their code mentions turns
some heads, and what comes out says which way it goes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ppdbench.engine.anatomy import names_in
from ppdbench.engine.flat.understood import (
    COMPLEX_ROTATION,
    GROWING,
    GROWTH,
    PARTING_ROTATION,
    ROTATION,
    ROTATIONS,
    NotUnderstoodError,
    globals_of,
)

if TYPE_CHECKING:
    from ppdbench.engine.flat.ops import Buffer, Program

ROWS = 3  # that a rotation is asked for
CLOSE = 1e-5
# Gives, by positions, what queries grow by beyond the length that a model was trained on.
Growth = Callable[[Tensor], Tensor]
COMPLEX_TABLE = "freqs_cis"


@dataclass(frozen=True, slots=True)
class Rotation:
    """One way to turn heads."""

    neighbours: bool = False
    """Numbers are paired side by side; else number i goes with number i + width / 2."""
    spread: bool = False
    """Tables hold angles half apart, though numbers are paired side by side."""
    once: bool = False
    """Tables say each angle once, and are half as wide as what is turned."""
    backward: bool = False
    """Angles count the other way round."""
    round_first: bool = True
    """Products are rounded before they are summed, not only their sum."""
    parted: bool = False
    """Pairs lie side by side in what is turned, and half apart in what comes out."""

    def order(self, width: int) -> Tensor:
        """Columns of so many numbers as they stand where they are turned."""
        columns = torch.arange(width)
        return columns.view(-1, 2).t().flatten() if self.parted else columns

    def tables(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines number by number, as operations take them."""
        if self.once:
            cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1)
        if self.spread:
            half = cos.shape[-1] // 2
            cos, sin = (table[..., :half].repeat_interleave(2, -1) for table in (cos, sin))
        return cos, -sin if self.backward else sin

    def turned(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Heads, turned this way by the tables of a model."""
        cos, sin = self.tables(cos, sin)
        width = cos.shape[-1]
        turned, rest = heads[..., self.order(width)], heads[..., width:]
        return torch.cat([self._sum(turned, cos, sin), rest], dim=-1)

    def _sum(self, turned: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        across = _across(turned, self.neighbours)
        if self.round_first:
            return turned * cos + across * sin
        return (turned.float() * cos.float() + across.float() * sin.float()).to(turned.dtype)


def _across(x: Tensor, neighbours: bool) -> Tensor:
    """The numbers that each one is turned towards."""
    if neighbours:
        return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


@dataclass(frozen=True, slots=True)
class HeadTurn:
    """The turn that a layer gives to heads: of so many numbers of each, by tables of a kind."""

    way: Rotation
    width: int
    kind: int

    def write(self, program: Program, states: Buffer, heads: int, head_dim: int) -> None:
        """Turn the first numbers of each head, in the order in which they are turned."""
        program.rotate(
            *(states, heads, head_dim, self.width, self.kind),
            neighbours=self.way.neighbours,
            round_first=self.way.round_first,
        )


def pair_of(tables: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Cosines and sines, which some models hand over as one table of complex numbers."""
    if len(tables) == 1:
        return tables[0].real, tables[0].imag
    cos, sin = tables
    return cos, sin


def turns_first(block: nn.Module, norm: str) -> bool:
    """True if heads are turned before this norm of theirs, by the order that code mentions both."""
    names = list(names_in(type(block).forward))
    turn = next((name for name in ROTATIONS if name in names), None)
    return turn is not None and names.index(turn) < names.index(norm)


def growth_of(block: nn.Module) -> Growth | None:
    """The growth of queries, of a function that code mentions or as settings say; None of most."""
    own: Any = block
    forward = inspect.unwrap(type(block).forward)
    if GROWTH in names_in(forward):
        rope = own.config.rope_parameters
        rate, length = rope["llama_4_scaling_beta"], rope["original_max_position_embeddings"]
        grow = globals_of(forward)[GROWTH]
        return lambda positions: grow(positions, rate, length).flatten()
    if getattr(own, GROWING, False) and not own.use_rope:
        return partial(_grown, own.attn_scale, own.floor_scale)
    return None


def _grown(rate: float, length: float, positions: Tensor) -> Tensor:
    stretches = torch.floor((positions.float() + 1.0) / length)
    return (torch.log1p(stretches) * rate + 1.0).flatten()


def rotation_of(block: nn.Module, head_dim: int, width: int) -> Rotation:
    """The way in which attention turns heads; refused if it is none that is known."""
    found = _asked(type(block).forward, _name_of_function(block), head_dim, width)
    if found is None:
        raise NotUnderstoodError(f"{type(block).__name__} turns heads in a way of its own, or none")
    return found


def _name_of_function(block: Any) -> str:
    """The name of the function that turns heads: where there are two, a setting chooses."""
    names = names_in(type(block).forward)
    if PARTING_ROTATION in names and (ROTATION not in names or block.config.rope_interleave):
        return PARTING_ROTATION
    return COMPLEX_ROTATION if COMPLEX_ROTATION in names else ROTATION


@cache
@torch.no_grad()
def _asked(forward: Callable[..., Any], name: str, head_dim: int, width: int) -> Rotation | None:
    rotate = globals_of(own := inspect.unwrap(forward)).get(name)
    if name not in names_in(own) or rotate is None or width % 2:
        return None
    for size in (head_dim, width):  # some turn a part of heads that they have cut off
        for ways, tables in _trials(width, size):
            if (found := _first(ways, rotate, size, *tables)) is not None:
                return _with_rounding(found, rotate, size, *tables)
    return None


def _trials(width: int, size: int) -> Iterator[tuple[list[Rotation], tuple[Tensor, Tensor]]]:
    """Ways that go with tables of each kind for such heads, and tables: [1, row, width] each."""
    drawn = torch.randn(2, 1, ROWS, width // 2, generator=torch.Generator().manual_seed(0))
    apart = [
        *(Rotation(), Rotation(backward=True), Rotation(parted=True)),
        Rotation(neighbours=True, spread=True),
    ]
    cos, sin = drawn.repeat(1, 1, 1, 2)
    yield apart, (cos, sin)
    cos, sin = drawn.repeat_interleave(2, dim=-1)
    yield [Rotation(neighbours=True), Rotation(neighbours=True, backward=True)], (cos, sin)
    if 2 * width <= size:
        cos, sin = torch.randn(2, 1, ROWS, width, generator=torch.Generator().manual_seed(0))
        yield [Rotation(once=True), Rotation(neighbours=True, spread=True, once=True)], (cos, sin)


def _ask(rotate: Callable[..., Any], heads: Tensor, cos: Tensor, sin: Tensor) -> Any:
    """Heads turned by a function of a model: of queries and keys, or of one of both at a time.

    The latter takes cosines before sines, or heads behind rows and each angle once. Complex tables
    are one, and heads stand before rows or behind them.
    """
    parameters = inspect.signature(rotate).parameters
    if COMPLEX_TABLE in parameters:
        table = torch.complex(cos.float(), sin.float())
        found = rotate(heads, heads, table)
        if found[0].shape == heads.shape:
            return found
        behind = heads.transpose(1, 2)  # rows
        return [each.transpose(1, 2) for each in rotate(behind, behind, table)]
    names = [name for name, each in parameters.items() if each.default is each.empty]
    if names[1:] == ["cos", "sin"]:
        return [rotate(heads, cos, sin)]
    if len(names) != len(("heads", "sines", "cosines")):
        return rotate(heads, heads, cos, sin)
    half = cos.shape[-1] // 2
    return [rotate(heads.transpose(1, 2), sin[..., :half], cos[..., :half]).transpose(1, 2)]


def _first(
    ways: list[Rotation], rotate: Callable[..., Any], size: int, cos: Tensor, sin: Tensor
) -> Rotation | None:
    """The first way that gives what is given for random heads."""
    heads = _heads(size)
    try:
        found = _ask(rotate, heads, cos, sin)
    except (RuntimeError, TypeError, ValueError):
        return None
    close = (w for w in ways if all(_near(each, w.turned(heads, cos, sin)) for each in found))
    return next(close, None)


def _with_rounding(
    way: Rotation, rotate: Callable[..., Any], size: int, cos: Tensor, sin: Tensor
) -> Rotation:
    """The same way, rounding where it does."""
    cos, sin, heads = cos.bfloat16(), sin.bfloat16(), _heads(size).bfloat16()
    found = _ask(rotate, heads, cos, sin)[0]
    late = replace(way, round_first=False)
    return min((way, late), key=lambda w: _off(found, w.turned(heads, cos, sin)))


def _heads(size: int) -> Tensor:
    return torch.randn(1, 1, ROWS, size, generator=torch.Generator().manual_seed(1))


def _near(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and _off(found, expected) < CLOSE


def _off(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).abs().max())
