"""Shapes of synthetic models, by name or by numbers; no weights, no torch.

`synthetic:llama-7b`, `synthetic:layers=12,hidden=384,agree=0.8`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ppdbench.errors import ConfigError, UnknownName

PREFIX = "synthetic:"
SPECIALS = ["<pad>", "<s>", "</s>"]
BYTES = 256
# Sizes that no model comes near; beyond them a typing error would cost minutes or all memory.
MOST = {
    "layers": 1_000,
    "hidden": 1 << 17,
    "heads": 1 << 12,
    "kv_heads": 1 << 12,
    "ffn": 1 << 20,
    "vocab": 1 << 21,
    "context": 1 << 24,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A Llama shape; unset sizes follow from `hidden`."""

    layers: int = 12
    hidden: int = 384
    heads: int = 0
    kv_heads: int = 0
    ffn: int = 0
    vocab: int = 4096
    context: int = 4096
    tie: bool = False
    agree: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.agree <= 1:
            raise ConfigError(f"synthetic model: agree={self.agree}; use 0..1")
        least = {"layers": 1, "hidden": 2, "context": 2, "vocab": len(SPECIALS) + BYTES}
        least |= {"heads": 0, "kv_heads": 0, "ffn": 0}  # 0: follows from hidden
        for name, minimum in least.items():
            if not minimum <= getattr(self, name) <= MOST[name]:
                raise ConfigError(
                    f"synthetic model: {name}={getattr(self, name)}; use {minimum} or more, up to "
                    f"{MOST[name]}"
                )
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"synthetic model: seed={self.seed}; use 0..{2**63 - 1}")
        n_heads = self.n_heads
        if self.hidden % n_heads or (self.hidden // n_heads) % 2:
            raise ConfigError(
                f"synthetic model: hidden={self.hidden} does not split into {n_heads} heads of "
                "even size; choose another heads="
            )
        if n_heads % self.n_kv_heads:
            raise ConfigError(
                f"synthetic model: heads={n_heads} is no multiple of kv_heads={self.n_kv_heads}"
            )

    @property
    def n_heads(self) -> int:
        """Query heads: 64 wide unless said otherwise."""
        return self.heads or max(1, self.hidden // 64)

    @property
    def n_kv_heads(self) -> int:
        """Key and value heads: as many as query heads unless said otherwise."""
        return self.kv_heads or self.n_heads

    @property
    def n_ffn(self) -> int:
        """Width of the MLP: 8/3 of hidden, rounded up to a multiple of 64."""
        return self.ffn or -(-self.hidden * 8 // 3 // 64) * 64


NAMED: dict[str, ModelShape] = {
    "demo": ModelShape(layers=8, hidden=256, vocab=1024, context=2048, agree=0.8),
    "llama-20m": ModelShape(layers=12, hidden=384, ffn=1024, vocab=4096, tie=True),
    "llama-100m": ModelShape(layers=12, hidden=768, ffn=2048, vocab=16384, tie=True),
    "llama-1b": ModelShape(
        layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=128256, tie=True
    ),
    "llama-7b": ModelShape(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000),
    "llama-8b": ModelShape(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256),
    "llama-13b": ModelShape(layers=40, hidden=5120, heads=40, ffn=13824, vocab=32000),
    "llama-70b": ModelShape(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000),
}


def parse(spec: str) -> ModelShape:
    """`llama-7b`, `layers=12,hidden=384` or `llama-7b,agree=0.5` to a shape."""
    parts = [part.strip() for part in spec.removeprefix(PREFIX).split(",") if part.strip()]
    if not parts:
        raise ConfigError(
            f"{spec!r} names no shape; use {PREFIX}NAME (one of {', '.join(NAMED)}) or "
            f"{PREFIX}layers=12,hidden=384,..."
        )
    shape = ModelShape()
    if "=" not in parts[0]:
        name = parts.pop(0)
        if name not in NAMED:
            raise UnknownName("synthetic shape", name, NAMED)
        shape = NAMED[name]
    kinds: dict[str, type] = {f.name: type(getattr(shape, f.name)) for f in fields(ModelShape)}
    changes: dict[str, Any] = {}
    for part in parts:
        key, _, text = part.partition("=")
        if key not in kinds:
            raise UnknownName("synthetic model setting", key, kinds)
        if key in changes:
            raise ConfigError(f"synthetic model: {key} is given twice")
        changes[key] = _value(key, text, kinds[key])
    return replace(shape, **changes)


def _value(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        known = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() not in known:
            raise ConfigError(f"synthetic model: {key}={text!r} is not a bool; use true or false")
        return known[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"synthetic model: {key}={text!r} is not a {kind.__name__}") from None
