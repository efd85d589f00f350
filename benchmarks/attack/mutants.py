"""Bugs planted in the package, which is then run as a command and has to find out itself.

Nothing clean is beside it: the mutated engine makes the baseline, decodes and judges, and the check
of a model's reading at load, which would refuse most bugs, is left out. Survived means that a bug
which changes outputs ends with exit code 1, and one that changes times withholds the speedup.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attack.base import AttackKind, Attempt
from benchmarks.attack.forks import Forked

Plant = Callable[[], None]

OUTPUTS = (
    *("bench", "--offline", "--threads", "1", "--dtype", "float32", "--task", "gsm8k"),
    *("--method", "layerskip", "--method", "prompt-lookup", "--method", "medusa"),
    *("--method", "jacobi", "--limit", "2", "--max-new-tokens", "24", "--warmup", "1"),
    *("--compile", "off", "--no-family-check", "--format", "json"),
)
ENDS = (
    *("bench", "--offline", "--threads", "1", "--task", "topv2", "--method", "layerskip"),
    *("--limit", "4", "--max-new-tokens", "48", "--warmup", "1", "--compile", "off"),
    *("--no-family-check", "--format", "json"),
)
TIMES = (
    *("bench", "--offline", "--threads", "1", "--task", "gsm8k", "--method", "layerskip"),
    *("--limit", "6", "--max-new-tokens", "16", "--warmup", "1", "--compile", "off"),
    *("--format", "json"),
)


GUESSES = (
    *("probe", "--offline", "--threads", "1", "--task", "gsm8k", "--limit", "1"),
    *("--max-new-tokens", "16", "--method", "hidden-transfer", "--no-family-check"),
    *("--format", "json", "--what"),
)
DRAFTS = (*GUESSES, "drafts", "--method", "prompt-tokens", "--method", "medusa")
SIMILARITY = (*GUESSES, "similarity")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug: what is changed, whether it changes outputs or only times, and in which passes.

    Those of flat passes are planted behind the checks at load, which would refuse them: it is the
    stock model that has to find them.
    """

    plant: Plant
    words: Sequence[str] = OUTPUTS
    changes_outputs: bool = True
    passes: str = "eager"


MUTANTS: list[Mutant] = []


def outputs(plant: Plant) -> Plant:
    """Register a bug that changes outputs."""
    MUTANTS.append(Mutant(plant))
    return plant


def flat(plant: Plant) -> Plant:
    """Register a bug that changes what flat passes give."""
    MUTANTS.append(Mutant(plant, passes="flat"))
    return plant


def drafts(plant: Plant) -> Plant:
    """Register a bug that changes how often guesses are found right."""
    MUTANTS.append(Mutant(plant, DRAFTS))
    return plant


def similarity(plant: Plant) -> Plant:
    """Register a bug that changes how close states are found to lie."""
    MUTANTS.append(Mutant(plant, SIMILARITY))
    return plant


def times(plant: Plant) -> Plant:
    """Register a bug that changes times alone."""
    MUTANTS.append(Mutant(plant, TIMES, changes_outputs=False))
    return plant


def _settle(passes: str) -> None:
    """Have all passes run this way, whatever is faster here and whatever checks would say."""
    from ppdbench.engine.flat import choice
    from ppdbench.engine.flat.library import Unavailable

    def missing(dtype: Any) -> Any:
        raise Unavailable("left out")

    if passes == "eager":
        vars(choice)["library"] = missing
        return
    vars(choice)["measure"] = lambda *_: []
    for check in ("compare", "compare_readout"):
        setattr(choice.Trial, check, lambda *_: None)


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


# Positions


@outputs
def chains_stand_one_place_too_far() -> None:
    from ppdbench.engine.masks import StepMaker

    def made(real: Any) -> Any:
        def chain(self: Any, start: int, n_query: int) -> Any:
            step = real(self, start, n_query)
            if n_query > 1:
                step.placed, step.contiguous = step.positions + 1, False
            return step

        return chain

    _wrap(StepMaker, "chain", made)


@outputs
def single_rows_stand_one_place_too_far() -> None:
    """Move single rows on both sides, so that outputs are identical."""
    from ppdbench.engine.masks import StepMaker

    def made(real: Any) -> Any:
        def chain(self: Any, start: int, n_query: int) -> Any:
            step = real(self, start, n_query)
            step.placed, step.contiguous = step.positions + 1, False
            return step

        return chain

    _wrap(StepMaker, "chain", made)


