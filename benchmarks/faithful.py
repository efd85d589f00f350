"""The test of faithfulness itself: its false alarms, and planted bugs that it has to find.

    python -m benchmarks.faithful --runs 200 --out results/faithful/planted.json

Outputs are drawn from a made-up model over a small vocabulary, so that thousands of them take
seconds: plainly for the alarms, through drafted trees and a rule with one mistake for the bugs.
The rule is the package's own, with one of its lines changed.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ppdbench.bench.faithful import ALARM, DrawnOutputs, Floats, Prefix, following
from ppdbench.decoding import verify
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.decoding.verify import Outcome, accept_sampled
from ppdbench.files.whole import write_whole
from ppdbench.report.export import emit
from ppdbench.report.sheet import Sheet

VOCAB, LENGTH, OUTPUTS = 100, 4, 3000
PARENTS = (-1, -1, 0, 0, 1)  # of the drafted trees
TARGET = Target(kind="top-p", top_p=0.95, temperature=0.7)

Rule = Callable[..., Outcome]

KEPT = "uniform(generator) * likely < float(p[here].sum()) * whole"
LEFT = "p.sub(source, alpha=1 / whole).clamp_(min=0)"
RESIDUAL = f"p = _scaled({LEFT}, or_else=p)"
# What was written, and what is in its place.
SLIPS = {
    "the test is reversed": (KEPT, "uniform(generator) * float(p[here].sum()) * whole < likely"),
    "everything is kept": (KEPT, "True"),
    "the residual is forgotten": (RESIDUAL, "pass"),
    "the residual is not scaled": (RESIDUAL, f"r = {LEFT}; p = r if float(r.sum()) else p"),
    "a sibling's q stays as it was": ("q[token : token + 1] = shared[here] = 0", "pass"),
    "q of the wrong row": ("families.index(row - 1)", "-1 - families.index(row - 1)"),
    "p of the wrong row": ("logits[row]", "logits[0]"),
}


def slipped(change: str) -> dict[str, Any]:
    """The names of `verify` with one line of the rule changed."""
    was, now = SLIPS[change]
    source = inspect.getsource(accept_sampled)
    if source.count(was) != 1:
        raise ValueError(f"{change}: the rule does not hold {was!r} once")
    names = dict(vars(verify))
    flags = __import__("__future__").annotations.compiler_flag
    exec(compile(source.replace(was, now), change, "exec", flags), names)
    return names


def one_side_without_temperature(
    draft: Draft, logits: Tensor, target: Target, *rest: Any
) -> Outcome:
    """The rule with a temperature that drafts and plain draws alone know."""
    return accept_sampled(draft, logits, Target(kind="top-p", top_p=target.top_p), *rest)


def rules() -> dict[str, Rule]:
    """Every planted bug by its name."""
    found: dict[str, Rule] = {name: slipped(name)["accept_sampled"] for name in SLIPS}
    found["temperature on one side"] = one_side_without_temperature
    return found


@lru_cache(maxsize=50_000)
def logits_after(prefix: Prefix, seed: int = 0) -> Tensor:
    """The model, made up; another seed is what drafts."""
    number = seed + sum((token + 1) * 131**place for place, token in enumerate(prefix, 1))
    shared = torch.randn(VOCAB, generator=torch.Generator().manual_seed(number % (1 << 62)))
    own = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed + 7))
    return 2.5 * shared if not seed else 2.2 * logits_after(prefix) / 2.5 + own


@lru_cache(maxsize=50_000)
def probabilities(prefix: Prefix) -> Floats:
    """The exact ones, as the test takes them."""
    row: Floats = TARGET.distribution(logits_after(prefix)[None])[0].double().numpy()
    return row


def drafted(prefix: Prefix, chooser: Chooser) -> Draft:
    """A tree whose tokens are drawn by the drafting model, family by family."""
    tokens: list[int] = []
    texts = [prefix]
    rows = []
    for parent in sorted(set(PARENTS)):
        count = PARENTS.count(parent)
        drawn, source = chooser.draw_siblings(logits_after(texts[1 + parent], 1)[None], count)
        rows.append(source[0])
        for token in drawn[0].tolist():
            tokens.append(token)
            texts.append((*texts[1 + parent], token))
    return Draft.tree(tokens, PARENTS, probabilities=torch.stack(rows))


def output(chooser: Chooser, rule: Rule, *, reuse: bool = False) -> Prefix:
    """One output through drafts; `reuse` takes the same random numbers at every step."""
    made: Prefix = ()
    state = chooser.generator.get_state()
    while len(made) < LENGTH:
        if reuse:
            chooser.generator.set_state(state)
        draft = drafted(made, chooser)
        texts = [made]
        for token, parent in zip(draft.tokens, draft.lineage, strict=True):
            texts.append((*texts[1 + parent], token))
        rows = torch.stack([logits_after(text) for text in texts])
        outcome = rule(draft, rows, TARGET, chooser.generator, made)
        made = (*made, *(draft.tokens[node] for node in outcome.path), outcome.token)
    return made[:LENGTH]


def p_value(outputs: Sequence[Prefix]) -> float:
    """The verdict's p of some outputs."""
    after, drawn = following(outputs), DrawnOutputs()

    def rows() -> Iterator[tuple[Prefix, Floats]]:
        yield from ((prefix, probabilities(prefix)) for prefix in after)

    drawn.add("made up", after, rows())
    return drawn.p_value()


