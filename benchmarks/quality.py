"""The quality of what an instruct model answers, by how it was asked: scores in one table.

    python -m benchmarks.quality [--model smollm2] [--rows DIR] [--limit 16] [--dtype bfloat16]
        [--threads 1] [--work FOLDER] [--save FILE.json]

Each way of asking is greedy decoding of some examples, many at once; answers are kept in `--work`
and not made again. `--rows DIR` holds a folder of rows for each task, with the columns of its data
set (`gsm8k/test.jsonl`), `--rows hub` fetches the data sets; without it the examples of the package
are asked.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.answered import Answer, answers
from benchmarks.curve import this_machine
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.quiet import quiet
from ppdbench.files import resources
from ppdbench.files.whole import write_whole
from ppdbench.machine.environment import set_threads
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets
from ppdbench.runs.workload import RunConfig
from ppdbench.scoring import score, text
from ppdbench.stats import mean, ratio_of_totals, wilson
from ppdbench.tasks import ChatOptions

NAMED = ("builtin", "hub")  # rows that are no folder
AS_IT_IS = "as the task asks"
SHOWN = {
    "gsm8k": ("gsm8k_accuracy",),
    "squad": ("squad_f1", "squad_em"),
    "xsum": ("rouge2", "rougeL"),
    "cnn_dailymail": ("rouge2", "rougeL"),
}
COUNTED = frozenset({"gsm8k_accuracy", "squad_em"})  # an output is right or it is not


@dataclass(frozen=True, slots=True)
class AskedWay:
    """A task, and what its examples are asked with besides; or a prompt in place of the task's."""

    task: str
    how: str
    system: str | None = None
    shots: int = 0
    chat: str = "auto"
    prompt: str | None = None

    @property
    def file(self) -> str:
        """The name of the file of its answers."""
        return f"{self.task}-{self.how.replace(' ', '-').replace(',', '')}.json"

    @property
    def words(self) -> str:
        """The options of `ppdbench` that ask so."""
        chat = [] if self.chat == "auto" else ["--chat", self.chat]
        system = [] if self.system is None else ["--system", self.system]
        shots = ["--shots", str(self.shots)] if self.shots else []
        file = [] if self.prompt is None else [f"--task FILE, {self._prompt_text} in it"]
        return " ".join([*file, shlex.join([*chat, *system, *shots])]).strip()

    def task_option(self, folder: Path) -> str:
        """The task as `--task` takes it: its name, or a copy of its file with the prompt."""
        if self.prompt is None:
            return self.task
        file = folder / f"{Path(self.file).stem}.yaml"
        shipped = (resources.folder("tasks") / f"{self.task}.yaml").read_text(encoding="utf-8")
        lines = [
            self._prompt_text if line.startswith("prompt:") else line
            for line in shipped.splitlines()
        ]
        write_whole(file, "\n".join(lines) + "\n")
        return str(file)

    @property
    def _prompt_text(self) -> str:
        """The line of a task file that holds the prompt; a string of JSON is one of YAML."""
        return f"prompt_text: {json.dumps(self.prompt)}"


WAYS = (
    AskedWay("gsm8k", AS_IT_IS),
    AskedWay(
        "gsm8k", "step by step", "Solve the problem step by step and end with the final number."
    ),
    AskedWay("gsm8k", "the question alone", prompt="{{ question }}"),
    AskedWay("squad", AS_IT_IS),
    AskedWay("squad", "passage and question alone", prompt="{{ context }}\n\n{{ question }}"),
    AskedWay(
        "squad",
        "the question first",
        prompt="{{ question }}\n\n{{ context }}",
    ),
    AskedWay("squad", "briefly", "Answer in one to three words."),
    AskedWay(
        "squad",
        "for a name or a number",
        "Reply with only the answer: a name, a number, a date or a few words.",
    ),
    AskedWay(
        "squad",
        "by example",
        "Answers are a few words from the text, such as: Paris; 1945; the Roman Empire; "
        "12 million; William Shakespeare.",
    ),
    AskedWay("squad", "behind worked examples", shots=3),
    AskedWay("squad", "as plain text behind worked examples", shots=3, chat="off"),
    AskedWay("xsum", AS_IT_IS),
    AskedWay("xsum", "briefly", "Summarize news articles in one short sentence."),
    AskedWay("cnn_dailymail", AS_IT_IS),
)


