"""Operations of flat passes written down in torch, one row at a time: what kernels must compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as fn

from ppdbench.engine.flat import choice, latent, passes, products
from ppdbench.engine.flat.library import Kernels
from ppdbench.engine.flat.ops import Turns
from ppdbench.engine.reading import Peaks

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": fn.silu,
    "gelu_tanh": lambda x: fn.gelu(x, approximate="tanh"),
    "gelu": fn.gelu,
    "relu": fn.relu,
    "relu2": lambda x: fn.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "softplus": fn.softplus,
}


class PlainLinear:
    """A product that is laid out like its weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.blob, self.dtype = weight.clone(memory_format=torch.contiguous_format), weight.dtype
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else bias.float()
        self.nbytes = self.blob.numel() * self.blob.element_size()

    def biased(self, bias: Tensor) -> PlainLinear:
        return PlainLinear(self.blob, bias)

    def outputs(self, first: int, count: int) -> PlainLinear | None:
        return None  # its rows are no blocks

    def unpacked(self) -> Tensor:
        return self.blob.clone()

    def lies_in(self, other: PlainLinear) -> bool:
        return self.blob.data_ptr() == other.blob.data_ptr()

    def holds(self, weight: Tensor, bias: Tensor | None) -> bool:
        same = (self.bias is None) == (bias is None) and torch.equal(self.blob, weight)
        return same and (bias is None or torch.equal(self.bias, bias.float()))

    def __call__(self, x: Tensor) -> Tensor:
        wide = self.blob.float()
        rows = [(wide * row.float()).sum(-1) for row in x.reshape(-1, self.in_features)]
        out = torch.stack(rows) if rows else x.new_zeros(0, self.out_features).float()
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).reshape(*x.shape[:-1], self.out_features)


def pack(weight: Tensor, bias: Tensor | None = None) -> PlainLinear:
    return PlainLinear(weight, bias)


@dataclass(frozen=True)
class Buffer:
    number: int
    width: int
    first: int = 0

    def part(self, first: int, width: int) -> Buffer:
        return Buffer(self.number, width, self.first + first)


class CacheBlocks:
    def __init__(self, held: list[tuple[Tensor, Tensor]]) -> None:
        self.held = held


@dataclass
class Pass:
    start: int
    slots: np.ndarray
    positions: np.ndarray
    seen: np.ndarray | None
    offsets: np.ndarray | None
    turns: Turns
    blocks: CacheBlocks
    causal: bool = False
    places: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.slots, self.positions = np.asarray(self.slots), np.asarray(self.positions)

    def turned(self, kind: int) -> list[Tensor]:
        """cos and sin of each row, [row, 1, width]."""
        places = torch.from_numpy(self.positions.astype(np.int64))
        tables = self.turns.tables[kind]
        return [(each[places] if self.turns.whole else each)[:, None] for each in tables]

    @property
    def rows(self) -> int:
        return len(self.slots)

    def keys(self, row: int, window: int | None) -> tuple[Tensor, Tensor]:
        """Slots that a row sees in the order of positions, and these."""
        past = np.arange(self.start)
        if self.seen is None or self.offsets is None:
            own = np.arange(self.start, self.start + row + 1)
            places = own
        else:
            own = self.seen[self.offsets[row] : self.offsets[row + 1]]
            places = self.positions[own - self.start]
        slots, at = np.concatenate([past, own]), np.concatenate([past, places])
        if window is not None:
            near = at > self.positions[row] - window
            slots, at = slots[near], at[near]
        return torch.from_numpy(slots.astype(np.int64)), torch.from_numpy(at.astype(np.int64))


Operation = Callable[[dict[int, Tensor], "Pass | None"], None]