@outputs
def nodes_of_trees_stand_one_place_too_deep() -> None:
    from ppdbench.engine.masks import StepMaker

    def made(real: Any) -> Any:
        def tree(self: Any, start: int, *more: Any) -> Any:
            step = real(self, start, *more)
            # A copy: steps share what they are made of. The newest token stays where it is.
            step.placed = torch.where(step.positions > start, step.positions + 1, start)
            return step

        return tree

    import torch

    _wrap(StepMaker, "tree", made)


@outputs
def prompts_begin_at_position_one() -> None:
    from ppdbench.engine.masks import StepMaker

    def made(real: Any) -> Any:
        def prefill(self: Any, n_query: int) -> Any:
            step = real(self, n_query)
            step.placed, step.contiguous = step.positions + 1, False
            return step

        return prefill

    _wrap(StepMaker, "prefill", made)


# Attention and masks


def _attend(change: Callable[..., dict[str, Any]]) -> None:
    from ppdbench.engine import attention

    real = attention.attend

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
        given = {"query": query, "key": key, "value": value, "attention_mask": mask, **more}
        given |= change(module, **given)
        names = ("query", "key", "value", "attention_mask")
        return real(module, *(given.pop(name) for name in names), **given)

    attention.attend = attend  # type: ignore[assignment]


@outputs
def masked_attention_is_scaled_by_two_percent() -> None:
    _attend(
        lambda _, query, attention_mask, **__: (
            {} if attention_mask is None else {"query": query * 1.02}
        )
    )


@outputs
def all_attention_is_scaled_by_two_percent() -> None:
    _attend(lambda _, query, **__: {"query": query * 1.02})


@outputs
def heads_read_the_keys_of_another_group() -> None:
    _attend(lambda _, key, value, **__: {"key": key.flip(1), "value": value.flip(1)})


@outputs
def values_of_the_newest_row_are_forgotten() -> None:
    def change(_: Any, query: Any, value: Any, **__: Any) -> dict[str, Any]:
        if query.shape[2] < 2:
            return {}
        value = value.clone()
        value[:, :, -1] = 0
        return {"value": value}

    _attend(change)


@outputs
def a_chain_sees_one_row_ahead() -> None:
    from ppdbench.engine.masks import StepMaker

    def made(real: Any) -> Any:
        def below(self: Any, start: int, n: int) -> Any:
            seen = real(self, start, n).clone()
            for row in range(n - 1):
                seen[:, row, start + row + 1] = True
            return seen

        return below

    _wrap(StepMaker, "_triangle", made)


@outputs
def nodes_see_their_siblings() -> None:
    from ppdbench.engine.masks import StepMaker

    def made(real: Any) -> Any:
        def tree(self: Any, start: int, *more: Any) -> Any:
            step = real(self, start, *more)
            visible = step.visible.clone()
            n = step.n_query
            visible[:, :, start:] = visible.new_ones(n, n).tril()
            return replace(step, visible=visible)

        return tree

    _wrap(StepMaker, "tree", made)


@outputs
def the_first_key_is_never_seen_by_chains() -> None:
    from ppdbench.engine.masks import StepMaker

    def made(real: Any) -> Any:
        def below(self: Any, start: int, n: int) -> Any:
            seen = real(self, start, n).clone()
            seen[:, :, 0] = False
            return seen

        return below

    _wrap(StepMaker, "_triangle", made)


# The cache


@outputs
def the_first_rows_of_a_tree_are_kept() -> None:
    from ppdbench.engine.cache import KVCache

    def made(real: Any) -> Any:
        def keep(self: Any, base: int, rows: Sequence[int], *more: Any) -> None:
            real(self, base, list(range(len(rows))), *more)

        return keep

    _wrap(KVCache, "keep", made)


@outputs
def one_row_too_few_is_kept() -> None:
    from ppdbench.engine.cache import KVCache

    def made(real: Any) -> Any:
        def keep(self: Any, base: int, rows: Sequence[int], *more: Any) -> None:
            real(self, base, rows, *more)
            if len(rows) > 1:
                self._move(base, base + len(rows) - 1, self.layers)

        return keep

    _wrap(KVCache, "keep", made)


