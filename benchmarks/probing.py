"""The cost of probing every layer, against plain greedy decoding and against the obvious way.

The obvious way is `generate(output_hidden_states=True)` on stock transformers and a call of
the final norm and head per layer and step. All contenders decode the same prompts in one
process, in turns; printed are medians of rounds and their ratios.

    python -m benchmarks.probing [--model synthetic:llama-20m] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.decoding.sampling import Target, generator_for
from ppdbench.engine.loading import ModelSpec, load, load_stock
from ppdbench.engine.quiet import quiet
from ppdbench.engine.session import Session
from ppdbench.engine.vocabulary import ranks_of
from ppdbench.machine.clock import Clock
from ppdbench.probe.match import Prober

GREEDY = Target()


def obvious(stock: Any, prompt: list[int], n: int) -> list[list[int]]:
    """Ranks [layer][position] by generate() and a head call per layer and step."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = stock.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n,
            min_new_tokens=n,
            do_sample=False,
            output_hidden_states=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        ranks: list[list[int]] = [[] for _ in range(stock.config.num_hidden_layers)]
        for token, step in zip(out.sequences[0, len(prompt) :], out.hidden_states, strict=True):
            for layer, hidden in enumerate(step[1:]):
                # transformers hands the last one out with the norm applied.
                last = layer == len(ranks) - 1
                normed = hidden[:, -1] if last else stock.model.norm(hidden[:, -1])
                logits = stock.lm_head(normed)
                ranks[layer].append(int(ranks_of(logits, token[None])))
    return ranks


def resident(name: str) -> int:
    """Bytes that this process holds (VmRSS) or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def timed(work: Callable[[], Any]) -> float:
    """Seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="synthetic:llama-20m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    quiet()
    spec = ModelSpec(name=arguments.model, dtype=arguments.dtype)
    loaded = load(spec)
    stock, _ = load_stock(spec)
    n, rng = arguments.tokens, torch.Generator().manual_seed(0)
    prompts = torch.randint(3, 250, (arguments.batch, arguments.prompt), generator=rng).tolist()
    session = Session(loaded.staged, arguments.prompt + n)
    Path("/proc/self/clear_refs").write_text("5")  # start the high-water mark afresh
    before = resident("VmRSS")
    prober = Prober(loaded, range(1, loaded.staged.n_layers + 1), arguments.prompt + n)
    together = Prober(loaded, range(1, loaded.staged.n_layers + 1), arguments.prompt + n)
    clock = Clock(loaded.staged.device)

    def generators(k: int) -> list[torch.Generator]:
        return [generator_for(0, str(i)) for i in range(k)]

    contenders: dict[str, Callable[[], Any]] = {
        "greedy": lambda: autoregressive(session, Request(prompts[0], Limits(n), clock)),
        "probe, one by one": lambda: prober.probe(prompts[:1], n, GREEDY, generators(1)),
        f"probe, batch of {len(prompts)} (per sequence)": lambda: together.probe(
            prompts, n, GREEDY, generators(len(prompts))
        ),
    }
    share = dict.fromkeys(contenders, 1)
    share[f"probe, batch of {len(prompts)} (per sequence)"] = len(prompts)
    for work in contenders.values():
        work()
    peak = resident("VmHWM") - before
    contenders["obvious way"] = lambda: obvious(stock, prompts[0], n)
    share["obvious way"] = 1
    contenders["obvious way"]()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name, work in contenders.items():
            times[name].append(timed(work) / share[name])
    greedy = statistics.median(times["greedy"])
    print(f"{arguments.model} {arguments.dtype}, {n} tokens, medians of {arguments.rounds} rounds")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"  {name:34} {1e3 * median / n:8.3f} ms/token   {median / greedy:5.2f} x greedy")
    one = statistics.median(times["probe, one by one"])
    print(f"  obvious way / probe one by one: {statistics.median(times['obvious way']) / one:.2f}x")
    print(f"  memory above the model: {peak / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