class Program:
    """The same builders as the real one; every number is rounded to the model's type."""

    def __init__(self, dtype: torch.dtype, width: int) -> None:
        self.dtype = dtype
        self._widths = [width]
        self._operations: list[Operation] = []
        self.hidden = Buffer(0, width)

    def buffer(self, width: int) -> Buffer:
        self._widths.append(width)
        return Buffer(len(self._widths) - 1, width)

    def mark(self) -> int:
        return len(self._operations)

    def call(self, *given: Any, **named: Any) -> Callable[[], None]:
        return partial(self.run, *given, **named)

    def run(
        self,
        first: int,
        last: int,
        source: Tensor,
        target: Tensor,
        out: Buffer,
        given: Pass | None = None,
        peaks: Peaks | None = None,
        words: Tensor | None = None,
    ) -> None:
        if words is not None:
            source = words[source]
        if source.dim() == 3:  # a 1 before their rows
            source, target = source[0], target[0]
        rooms = {i: torch.zeros(len(source), width) for i, width in enumerate(self._widths)}
        rooms[0][:] = source.float()
        for operation in self._operations[first:last]:
            operation(rooms, given)
        found = _view(rooms, out).to(self.dtype)
        target[:] = found
        if peaks is not None:
            (likeliest,), (heights,) = peaks.tensors()
            likeliest[:] = torch.from_numpy(found.float().numpy().argmax(-1))
            heights[:] = found.float().amax(-1)

    def _rounded(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).float()

    def _add(self, target: Buffer, make: Callable[[dict[int, Tensor], Any], Tensor]) -> None:
        def operation(rooms: dict[int, Tensor], given: Pass | None) -> None:
            _view(rooms, target)[:] = self._rounded(make(rooms, given))

        self._operations.append(operation)

    def linear(self, source: Buffer, *pairs: Any, add: Buffer | None = None) -> None:
        for target, product in pairs:

            def make(rooms: dict[int, Tensor], _: Any, product: Any = product) -> Tensor:
                found = product(_view(rooms, source).to(self.dtype)).float()
                return found if add is None else found + _view(rooms, add)

            self._add(target, make)

    def linear_apart(self, *triples: Any) -> None:
        for source, target, product in triples:
            self.linear(source, (target, product))

    def gated(self, source: Buffer, target: Buffer, gate: Any, up: Any, act: str) -> None:
        def make(rooms: dict[int, Tensor], _: Any) -> Tensor:
            x = _view(rooms, source).to(self.dtype)
            return self._rounded(_each(ACTIVATIONS[act], gate(x).float())) * up(x).float()

        self._add(target, make)

    def act(self, source: Buffer, target: Buffer, name: str, times: Buffer | None = None) -> None:
        def make(rooms: dict[int, Tensor], _: Any) -> Tensor:
            found = self._rounded(_each(ACTIVATIONS[name], _view(rooms, source)))
            return found if times is None else found * _view(rooms, times)

        self._add(target, make)

    def xielu(self, source: Buffer, target: Buffer, factors: tuple[float, float, float]) -> None:
        above, below, slope = factors

        def make(rooms: dict[int, Tensor], _: Any) -> Tensor:
            x = _view(rooms, source)
            bent = torch.where(x > 0, above * x * x, below * (torch.expm1(x.clamp(max=0)) - x))
            return bent + slope * x

        self._add(target, make)

    def rms_norm(
        self,
        source: Buffer,
        target: Buffer,
        weight: Tensor,
        eps: float,
        *,
        plus_one: bool = False,
        round_first: bool = True,
        each: int | None = None,
    ) -> None:
        factor = 1.0 + weight.float() if plus_one else weight.float()

        def make(rooms: dict[int, Tensor], _: Any) -> Tensor:
            x = _view(rooms, source)
            parts = x.view(len(x), -1, each or x.shape[1]) if each else x[:, None]
            scaled = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)
            scaled = self._rounded(scaled) if round_first else scaled
            return (scaled * factor).reshape(x.shape)

        self._add(target, make)

    def layer_norm(
        self, source: Buffer, target: Buffer, weight: Tensor, bias: Tensor | None, eps: float
    ) -> None:
        def make(rooms: dict[int, Tensor], _: Any) -> Tensor:
            other = None if bias is None else bias.float()
            width = (source.width,)
            return torch.nn.functional.layer_norm(
                _view(rooms, source).contiguous(), width, weight.float(), other, eps
            )

        self._add(target, make)

    def rotate(
        self,
        target: Buffer,
        heads: int,
        head_dim: int,
        width: int,
        kind: int = 0,
        *,
        neighbours: bool = False,
        round_first: bool = True,
    ) -> None:
        def make(rooms: dict[int, Tensor], given: Any) -> Tensor:
            x = _view(rooms, target).reshape(-1, heads, head_dim)
            cos, sin = given.turned(kind)
            turned, rest = x[..., :width], x[..., width:]
            half = torch.cat([-turned[..., width // 2 :], turned[..., : width // 2]], -1)
            if neighbours:
                half = torch.stack([-turned[..., 1::2], turned[..., ::2]], -1).flatten(-2)
            parts = turned * cos, half * sin
            both = sum(map(self._rounded, parts)) if round_first else sum(parts)
            return torch.cat([both, rest], -1).reshape(len(x), -1)

        self._add(target, make)

    def store(
        self,
        keys: Buffer,
        values: Buffer,
        layer: int,
        heads: int,
        head_dim: int,
        value_dim: int | None = None,
    ) -> None:
        dims = head_dim, value_dim or head_dim

        def operation(rooms: dict[int, Tensor], given: Any) -> None:
            kept = given.slots >= 0
            slots = torch.from_numpy(given.slots[kept].astype(np.int64))
            held = zip((keys, values), dims, given.blocks.held[layer], strict=True)
            for source, dim, block in held:
                rows = _view(rooms, source)[torch.from_numpy(kept)].view(-1, heads, dim)
                block[0, :, slots, :dim] = rows.transpose(0, 1).to(self.dtype)

        self._operations.append(operation)

    def attend(
        self,
        queries: Buffer,
        target: Buffer,
        layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        *,
        slopes: Tensor | None = None,
        coarse: bool = False,
        sinks: Tensor | None = None,
        latents: int = 0,
        value_dim: int | None = None,
        value_heads: range | None = None,
    ) -> None:
        def make(rooms: dict[int, Tensor], given: Any) -> Tensor:
            keys, values = given.blocks.held[layer]
            if value_heads is not None:
                values = values[:, np.resize(value_heads, kv_heads)]
            if latents:
                turned, values = values[..., : head_dim - latents], keys[..., :latents]
                keys = torch.cat([turned, values], -1)
            keys, values = keys[..., :head_dim], values[..., : latents or value_dim or head_dim]
            found = []
            for row, query in enumerate(_view(rooms, queries)):
                slots, places = given.keys(row, window)
                k = keys[0, :, slots].float().repeat_interleave(heads // kv_heads, 0)
                v = values[0, :, slots].float().repeat_interleave(heads // kv_heads, 0)
                scores = (k * query.view(heads, 1, head_dim)).sum(-1)
                if slopes is not None:
                    grown = slopes[:, None] * places
                    scores = scores + (grown.bfloat16().float() if coarse else grown)
                scores = scores * scale
                if softcap is not None:
                    scores = torch.tanh(scores / softcap) * softcap
                if sinks is not None:
                    scores = torch.cat([scores, sinks[:, None].float()], -1)
                weights = torch.softmax(scores, -1)[:, : len(slots)]
                found.append((weights[..., None] * v).sum(1).reshape(-1))
            return torch.stack(found)

        self._add(target, make)

    def add(self, a: Buffer, b: Buffer, target: Buffer) -> None:
        self._add(target, lambda rooms, _: _view(rooms, a) + _view(rooms, b))

    def copy(self, source: Buffer, target: Buffer) -> None:
        self._add(target, lambda rooms, _: _view(rooms, source))

    def pick(self, source: Buffer, target: Buffer, order: Tensor) -> None:
        self._add(target, lambda rooms, _: _view(rooms, source)[:, order.long()])

    def pick_heads(self, source: Buffer, target: Buffer, order: Tensor) -> None:
        heads, count = order.shape

        def operation(rooms: dict[int, Tensor], _: Any) -> None:
            picked = _view(rooms, source)[:, order.flatten().long()]
            whole = _view(rooms, target)
            whole.unflatten(1, (heads, -1))[..., :count] = picked.unflatten(1, (heads, count))

        self._operations.append(operation)

    def scale(self, source: Buffer, target: Buffer, factor: float) -> None:
        self._add(target, lambda rooms, _: _view(rooms, source) * factor)

    def weigh(self, source: Buffer, target: Buffer, weight: Tensor) -> None:
        self._add(target, lambda rooms, _: _view(rooms, source) * weight.float())

    def mix(self, source: Buffer, factors: Buffer, target: Buffer, parts: int) -> None:
        def make(rooms: dict[int, Tensor], _: Any) -> Tensor:
            before = _view(rooms, target)
            own = _view(rooms, source).reshape(len(before), -1, target.width // parts)
            by = _view(rooms, factors).reshape(len(before), parts, -1, 1)
            return before + self._rounded((by * own[:, None]).sum(2)).flatten(1)

        self._add(target, make)

    def cut(self, source: Buffer, target: Buffer, deviations: float) -> None:
        def make(rooms: dict[int, Tensor], _: Any) -> Tensor:
            x, held = _view(rooms, source), self._rounded
            mean, far = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, unbiased=False)
            far = held(held(far) * held(torch.tensor(deviations)))
            return held(x - held(held(mean) + far)).clamp(min=0)

        self._add(target, make)

    def clip(self, source: Buffer, target: Buffer, most: float) -> None:
        self._add(target, lambda rooms, _: _view(rooms, source).clamp(-most, most))

    def cap(self, source: Buffer, target: Buffer, value: float) -> None:
        def make(rooms: dict[int, Tensor], _: Any) -> Tensor:
            x = self._rounded(_view(rooms, source) / value)
            return self._rounded(_each(torch.tanh, x)) * value

        self._add(target, make)


def _each(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Row by row: torch computes the last numbers of a block in another way than the others."""
    return torch.stack([function(row.clone()) for row in x])


def _view(rooms: dict[int, Tensor], buffer: Buffer) -> Tensor:
    return rooms[buffer.number][:, buffer.first : buffer.first + buffer.width]


def kernels(dtype: torch.dtype) -> Kernels:
    """Say of these operations what a library of kernels says of itself."""
    return Kernels("torch")


def run_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put these operations in the place of the kernels."""
    for where, name, here in (
        (passes, "Program", Program),
        *((passes, "Pass", Pass), (passes, "CacheBlocks", CacheBlocks)),
        (passes, "run_all", run_all),
        *((products, "pack", pack), (products, "pack_in_place", lambda *_: None)),
        *((latent, "pack", pack), (choice, "library", kernels)),
    ):
        monkeypatch.setattr(where, name, here, raising=False)