def settings(asked: argparse.Namespace, way: AskedWay) -> RunConfig:
    """The options of a run that asks in a way."""
    rows = asked.rows if asked.rows in NAMED else f"{asked.rows}/{way.task}"
    return RunConfig(
        model=ModelSpec(
            name=asked.model, dtype=asked.dtype, device="cpu", offline=asked.rows != "hub"
        ),
        tasks=(way.task_option(asked.work),),
        data=rows,
        limit=asked.limit,
        max_new_tokens=asked.max_new_tokens,
        shots=way.shots,
        chat=ChatOptions(mode=way.chat, system=way.system),
    )


def answered(
    asked: argparse.Namespace, way: AskedWay, model: Callable[[], Loaded]
) -> dict[str, Any]:
    """The scores of a way of asking, and what came with them."""
    config, file = settings(asked, way), asked.work / way.file
    options = json.loads(json.dumps(asdict(config)))
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if kept.get("options") == options:
        made = [Answer(**each) for each in kept["answers"]]
    else:
        print(f"{way.task}: {way.how}", file=sys.stderr, flush=True)
        made = answers(model(), config)
        content = {"options": options, "answers": [asdict(each) for each in made]}
        write_whole(file, json.dumps(content, indent=1) + "\n")
    return {"task": way.task, "how": way.how, "words": way.words, **figures(way.task, made)}


def figures(task: str, made: Sequence[Answer]) -> dict[str, Any]:
    """The scores of each metric with their 95% intervals, and how outputs ended."""
    return {
        "outputs": len(made),
        "tokens": mean([float(len(each.output_ids)) for each in made]),
        "ended": sum(each.finish == "eos" for each in made),
        "scores": {name: _score(name, made) for name in SHOWN[task]},
        "named": _named(made) if task == "gsm8k" else None,
    }


def _score(metric: str, made: Sequence[Answer]) -> tuple[float, float, float]:
    """A metric's mean over answers, and where it lies with 95%."""
    found = [score([metric], [each.text], [each.references])[metric] for each in made]
    if metric in COUNTED:
        return mean(found), *wilson(sum(found), len(found))
    ratio = ratio_of_totals(found, [1.0] * len(found))
    low, high = (ratio.value if end is None else end for end in (ratio.low, ratio.high))
    return ratio.value, low, high


def _named(made: Sequence[Answer]) -> int:
    """Count the answers in which the right number stands anywhere."""
    right = [text.marked_number(each.references[0]) for each in made]
    return sum(n in text.numbers_in(each.text) for n, each in zip(right, made, strict=True))


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """The scores of every way of asking, and the words that ask so."""
    columns = ("task", "asked", "metric", "score", "95%", "outputs", "ended", "tokens")
    rows = tuple(
        (
            *(way["task"], way["how"], metric),
            *(value, f"{low:.3f}..{high:.3f}"),
            *(way["outputs"], way["ended"], way["tokens"]),
        )
        for way in content["ways"]
        for metric, (value, low, high) in way["scores"].items()
    )
    about = (
        f"{content['rows']}; ended: outputs that the model ended itself; tokens: of an output, "
        f"their mean. {content['machine']}.",
    )
    named = (
        f"Of {way['outputs']} outputs of {way['task']} ({way['how']}) {way['named']} name the "
        "right number anywhere."
        for way in content["ways"]
        if way["named"] is not None
    )
    asked = tuple(
        (way["task"], way["how"], way["words"]) for way in content["ways"] if way["words"]
    )
    title = f"Answers of {content['model']}, {content['dtype']}"
    return [
        Sheet(title, columns, rows, (*about, *named), digits={"score": 3, "tokens": 0}),
        Sheet("How they were asked", ("task", "asked", "with"), asked, prose="with"),
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Ask, score, show and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", default="builtin")
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--work", type=Path, default=Path("results/quality"))
    parser.add_argument("--save", type=Path, help="keep the scores, as .json")
    asked = parser.parse_args(words)
    quiet()
    set_threads(asked.threads)
    ways = list[dict[str, Any]]()
    content = {
        "model": asked.model,
        "dtype": asked.dtype,
        "rows": "Built-in rows" if asked.rows == "builtin" else "Rows of the data sets",
        "machine": this_machine(timed=False),
        "ways": ways,
    }
    model = cache(lambda: load(settings(asked, WAYS[0]).model))
    for way in WAYS:
        ways.append(answered(asked, way, model))
        if asked.save is not None:  # each time: one takes minutes
            write_whole(asked.save, json.dumps(content, indent=1) + "\n")
    print_sheets(sheets(content))


if __name__ == "__main__":
    main()