@outputs
def keys_are_written_into_the_row_before() -> None:
    from ppdbench.engine.cache import KVCache

    def made(real: Any) -> Any:
        def update(self: Any, key: Any, value: Any, layer: int, *more: Any, **named: Any) -> Any:
            found = real(self, key, value, layer, *more, **named)
            step = self._step
            if step.n_query > 1 and step.start > 0:
                self._keys[layer][:, :, step.start - 1] = key[:, :, 0]
            return found

        return update

    _wrap(KVCache, "update", made)


# Layers, norms, the head


@outputs
def the_last_layer_is_left_out() -> None:
    from ppdbench.engine.staged import StagedModel

    def made(real: Any) -> Any:
        def pass_over(self: Any, hidden: Any, start: int, stop: int, *more: Any) -> Any:
            return real(self, hidden, start, min(stop, self.n_layers - 1), *more)

        return pass_over

    _wrap(StagedModel, "pass_over", made)


@outputs
def a_layer_of_wide_passes_runs_twice() -> None:
    from ppdbench.engine.adapters import Adapter

    def made(real: Any) -> Any:
        def call_layer(self: Any, index: int, hidden: Any, *more: Any) -> Any:
            out = real(self, index, hidden, *more)
            return real(self, index, out, *more) if index == 3 and hidden.shape[1] > 1 else out

        return call_layer

    _wrap(Adapter, "call_layer", made)


@outputs
def the_final_norm_is_forgotten() -> None:
    from ppdbench.engine.adapters import Adapter

    Adapter.norm = lambda self, hidden: hidden  # type: ignore[method-assign]


@outputs
def the_tail_of_packed_products_is_lost() -> None:
    from ppdbench.engine.packing import PackedLinear

    def made(real: Any) -> Any:
        def forward(self: Any, x: Any) -> Any:
            out = real(self, x).clone()
            out[..., -1] = 0
            return out

        return forward

    _wrap(PackedLinear, "forward", made)


@outputs
def one_logit_too_high() -> None:
    from ppdbench.engine.adapters import Adapter

    def made(real: Any) -> Any:
        def cap(self: Any, logits: Any) -> Any:
            logits = real(self, logits).clone()
            logits[..., 300] += 3
            return logits

        return cap

    _wrap(Adapter, "cap", made)


# Verification, choice and ends


@outputs
def the_first_wrong_draft_is_accepted() -> None:
    from ppdbench.decoding import loop, verify

    real = verify.accept_greedy

    def accept(draft: Any, predictions: Sequence[int]) -> verify.Outcome:
        outcome = real(draft, predictions)
        kept = min(len(outcome.path) + 1, len(draft.tokens))
        return verify.Outcome(tuple(range(kept)), predictions[kept])

    loop.accept_greedy = accept  # type: ignore[attr-defined]


@outputs
def everything_is_accepted() -> None:
    from ppdbench.decoding import loop, verify

    def accept(draft: Any, predictions: Sequence[int]) -> verify.Outcome:
        n = 0 if draft.parents is not None else len(draft.tokens)
        return verify.Outcome(tuple(range(n)), predictions[n])

    loop.accept_greedy = accept  # type: ignore[attr-defined]


@outputs
def the_bonus_token_is_dropped() -> None:
    from ppdbench.decoding import loop

    real = loop.commit
    loop.commit = lambda output, new, limits: real(output, new[:-1] or new, limits)


@outputs
def the_second_likeliest_token_is_chosen() -> None:
    from ppdbench.engine import reading

    def second(logits: Any) -> Any:
        return logits.topk(2, dim=-1).indices[..., 1]

    reading.most_likely = second


@outputs
def no_end_token_is_known() -> None:
    """Go on behind the end on both sides."""
    import dataclasses

    from ppdbench.runs import running

    real = vars(running)["load"]

    def load(*given: Any, **more: Any) -> Any:
        return dataclasses.replace(real(*given, **more), eos_ids=frozenset())

    vars(running)["load"] = load


def drafts_go_on_behind_the_end() -> None:
    from ppdbench.decoding import loop
    from ppdbench.decoding.limits import Finish, Limits

    def commit(output: list[int], new: Sequence[int], limits: Limits) -> tuple[int, Finish | None]:
        output += new
        return len(new), limits.finish(output)

    loop.commit = commit


MUTANTS.append(Mutant(drafts_go_on_behind_the_end, ENDS))


