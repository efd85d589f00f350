"""Answers for a judge, in the file format of FastChat's MT-Bench: one line per question.

FastChat reads one file per model and takes its name for the model's, so that several methods
get a file each.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ppdbench.errors import ConfigError
from ppdbench.files import paths
from ppdbench.files.clean import clean
from ppdbench.files.whole import write_whole
from ppdbench.runs.records import DecodedSample, Decoding, FailedSample, Header, Sample
from ppdbench.stats import grouped
from ppdbench.tasks import load_task


def check_answers(path: str, tasks: Sequence[str]) -> None:
    """Refuse a file that could not be written, or a run that has no such answers."""
    paths.check_path(path, (".jsonl",), "answers")
    if len(tasks) != 1 or not load_task(tasks[0]).turns:
        raise ConfigError(
            "--answers is for one task whose questions have turns; use --task mt_bench alone"
        )


def write_fastchat_answers(
    path: str | Path, header: Header, samples: Iterable[Sample]
) -> dict[Path, int]:
    """Write each method's answers; the files, and how many questions each lacks."""
    path = Path(path)
    decoded = [s for s in samples if isinstance(s, DecodedSample | FailedSample)]
    groups = grouped(decoded, "method")
    lacking = {}
    for (label,), group in groups.items():
        name = f"{path.stem}-{clean(label, 'file name')}"
        place = path if len(groups) == 1 else path.with_stem(name)
        lines, lacking[place] = answers(header, label, group)
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_whole(place, clean(text, "json"))
    return lacking


def answers(
    header: Header, label: str, samples: Sequence[Decoding]
) -> tuple[list[dict[str, Any]], int]:
    """The lines of one method, by question, and how many questions lack a turn."""
    questions = grouped(sorted(samples, key=lambda sample: sample.turn or 1), "question")
    whole = {
        name: turns
        for (name,), turns in questions.items()
        if [t.turn for t in turns if isinstance(t, DecodedSample)] == _all(turns)
    }
    model = f"{header.model.name.rstrip('/').split('/')[-1]}-{label}"
    lines = [_line(header, model, name, turns) for name, turns in whole.items()]
    ordered = sorted(lines, key=lambda line: (str(type(line["question_id"])), line["question_id"]))
    return ordered, len(questions) - len(whole)


def _all(turns: Sequence[Decoding]) -> list[int]:
    return list(range(1, (turns[0].turns or 1) + 1))


def _line(header: Header, model: str, name: str, turns: Sequence[Decoding]) -> dict[str, Any]:
    texts = [turn.text.strip() for turn in turns if isinstance(turn, DecodedSample)]
    # Made of what it stands for, so that writing a run's answers again gives the same file.
    made_of = json.dumps([model, header.started, name, texts])
    return {
        "question_id": int(name) if name.isdecimal() else name,
        "answer_id": uuid.uuid5(uuid.NAMESPACE_URL, made_of).hex[:22],
        "model_id": model,
        "choices": [{"index": 0, "turns": texts}],
        "tstamp": datetime.fromisoformat(header.started).timestamp(),
    }
