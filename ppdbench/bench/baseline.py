"""Our greedy decoding against transformers' own `generate()`, and against the memory's speed.

A speedup is worth what its baseline is worth, so the baseline is measured too: the same
weights, prompts and process, one after the other in alternating order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import nn

from ppdbench.bench.compiling import check_mode, settle
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.decoding.identity import first_difference
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.decoding.stock import StockModel
from ppdbench.engine.experts import unread_by_one_token
from ppdbench.engine.flat.choice import PassPath
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.machine.bandwidth import measure_bandwidth
from ppdbench.machine.clock import Clock
from ppdbench.runs.records import Compilation
from ppdbench.runs.workload import Report
from ppdbench.stats import median

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Round:
    """One pass of both over all prompts; what each took in seconds."""

    greedy_s: float
    greedy_decode_s: float
    generate_s: float
    generate_decode_s: float

    @property
    def ratio(self) -> float:
        """Our greedy decoding's speed over `generate()`'s."""
        return self.generate_s / self.greedy_s

    @property
    def decode_ratio(self) -> float | None:
        """The same after the prefill, if anything was decoded after it."""
        return self.generate_decode_s / self.greedy_decode_s if self.greedy_decode_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineReport:
    """The result of the comparison. Speeds are medians over rounds and count new tokens.

    The `*_tokens_per_s` of greedy and generate are over the whole call, prefill included;
    `decode_tokens_per_s` is greedy after its prefill, None if one token was asked for.
    `compilation` is the outcome of `--compile`, `path` names the kernels of our passes.
    """

    model: str
    is_synthetic: bool
    dtype: str
    device: str
    threads: int
    prompts: int
    prompt_tokens: tuple[int, ...]
    new_tokens: int
    rounds: tuple[Round, ...]
    identical: int
    """Prompts for which both gave the same tokens."""
    first_differences: tuple[int | None, ...]
    """Per prompt the output position at which they part, None where they never do."""
    bytes_per_token: int
    bandwidth_bytes_per_s: float
    compilation: Compilation | None
    path: PassPath

    @property
    def captured(self) -> bool:
        """True if our passes ran as graphs that were captured."""
        return self.compilation is not None and bool(self.compilation.rows)

    @property
    def rounds_run(self) -> int:
        """The number of times that both went over all prompts."""
        return len(self.rounds)

    @property
    def _tokens(self) -> int:
        return self.prompts * self.new_tokens

    @property
    def greedy_tokens_per_s(self) -> float:
        """The speed of our greedy decoding, prefill included."""
        return self._tokens / median([r.greedy_s for r in self.rounds])

    @property
    def generate_tokens_per_s(self) -> float:
        """transformers' generate(), prefill included."""
        return self._tokens / median([r.generate_s for r in self.rounds])

    @property
    def decode_tokens_per_s(self) -> float | None:
        """The speed of our greedy decoding, steps after the prefill only."""
        return self._after_prefill([r.greedy_decode_s for r in self.rounds])

    @property
    def generate_decode_tokens_per_s(self) -> float | None:
        """transformers' generate(), steps after the prefill only."""
        return self._after_prefill([r.generate_decode_s for r in self.rounds])

    def _after_prefill(self, seconds: Sequence[float]) -> float | None:
        steps = self._tokens - self.prompts
        return steps / median(seconds) if steps else None

    @property
    def decode_ratio(self) -> float | None:
        """Our greedy decoding's speed over `generate()`'s after the prefill: the rounds' median."""
        ratios = [r.decode_ratio for r in self.rounds if r.decode_ratio is not None]
        return median(ratios) if ratios else None

    @property
    def ratio(self) -> float:
        """Our greedy decoding's speed over `generate()`'s: the median of the rounds' ratios."""
        return median([r.ratio for r in self.rounds])

    @property
    def ratio_range(self) -> tuple[float, float]:
        """The smallest and largest ratio of any round."""
        ratios = [r.ratio for r in self.rounds]
        return min(ratios), max(ratios)

    @property
    def bandwidth_utilisation(self) -> float | None:
        """Bytes that decoding must read, per second, over what the memory delivers.

        Above 1 where weights stay in the processor's caches.
        """
        speed = self.decode_tokens_per_s
        return None if speed is None else self.bytes_per_token * speed / self.bandwidth_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        low, high = self.ratio_range
        return {
            "model": self.model,
            "synthetic": self.is_synthetic,
            "dtype": self.dtype,
            "device": self.device,
            "threads": self.threads,
            "prompts": self.prompts,
            "prompt_tokens": list(self.prompt_tokens),
            "new_tokens": self.new_tokens,
            "rounds": self.rounds_run,
            "greedy_tokens_per_s": self.greedy_tokens_per_s,
            "greedy_decode_tokens_per_s": self.decode_tokens_per_s,
            "generate_tokens_per_s": self.generate_tokens_per_s,
            "generate_decode_tokens_per_s": self.generate_decode_tokens_per_s,
            "ratio": self.ratio,
            "decode_ratio": self.decode_ratio,
            "ratio_min": low,
            "ratio_max": high,
            "ratios": [r.ratio for r in self.rounds],
            "greedy_s": [r.greedy_s for r in self.rounds],
            "generate_s": [r.generate_s for r in self.rounds],
            "compilation": msgspec.to_builtins(self.compilation),
            "path": self.path.kernels,
            "why": self.path.why,
            "identical": self.identical,
            "first_differences": list(self.first_differences),
            "bytes_per_token": self.bytes_per_token,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "bandwidth_utilisation": self.bandwidth_utilisation,
        }


