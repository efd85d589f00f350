"""The engine held against the stock model: over one example, before anything is measured.

Every pass of every method over it is compared, in the shape that the run will use: one row,
chains, trees, rows that join in the middle, early exits. What all methods share may be wrong in
the same way, and then outputs are identical and still not the model's: only this finds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ppdbench.decoding.limits import Limits
from ppdbench.decoding.rounding import Bound
from ppdbench.engine.logit_watch import LogitWatch
from ppdbench.engine.nearness import distance, gap
from ppdbench.engine.truth import StockLogits, StockTruth, TokenLine
from ppdbench.errors import ExactnessError

if TYPE_CHECKING:
    from ppdbench.decoding.decoded import Decoded

# Output positions that are compared.
FIRST = 32
# Different exits of one output that are compared.
DEPTHS = 3
# Positions at which the stock model's passes of few rows are measured beside its one long pass.
REACH = 2
# What our rows may lie from the wider truth, as a multiple of what the stock model's own do.
# Over thousands of positions of real models it was never above 2, and 1.6 in the mean.
WORST, MEAN = 5.0, 2.5


@dataclass(frozen=True, slots=True)
class MethodOutput:
    """A method's output over an example and the logits that chose it.

    `greedy` says that each token must be the likeliest one; without `watch` its passes ran
    elsewhere, and only the tokens are compared.
    """

    label: str
    decoded: Decoded
    watch: LogitWatch
    greedy: bool


def hold_to_stock(truth: StockTruth, prompt: list[int], seen: Iterable[MethodOutput]) -> float:
    """Refuse to go on where passes differ from the stock model's by more than rounding.

    Returns the stock model's own noise.
    """
    measured: dict[tuple[tuple[int, ...], int | None], StockLogits] = {}
    noise = 0.0
    for each in seen:
        output = each.decoded.output_ids[:FIRST]
        for depth, positions in _by_depth(each.watch, truth.n_layers, len(output)).items():
            key = output, depth
            if key not in measured:
                ids = [*prompt, *output[:-1]]
                measured[key] = truth.measure(ids, len(prompt) - 1, reach=REACH, depth=depth)
            found = measured[key]
            noise = max(noise, float(found.noise.max()))
            if each.watch.logits:
                _hold_rows(each, positions, found, truth.dtype)
            if each.greedy and depth is None:
                _hold_tokens(each, found, truth.dtype)
    return noise


def _by_depth(watch: LogitWatch, n_layers: int, length: int) -> Mapping[int | None, list[int]]:
    """Group output positions by the number of layers after which they were read out (None: all)."""
    found: dict[int | None, list[int]] = defaultdict(list)
    for position, depth in sorted(watch.depths.items()):
        if position < length:
            found[None if depth == n_layers else depth].append(position)
    most = sorted(found, key=lambda depth: -len(found[depth]))[:DEPTHS]
    return {depth: found[depth] for depth in most} or {None: []}


def _hold_rows(
    each: MethodOutput, positions: list[int], found: StockLogits, dtype: torch.dtype
) -> None:
    """Refuse logits that are further from the stock model's than rounding explains."""
    ours = torch.stack([each.watch.logits[position] for position in positions]).cpu()
    truth = found.logits[positions].cpu()
    off = distance(ours, truth)
    floor = Bound.of(dtype, 0.0, float(truth.abs().max()), _spread(truth)).value
    worst = int(off.argmax())
    noise, mean = float(found.noise.max()), float(found.noise.mean())
    if float(off[worst]) > WORST * noise + floor:
        raise _refusal(each.label, positions[worst], float(off[worst]), noise)
    if float(off.mean()) > MEAN * mean + floor:
        raise _refusal(each.label, positions[worst], float(off.mean()), mean)


def _hold_tokens(each: MethodOutput, found: StockLogits, dtype: torch.dtype) -> None:
    """The tokens alone: each the likeliest, or as good as that."""
    output = each.decoded.output_ids[: len(found.logits)]
    for position, (token, logits) in enumerate(zip(output, found.logits, strict=True)):
        best = float(logits.max())
        noise = float(found.noise.max())
        bound = Bound.of(dtype, noise, abs(best), _spread(logits)).value
        if best - float(logits[token]) > bound:
            raise ExactnessError(
                f"{each.label} is not the model's greedy output: at output position {position} "
                f"transformers prefers another token by {best - float(logits[token]):.2g}, and "
                f"rounding explains {bound:.2g}; nothing this run would measure holds"
            )


def _spread(logits: Tensor) -> float:
    return float(logits.max() - logits.min())