@outputs
def outputs_end_one_token_early() -> None:
    from ppdbench.decoding.limits import Limits

    def made(real: Any) -> Any:
        def finish(self: Any, output: Sequence[int]) -> Any:
            return "length" if len(output) >= self.max_new_tokens - 1 else real(self, output)

        return finish

    _wrap(Limits, "finish", made)


@outputs
def a_method_is_compared_with_itself() -> None:
    from ppdbench.bench.interleaved import Interleaved

    def made(real: Any) -> Any:
        def greedy(self: Any, item: Any, label: str, session: Any) -> Any:
            ours = self._attempt(item, self.methods[0])
            return real(self, item, label, session) if isinstance(ours, str) else ours

        return greedy

    _wrap(Interleaved, "_greedy", made)


# Flat passes


def _turned(change: Callable[[Any, Any], Any]) -> None:
    """Change the cosines and sines of flat passes."""
    from ppdbench.engine.flat.passes import FlatLayers

    def made(real: Any) -> Any:
        return lambda self, step: change(real(self, step), step)

    _wrap(FlatLayers, "_turns", made)


@flat
def rows_of_flat_passes_change_places() -> None:
    from ppdbench.engine.flat.ops import Turns

    def moved(turns: Any, step: Any) -> Any:
        places = step.positions[0].roll(1)
        return Turns([(cos[places], sin[places]) for cos, sin in turns.tables], whole=False)

    _turned(moved)


@flat
def all_rows_of_flat_passes_are_turned_too_long() -> None:
    from ppdbench.engine.flat.ops import Turns

    def longer(turns: Any, _: Any) -> Any:
        tables = [(1.02 * cos, 1.02 * sin) for cos, sin in turns.tables]
        return Turns(tables, whole=turns.whole)

    _turned(longer)


@flat
def flat_trees_are_run_as_chains() -> None:
    from ppdbench.engine.flat.passes import FlatLayers

    def made(real: Any) -> Any:
        def passes(self: Any, step: Any, cache: Any) -> Any:
            chain = step if step.sights is None else replace(step, sights=None)
            return real(self, chain, cache)

        return passes

    _wrap(FlatLayers, "_made", made)


@flat
def the_newest_row_of_wide_flat_passes_is_not_stored() -> None:
    from ppdbench.engine.flat import ops, passes

    def pass_of(start: int, slots: Any, *more: Any, **named: Any) -> Any:
        kept = np.array(slots)
        if len(kept) > 1:
            kept[-1] = ops.NOT_STORED
        return ops.Pass(start, kept, *more, **named)

    vars(passes)["Pass"] = pass_of


@flat
def flat_passes_name_the_second_likeliest_token() -> None:
    from ppdbench.engine.flat.passes import FlatPasses, FlatReadout
    from ppdbench.engine.reading import Reading

    def second(found: Any) -> Any:
        second = found.logits.topk(2, dim=-1).indices[..., 1]
        return Reading(found.logits, second, found.peaks)

    def made(real: Any) -> Any:
        return lambda self, hidden: second(real(self, hidden))

    def both(real: Any) -> Any:
        return lambda *given: [(states, second(found)) for states, found in real(*given)]

    _wrap(FlatReadout, "read", made)
    _wrap(FlatPasses, "run_and_read", both)


# What guesses are made of


def _behind(change: Callable[[Any], Any]) -> None:
    """Change the passes over rows that are no tokens."""
    from ppdbench.engine import masks
    from ppdbench.methods.hidden_transfer import network as hidden_transfer
    from ppdbench.methods.prompt_tokens import network as prompt_tokens

    real = masks.behind

    def behind(*given: Any) -> Any:
        return change(real(*given))

    vars(hidden_transfer)["behind"] = vars(prompt_tokens)["behind"] = behind


@drafts
def rows_behind_a_text_stand_one_place_too_near() -> None:
    _behind(lambda step: replace(step, placed=step.positions - 1))


@similarity
def rows_behind_a_text_do_not_see_each_other() -> None:
    def change(step: Any) -> Any:
        visible, n = step.visible.clone(), step.n_query
        visible[:, :, -n:] = visible.new_ones(n, n).tril().triu()
        return replace(step, visible=visible)

    _behind(change)