def plain(run: int) -> list[Prefix]:
    """Outputs of plain sampling: prefixes are drawn from together, which changes nothing."""
    generator = generator_for(run, "plain")
    made: list[Prefix] = [()] * OUTPUTS
    for _ in range(LENGTH):
        places: dict[Prefix, list[int]] = {}
        for place, prefix in enumerate(made):
            places.setdefault(prefix, []).append(place)
        for prefix, same in places.items():
            p = torch.from_numpy(probabilities(prefix))
            tokens = torch.multinomial(p, len(same), True, generator=generator).tolist()
            for place, token in zip(same, tokens, strict=True):
                made[place] = (*prefix, token)
    return made


def false_alarms(runs: int) -> dict[str, Any]:
    """Count the runs of plain sampling that are called unfaithful to itself."""
    found = [p_value(plain(run)) for run in range(runs)]
    return {"runs": runs, "unfaithful": sum(p < ALARM for p in found), "smallest_p": min(found)}


def planted() -> Mapping[str, float]:
    """p of the exact rule and of each bug."""

    def drawn(name: str, rule: Rule, *, reuse: bool = False) -> float:
        chooser = Chooser(TARGET, generator_for(0, name))
        return p_value([output(chooser, rule, reuse=reuse) for _ in range(OUTPUTS)])

    found = {"none": drawn("none", accept_sampled)}
    found |= {name: drawn(name, rule) for name, rule in rules().items()}
    found["the generator is reused"] = drawn("reused", accept_sampled, reuse=True)
    return found


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """A row for each planted bug."""
    alarms, planted = content["false_alarms"], content["planted"]
    rows = [
        (bug, f"{p:.2g}", "refused" if p < ALARM else "not refused") for bug, p in planted.items()
    ]
    notes = (
        f"p of {content['outputs']} outputs of {content['tokens']} tokens over "
        f"{content['vocabulary']} words, drafted as trees whose siblings are drawn.",
        f"Plain sampling against its own probabilities: {alarms['unfaithful']} of {alarms['runs']} "
        f"runs refused, smallest p {alarms['smallest_p']:.2g}.",
    )
    return [Sheet("Planted mistakes", ("mistake", "p", "verdict"), tuple(rows), notes)]


def main() -> None:
    """Measure both, show them and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    content = {
        "outputs": OUTPUTS,
        "tokens": LENGTH,
        "vocabulary": VOCAB,
        "planted": planted(),
        "false_alarms": false_alarms(asked.runs),
    }
    emit(sheets(content), None, "markdown")
    if asked.out is not None:
        write_whole(asked.out, json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