def _refusal(label: str, position: int, off: float, noise: float) -> ExactnessError:
    return ExactnessError(
        f"the passes of {label} are not the model's: at output position {position} logits lie "
        f"{off:.2g} from what transformers computes, whose own rounding is {noise:.2g}; nothing "
        "this run would measure holds"
    )


def hold_ranks(
    truth: StockTruth, prompt: list[int], output: Sequence[int], ranks: Mapping[int, Sequence[int]]
) -> None:
    """Refuse ranks of `output` after some layers that the stock model's logits there rule out.

    Of all layers the first, the middle and the last are compared.
    """
    output, layers = output[:FIRST], sorted(ranks)
    for depth in {layers[0], layers[len(layers) // 2], layers[-1]}:
        ids = [*prompt, *output[:-1]]
        found = truth.measure(ids, len(prompt) - 1, reach=REACH, depth=depth)
        noise = float(found.noise.max())
        for position, (token, logits) in enumerate(zip(output, found.logits, strict=True)):
            own = float(logits[token])
            bound = Bound.of(truth.dtype, noise, abs(own), _spread(logits)).value
            fewest = int((logits > own + bound).sum())
            most = int((logits >= own - bound).sum()) - 1
            if not fewest <= ranks[depth][position] <= most:
                raise ExactnessError(
                    f"the probe is not the model's: after {depth} layers the token at output "
                    f"position {position} has rank {ranks[depth][position]}, by transformers' "
                    f"logits {fewest} to {most}; nothing this run would measure holds"
                )


def hold_states(
    truth: StockTruth, label: str, line: TokenLine, first: int, ours: Mapping[int, Tensor]
) -> None:
    """Refuse hidden states of a line's rows from `first` on that are not the stock model's.

    `ours` [row, hidden] are by layers run; a layer that fewer rows have passed holds the first.
    The stock model's own noise is that of these rows and of those before them.
    """
    before, unit = min(first, FIRST), torch.finfo(truth.dtype).eps / 2
    found = truth.states(line, first - before)
    for layer, rows in ours.items():
        off, noise = gap(rows.cpu(), found.true[layer][before:][: len(rows)]), found.noise[layer]
        worst = int(off.argmax())
        apart = float(off[worst]) > WORST * float(noise.max()) + unit
        # A few rows have no mean to speak of.
        several = len(rows) >= FIRST // 2
        if apart or (several and float(off.mean()) > MEAN * float(noise.mean()) + unit):
            raise ExactnessError(
                f"{label} is not the model's: after {layer} layers the state of row "
                f"{first + worst} lies {float(off[worst]):.2g} of its length from what "
                f"transformers computes, whose own rounding is {float(noise.max()):.2g}; nothing "
                "this run would measure holds"
            )


def check_end_tokens(ours: frozenset[int], stock: frozenset[int]) -> None:
    """Refuse to end outputs at other tokens than the stock model declares."""
    if ours != stock:
        raise ExactnessError(
            f"outputs would end at tokens {sorted(ours)}, but the model declares {sorted(stock)}; "
            "nothing this run would measure holds"
        )


def check_ends(label: str, decoded: Decoded, limits: Limits, eos_ids: frozenset[int]) -> None:
    """Refuse an output that goes on after its end, or ends before it.

    `eos_ids` are those that the stock model declares.
    """
    output, finish = decoded.output_ids, decoded.finish
    early = next((i for i, token in enumerate(output[:-1]) if token in eos_ids), None)
    why = None
    if early is not None:
        why = f"goes on after the end token at position {early}"
    elif (output[-1] in eos_ids) != (finish == "eos"):
        why = f"ended by {finish!r} with token {output[-1]}"
    elif len(output) > limits.max_new_tokens:
        why = f"has {len(output)} tokens, {limits.max_new_tokens} were asked for"
    elif finish == "length" and len(output) < limits.max_new_tokens:
        why = f"ended after {len(output)} of {limits.max_new_tokens} tokens"
    if why is not None:
        raise ExactnessError(f"the output of {label} {why}; nothing this run would measure holds")


def check_greedy(baseline: Decoded) -> None:
    """Refuse a baseline that is anything but one token after another, one row a pass."""
    steps = len(baseline.output_ids) - 1
    if (
        len(baseline.step_ms) != steps
        or any(baseline.accepted)
        or any(rows != 1 for rows in baseline.rows)
    ):
        raise ExactnessError(
            "the baseline is not greedy decoding with one row a pass; nothing compared with it "
            "would hold"
        )
