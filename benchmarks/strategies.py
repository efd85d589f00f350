"""Our strategies against the same methods in transformers' `generate()`, whole calls timed.

    python -m benchmarks.strategies [--model synthetic:llama-20m,agree=0.9] [--draft-model M]

Medians over interleaved rounds of the time for all prompts, prefill included on both sides,
because `generate()` does not tell it apart. Beside each: whether the output is greedy's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ppdbench.bench.clock import Clock
from ppdbench.bench.environment import set_threads
from ppdbench.bench.stats import median
from ppdbench.decoding.identity import first_difference
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import GREEDY
from ppdbench.engine.loading import Loaded, ModelSpec, load, load_stock
from ppdbench.engine.quiet import quiet
from ppdbench.engine.session import Session
from ppdbench.strategies import method
from ppdbench.strategies.base import Setup
from ppdbench.workload import RunConfig, Workload, capacity

Decode = Callable[[list[int]], Sequence[int]]


def ours(loaded: Loaded, rows: int, n: int, name: str, **options: object) -> Decode:
    """A strategy of ours as a function from prompt to output."""
    strategy = method(name).build({key: str(value) for key, value in options.items()})
    decoder = strategy.prepare(Setup(loaded, rows))
    session = Session(loaded.staged, rows, spare=decoder.rows)
    clock, limits = Clock(loaded.staged.device), Limits(n, loaded.eos_ids)

    def decode(prompt: list[int]) -> Sequence[int]:
        return decoder.decode(session, prompt, limits, clock, GREEDY).output_ids

    return decode


def theirs(stock: Any, n: int, **options: object) -> Decode:
    """`generate()` with one of its assisted modes."""

    @torch.inference_mode()
    def decode(prompt: list[int]) -> Sequence[int]:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = stock.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=n, **options)
        new: list[int] = out[0, len(prompt) :].tolist()
        return new

    return decode


def constant_drafts(stock: Any, length: int) -> None:
    """Drafts of a fixed length, as ours have."""
    stock.generation_config.num_assistant_tokens = length
    stock.generation_config.num_assistant_tokens_schedule = "constant"
    stock.generation_config.assistant_confidence_threshold = 0.0


def pairs(
    arguments: argparse.Namespace, loaded: Loaded, stock: Any, rows: int
) -> dict[str, tuple[Decode, Decode]]:
    """Ours and theirs under one name."""
    n = arguments.new_tokens
    found = {"greedy": (ours(loaded, rows, n, "greedy"), theirs(stock, n))}
    layers = loaded.staged.n_layers
    for exit_layer in sorted({layers // 4, layers // 2}):
        for length in (4, 8):
            mine = ours(loaded, rows, n, "layerskip", exit_layer=exit_layer, draft_length=length)
            peer = with_length(stock, length, theirs(stock, n, assistant_early_exit=exit_layer))
            found[f"layerskip E={exit_layer} d={length}"] = (mine, peer)
    lookup = ours(loaded, rows, n, "prompt-lookup", longest_suffix=2, max_draft=8)
    found["prompt-lookup"] = (lookup, theirs(stock, n, prompt_lookup_num_tokens=8))
    if arguments.draft_model:
        name = arguments.draft_model
        draft, _ = load_stock(ModelSpec(name=name, dtype=arguments.dtype, device="cpu"))
        mine = ours(loaded, rows, n, "speculative", draft_model=name, draft_length=4)
        constant_drafts(draft, 4)
        found["speculative d=4"] = (mine, theirs(stock, n, assistant_model=draft))
    return found


def with_length(stock: Any, length: int, decode: Decode) -> Decode:
    """The same call with another draft length, which `generate()` reads off the model."""

    def decode_so(prompt: list[int]) -> Sequence[int]:
        constant_drafts(stock, length)
        return decode(prompt)

    return decode_so


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="synthetic:llama-20m,agree=0.9")
    parser.add_argument("--draft-model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--task", default="gsm8k")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    quiet()
    set_threads(arguments.threads)
    spec = ModelSpec(name=arguments.model, dtype=arguments.dtype, device="cpu")
    config = RunConfig(
        model=spec,
        tasks=(arguments.task,),
        data="builtin",
        limit=arguments.prompts,
        max_new_tokens=arguments.new_tokens,
    )
    loaded = load(spec)
    items = Workload.read(config).encode(loaded)
    prompts = [item.ids for item in items]
    stock, _ = load_stock(spec)
    contenders = pairs(arguments, loaded, stock, capacity(items))
    truth = {True: contenders["greedy"][0], False: contenders["greedy"][1]}
    greedy = {side: [list(decode(p)) for p in prompts] for side, decode in truth.items()}
    times: dict[tuple[str, bool], list[float]] = {}
    same: dict[tuple[str, bool], int] = {}
    for number in range(arguments.rounds + 1):
        for name, (mine, peer) in contenders.items():
            both = [(True, mine), (False, peer)]
            for side, decode in both if number % 2 else both[::-1]:
                start = time.perf_counter()
                outputs = [list(decode(p)) for p in prompts]
                if number:
                    times.setdefault((name, side), []).append(time.perf_counter() - start)
                pairs_of = zip(outputs, greedy[side], strict=True)
                same[name, side] = sum(first_difference(a, b) is None for a, b in pairs_of)
    tokens = sum(len(output) for output in greedy[True])
    print(f"{arguments.model} {arguments.dtype}, {len(prompts)} prompts, {tokens} tokens")
    print(f"{'':24} {'ours tok/s':>11} {'theirs':>9} {'ratio':>6} {'range':>13}  greedy's output")
    for name in contenders:
        mine, peer = times[name, True], times[name, False]
        ratios = [b / a for a, b in zip(mine, peer, strict=True)]
        counts = (
            f"{same[name, True]}/{len(prompts)} ours, {same[name, False]}/{len(prompts)} theirs"
        )
        print(
            f"{name:24} {tokens / median(mine):11.1f} {tokens / median(peer):9.1f} "
            f"{median(ratios):6.2f} {min(ratios):6.2f}-{max(ratios):.2f}  {counts}"
        )


if __name__ == "__main__":
    main()
