"""Prompts to train drafters of instruct models on: training rows, asked as the tasks ask them.

    python -m benchmarks.prompts DATA FILE.jsonl [--limit 1650] [--held-out OTHER.jsonl]

DATA is `hub`, or a folder with training splits of tasks as `--data` takes it: `gsm8k/train.jsonl`.
Beside `gsm8k`, `cnn_dailymail` and `topv2` a folder may have `corpus/`, texts with one question,
instruction, sentence or passage a paragraph, which stand for other tasks. Nothing is read that a
task is scored on. Kinds are mixed evenly, in an order that the seed gives; one in sixteen is held
out.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path

import jinja2

from ppdbench.files.resources import folder
from ppdbench.tasks import build_examples, load_rows, load_task, task_names

# Longer passages would be most of what is read, and of what a prompt may have.
PASSAGE = 1200  # characters
FEWEST = 200
HUB = "hub"
HELD_OUT = 16


def kinds(data: str, most: int) -> Iterator[Iterator[str]]:
    """Prompts by kind, `most` of a kind where there may be any number."""
    if (Path(data) / "corpus").is_dir():
        yield from _with_corpus(Path(data))
    else:
        yield from _of_tasks(data, most)


def _of_tasks(data: str, most: int) -> Iterator[Iterator[str]]:
    """Prompts of the rows that tasks have apart from those that they are scored on."""
    for task in map(load_task, task_names()):
        split = task.shots_split
        place = Path(data) / task.name
        if split is None or (data != HUB and not any(place.glob(f"{split}.*"))):
            continue
        rows = load_rows(task, data, split=split, limit=most, offline=False)
        yield (example.prompt.text for example in build_examples(task, rows))


def _with_corpus(data: Path) -> Iterator[Iterator[str]]:
    corpus = data / "corpus"
    yield (_asked("gsm8k", question=row["question"]) for row in _rows(data / "gsm8k"))
    yield _instructions(corpus)
    yield from (_with_context(corpus / f"{name}.txt") for name in ("qa_boolq", "qa_qed"))
    yield _questions(corpus)
    yield _programs(corpus / "code_mbpp.txt")
    yield chain(
        *(
            (_asked("wmt_en_fr", source_sentence=found) for found in _field(file, "English"))
            for file in (corpus / "enfr_tatoeba.txt", corpus / "enfr_tico19.txt")
        )
    )
    news = list(_passages(corpus / "news_digital_gov.txt"))
    articles = [row["article"][:PASSAGE] for row in _rows(data / "cnn_dailymail")]
    yield (_asked("cnn_dailymail", context=text) for text in [*articles, *news[::2]])
    yield (_asked("xsum", document=text) for text in news[1::2])
    yield (_asked("topv2", utterance=row["utterance"]) for row in _rows(data / "topv2"))


def _asked(task: str, **fields: str) -> str:
    template = (folder("prompts") / f"{task}.jinja").read_text("utf-8")
    return jinja2.Environment().from_string(template).render(fields)


def _rows(place: Path) -> Iterator[dict[str, str]]:
    with (place / "train.jsonl").open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _paragraphs(file: Path) -> list[str]:
    return re.split(r"\n\s*\n", file.read_text("utf-8"))


def _field(file: Path, name: str) -> Iterator[str]:
    found = re.findall(rf"^{name}: (.+)$", file.read_text("utf-8"), re.MULTILINE)
    yield from map(str, found)


def _passages(file: Path) -> Iterator[str]:
    return (text[:PASSAGE] for text in _paragraphs(file) if len(text) > FEWEST)


def _instructions(corpus: Path) -> Iterator[str]:
    for name in ("instruct_dolly_part", "instruct_seed_tasks"):
        for text in _paragraphs(corpus / f"{name}.txt"):
            if found := re.match(r"Instruction: (.+?)(?:\nInput: (.+?))?\nResponse:", text, re.S):
                yield _asked("alpaca", instruction=found[1], input=found[2] or "")


def _with_context(file: Path) -> Iterator[str]:
    for text in _paragraphs(file):
        if found := re.match(r"Context: (.+?)\nQuestion: (.+?)\n", text, re.S):
            yield _asked("squad", context=found[1][:PASSAGE], question=found[2])


def _questions(corpus: Path) -> Iterator[str]:
    return chain(
        _field(corpus / "qa_strategyqa.txt", "Question"),
        _field(corpus / "qa_nq_open.txt", "Question"),
    )


def _programs(file: Path) -> Iterator[str]:
    for text in _paragraphs(file):
        if found := re.match(r'"""(.+?)"""\n(?:import .+\n)*(def .+:)', text):
            yield _asked("humaneval", prompt=f'{found[2]}\n    """{found[1]}"""\n')


def main() -> None:
    """Write the prompts, one a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("file", type=Path)
    parser.add_argument("--limit", type=int, default=1650)
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    mixed = []
    for kind in kinds(given.data, given.limit):
        texts = sorted(set(kind))
        draw.shuffle(texts)
        mixed.append(texts)
        print(f"{len(texts):6} such as {texts[0][:60]!r}")
    if not mixed:
        parser.error(f"no training split of a task in {given.data}; use hub, or a folder of them")
    asked = [text for row in zip_longest(*mixed) for text in row if text is not None]
    asked = asked[: given.limit]
    if given.held_out is not None:
        write(asked[::HELD_OUT], given.held_out)
        del asked[::HELD_OUT]
    write(asked, given.file)


def write(texts: list[str], file: Path) -> None:
    """Write prompts, one a line."""
    lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    file.write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main()