def compare_with_generate(
    spec: ModelSpec,
    *,
    prompts: Prompts | Callable[[Any], Prompts],
    new_tokens: int,
    rounds: int,
    compile: str = "auto",
    progress: Report | None = None,
) -> BaselineReport:
    """Load the model twice, ours and stock, and time both on `prompts`.

    `prompts` are token ids, or what makes them from the model's tokenizer. Memory for two
    copies of the weights is needed where ours are laid out anew.
    """
    for name, value in {"new_tokens": new_tokens, "rounds": rounds}.items():
        if value < 1:
            raise ConfigError(f"{name}={value}; use 1 or more")
    check_mode(compile)
    ours = load(spec)
    ids = prompts(ours.tokenizer) if callable(prompts) else prompts
    _check_lengths(ours, ids, new_tokens)
    setup = Setup(ours, max(map(len, ids)) + new_tokens)
    stock = setup.stock()
    found = settle(compile, setup, {"greedy": Decoder()}, progress or _unheard)
    return compare(
        *(ours, stock),
        prompts=ids,
        new_tokens=new_tokens,
        rounds=rounds,
        progress=progress,
        compilation=found,
    )


def _unheard(what: str, done: int, of: int | None) -> None:
    """Ignore progress that nobody wants to know."""


def compare(
    ours: Loaded,
    stock: StockModel,
    *,
    prompts: Prompts,
    new_tokens: int,
    rounds: int,
    progress: Report | None = None,
    clock: Clock | None = None,
    bandwidth: float | None = None,
    compilation: Compilation | None = None,
) -> BaselineReport:
    """Time both over the same prompts, taking turns."""
    _check_lengths(ours, prompts, new_tokens)
    staged = ours.staged
    clock = clock or Clock(staged.device)
    greedy = _Greedy(staged, max(len(p) for p in prompts), new_tokens, clock)
    generate = _Generate(stock, new_tokens, clock)
    report = progress or _unheard

    report("warming up", 0, rounds)
    for prompt in {len(p): p for p in prompts}.values():
        greedy(prompt)
        generate(prompt)
    # In every round: what the memory delivers drifts with what else the machine does.
    speeds: list[float] = []
    done: list[Round] = []
    parted: list[int | None] = []
    for number in range(rounds):
        report("greedy against generate()", number, rounds)
        speeds.append(bandwidth or measure_bandwidth(staged.device, staged.readers))
        one, parted = _one_round(greedy, generate, prompts, greedy_first=number % 2 == 0)
        done.append(one)
    report("greedy against generate()", rounds, rounds)

    return BaselineReport(
        model=ours.spec.name,
        is_synthetic=ours.spec.is_synthetic,
        dtype=staged.precision,
        device=str(staged.device),
        threads=torch.get_num_threads(),
        prompts=len(prompts),
        prompt_tokens=tuple(len(p) for p in prompts),
        new_tokens=new_tokens,
        rounds=tuple(done),
        identical=parted.count(None),
        first_differences=tuple(parted),
        bytes_per_token=bytes_per_token(staged, [len(p) for p in prompts], new_tokens),
        bandwidth_bytes_per_s=median(speeds),
        compilation=compilation,
        path=staged.path,
    )