@similarity
def states_are_read_one_layer_too_low() -> None:
    from ppdbench.engine.session import Session

    def made(real: Any) -> Any:
        def run_prompt(self: Any, *, tap: Any = None) -> Any:
            seen: dict[int, Any] = {}
            out = real(self, tap=seen.__setitem__)
            for layer in seen if tap is not None else ():
                tap(layer, seen[max(1, layer - 1)])
            return out

        return run_prompt

    _wrap(Session, "run_prompt", made)


@drafts
def attention_of_every_probe_is_scaled() -> None:
    _attend(lambda _, query, **__: {"query": query * 1.02})


# Times


class _Frozen:
    """A clock that stands still for as long as somebody holds it."""

    held_s = 0.0


def _unseen(owner: Any, name: str) -> None:
    """Take what `owner.name` needs out of every clock's time."""
    from time import perf_counter

    from ppdbench.machine.clock import Clock

    def made(real: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            began = perf_counter()
            try:
                return real(*given, **named)
            finally:
                _Frozen.held_s += perf_counter() - began

        return call

    _wrap(owner, name, made)
    _wrap(Clock, "now", lambda real: lambda self: real(self) - _Frozen.held_s)


@times
def drafting_is_not_timed() -> None:
    from ppdbench.methods.layerskip.strategy import SelfSpeculation

    _unseen(SelfSpeculation, "propose")


@times
def verification_is_not_timed() -> None:
    from ppdbench.decoding.loop import Verifier

    _unseen(Verifier, "verify")


def _slow_and_unseen(name: str) -> None:
    """Let a method take long for what is soon done, and take that out of every clock's time."""
    from time import sleep

    from ppdbench.methods.layerskip.strategy import SelfSpeculation

    def made(real: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            sleep(0.02)
            return real(*given, **named)

        return call

    _wrap(SelfSpeculation, name, made)
    _unseen(SelfSpeculation, name)


@times
def the_start_of_a_method_is_not_timed() -> None:
    _slow_and_unseen("start")


@times
def learning_is_not_timed() -> None:
    _slow_and_unseen("learn")


@times
def the_prefill_is_counted_into_the_first_step() -> None:
    from ppdbench.decoding import loop
    from ppdbench.decoding.decoder import Proposer

    def shifted(real: Any) -> Any:
        def decode(*given: Any, **named: Any) -> Any:
            found = real(*given, **named)
            moved = found.prefill_ms
            first, *others = found.steps
            steps = (replace(first, ms=first.ms + moved), *others)
            return replace(found, prefill_ms=0.0, steps=steps)

        return decode

    from ppdbench.bench import interleaved

    interleaved.autoregressive = shifted(loop.autoregressive)  # type: ignore[attr-defined]
    _wrap(Proposer, "decode", shifted)


def _slower(found: Any, factor: float) -> Any:
    """Give the same output with other times of its steps."""
    return replace(found, steps=tuple(replace(s, ms=factor * s.ms) for s in found.steps))


@times
def steps_of_the_method_are_halved() -> None:
    from ppdbench.decoding.decoder import Proposer

    def made(real: Any) -> Any:
        def decode(*given: Any, **named: Any) -> Any:
            return _slower(real(*given, **named), 1 / 2)

        return decode

    _wrap(Proposer, "decode", made)


@times
def steps_of_the_baseline_count_twice() -> None:
    from ppdbench.bench import interleaved

    def made(real: Any) -> Any:
        def greedy(*given: Any, **named: Any) -> Any:
            return _slower(real(*given, **named), 2)

        return greedy

    _wrap(interleaved, "autoregressive", made)


def _attempts(short: bool) -> Iterator[Attempt]:

    chosen = MUTANTS[::6] if short else MUTANTS
    for mutant in chosen:
        yield Attempt(mutant.plant.__name__, partial(survived, mutant))


def survived(mutant: Mutant, place: Path) -> str | None:
    """Run the command with the bug; the reason if nobody finds it."""

    def before() -> None:
        mutant.plant()
        _settle(mutant.passes)

    said = Forked([*mutant.words, "--out", str(place / "run")], place, before=before).wait()
    if mutant.changes_outputs:
        return None if said.code == 1 else f"exit code {said.code}: {said.last[:200]}"
    if said.code == 1:
        return None
    if said.code != 0:
        return f"exit code {said.code}: {said.last[:200]}"
    rows = json.loads(said.out)
    claimed = [row["speedup"] for row in rows if row["speedup"] is not None]
    return f"speedups {claimed} were printed" if claimed else None


KIND = AttackKind("planted bugs", _attempts)
