"""The time that the jobs of a showcase take: said before the first, corrected by each that is done.

What is decoded is known before: examples, tokens at most, methods. What a token takes was measured
with SmolLM2 on two quiet cores (docs/cpu.md), so the first estimate is of that; every finished job
says how much longer or shorter this machine and these answers take.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.showcase.plan import ShowcaseAsked, ShowcaseJob
from ppdbench.files.resources import builtin_data
from ppdbench.tables.recipe import RecipeStep
from ppdbench.tables.steps import methods_left
from ppdbench.tasks import load_task

TOKEN_S = {"float32": 0.027, "bfloat16": 0.016}  # greedy decoding, prompts included
PEER_S = {"float32": 0.053, "bfloat16": 0.05}  # a token of transformers' generate()
PEERS = 4  # of them beside every method of a bench
GREEDY = 2  # times that greedy decodes what a method does, to know its own noise
PROBED = 1.5  # tokens that one takes whose layers are all ranked
TRAINED_S = 900.0  # 120 steps of the recipes that train
STARTED_S = 15.0  # a process, its libraries, the model, its checks


@dataclass(slots=True)
class JobPace:
    """Seconds expected of jobs, by what those before them took."""

    asked: ShowcaseAsked
    expected_s: float = 0.0  # of what is done
    taken_s: float = 0.0
    factor: float = field(default=1.0)

    def estimate_s(self, jobs: Iterable[ShowcaseJob]) -> float:
        """About how long these jobs take."""
        return self.factor * sum(expected_s(job, self.asked) for job in jobs)

    def learn(self, expected_s: float, taken_s: float) -> None:
        """Take in how long a job took for which so long was expected before it."""
        self.expected_s += expected_s
        self.taken_s += taken_s
        self.factor = self.taken_s / self.expected_s


def expected_s(job: ShowcaseJob, asked: ShowcaseAsked) -> float:
    """Seconds that a job takes on two quiet cores, at most if answers end early."""
    return sum(STARTED_S + _working_s(step, job.dtype, asked) for step in job.recipe)


def _working_s(step: RecipeStep, dtype: str, asked: ShowcaseAsked) -> float:
    """Seconds at work on examples, as if every output had full length, or in training."""
    if not step.works_on_examples:
        return TRAINED_S
    words, place = shlex.split(step.command), asked.place(dtype)
    tasks, methods = _values(words, "--task"), methods_left(step, place)
    tokens = sum(examples(task, asked) * length(task, words, asked) for task in tasks)
    token_s, peer_s = (of.get(dtype, of["float32"]) for of in (TOKEN_S, PEER_S))
    if words[0] == "probe":
        return PROBED * token_s * tokens * max(1, len(_values(words, "--target")))
    begins = len(methods) == len(_values(words, "--method"))
    peers = PEERS if "--against" in words and begins else 0
    return tokens * (token_s * (GREEDY + len(methods)) + peer_s * peers)


def examples(task: str, asked: ShowcaseAsked) -> int:
    """The builtin examples of a task that are used."""
    files = (builtin_data() / task).glob("*.jsonl")
    there = sum(len(file.read_text("utf-8").splitlines()) for file in files)
    return min(there, asked.limit or there)


def length(task: str, words: Sequence[str], asked: ShowcaseAsked) -> int:
    """The tokens that an answer has at most."""
    own = [int(value) for value in _values(words, "--max-new-tokens")]
    return asked.tokens or min(own, default=load_task(task).max_new_tokens)


def _values(words: Sequence[str], option: str) -> list[str]:
    return [value for word, value in pairwise(words) if word == option]


def in_words(seconds: float) -> str:
    """A time as people say it."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