def _check_lengths(ours: Loaded, prompts: Prompts, new_tokens: int) -> None:
    if not prompts or not all(len(p) for p in prompts):
        raise ConfigError("a comparison needs prompts of one token or more")
    longest = max(len(p) for p in prompts)
    if longest + new_tokens > ours.max_positions:
        raise ConfigError(
            f"{longest} prompt tokens and {new_tokens} new ones, but {ours.spec.name} runs "
            f"{ours.max_positions} at most; lower --prompt-tokens or --new-tokens"
        )


@dataclass(frozen=True, slots=True)
class _Timed:
    """One output and its times: the whole call, and what followed the prefill."""

    tokens: list[int]
    seconds: float
    decode_seconds: float


class _Greedy:
    """Our greedy decoding, its buffers allocated once."""

    def __init__(self, model: StagedModel, prompt_tokens: int, new_tokens: int, clock: Clock):
        self.session = Session(model, prompt_tokens + new_tokens)
        self.limits = Limits(new_tokens)
        self.clock = clock

    def __call__(self, prompt: Sequence[int]) -> _Timed:
        self.clock.synchronize()
        before = self.clock.now()
        decoded = autoregressive(self.session, Request(list(prompt), self.limits, self.clock))
        self.clock.synchronize()
        seconds = self.clock.now() - before
        return _Timed(list(decoded.output_ids), seconds, sum(decoded.step_ms) / 1e3)


class _Generate:
    """transformers' `generate()` on plain weights with its own attention, free of penalties."""

    def __init__(self, stock: StockModel, new_tokens: int, clock: Clock) -> None:
        self.stock, self.limits, self.clock = stock, Limits(new_tokens), clock

    def __call__(self, prompt: Sequence[int]) -> _Timed:
        handed = self.stock.generate(Request(list(prompt), self.limits, self.clock))
        tokens = [token for part in handed for token in part.tokens]
        seconds = handed[-1].seconds
        return _Timed(tokens, seconds, seconds - handed[0].seconds)


def _one_round(
    greedy: _Greedy, generate: _Generate, prompts: Prompts, *, greedy_first: bool
) -> tuple[Round, list[int | None]]:
    """Time both over all prompts, taking turns; note where their outputs part."""
    sides: dict[bool, list[_Timed]] = {True: [], False: []}
    parted = []
    for index, prompt in enumerate(prompts):
        if greedy_first == (index % 2 == 0):
            ours, theirs = greedy(prompt), generate(prompt)
        else:
            theirs = generate(prompt)
            ours = greedy(prompt)
        sides[True].append(ours)
        sides[False].append(theirs)
        parted.append(first_difference(ours.tokens, theirs.tokens))
    times = [
        sum(getattr(timed, name) for timed in sides[mine])
        for mine in (True, False)
        for name in ("seconds", "decode_seconds")
    ]
    return Round(*times), parted


def bytes_per_token(model: StagedModel, prompt_tokens: Sequence[int], new_tokens: int) -> int:
    """Count the bytes one decode step must read on average: weights, and the cache rows so far."""
    steps = [length + step for length in prompt_tokens for step in range(1, new_tokens)] or list(
        prompt_tokens
    )
    layers = range(model.n_layers)
    seen = sum(model.cache_shape.seen_bytes(layers, length) for length in steps)
    return weight_bytes_read(model) + round(seen / len(steps))


def weight_bytes_read(model: StagedModel) -> int:
    """Weights that a step over one token reads: all, but of looked-up tables one row.

    Of experts it reads those that the token chooses.

    A table that the head multiplies by, too, is read whole.
    """
    held = model.weight_bytes()
    head = getattr(model.adapter.head, "weight", None)
    for module in model.model.modules():
        if isinstance(module, nn.Embedding) and module.weight is not head:
            row = module.weight[0]
            held -= (module.weight.numel() - row.numel()) * row.element_size()
    return held - unread_by_one_token(model)
