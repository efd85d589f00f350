"""Greedy answers beside those of plain transformers code, token by token.

The plain way: the model and the tokenizer as `from_pretrained` loads them, from a GGUF file too,
the tokenizer's own chat template, and `generate()` without drawing, one prompt after another. An
answer is the same if all of its tokens are, its end included. What the file that `--save` names
holds already is not asked again.

    python -m benchmarks.plain_answers --model smollm2 [--task gsm8k] [--rows DIR] [--limit 16]
        [--dtype float32] [--threads 1] [--save FILE.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.answered import Answer, answers
from benchmarks.curve import this_machine
from benchmarks.plain_ranks import plain_model
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.quiet import quiet
from ppdbench.files.whole import write_whole
from ppdbench.machine.environment import set_threads
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets
from ppdbench.runs.workload import RunConfig
from ppdbench.scoring import score
from ppdbench.stats import mean
from ppdbench.tasks import load_task

SIDES = ("ours", "plain")


def beside(ours: Answer, model: Any, tokenizer: Any, config: RunConfig) -> dict[str, Any]:
    """An answer beside the one that plain code gives."""
    task = load_task(config.tasks[0])
    prompt, chat = encoded(tokenizer, ours.prompt)
    output = generated(model, prompt, config.new_tokens(task))
    text = tokenizer.decode(output, skip_special_tokens=True)
    for stop in task.chat_stop if chat else task.stop:
        text = text.partition(stop)[0]
    # Plain code knows no stop strings, so that it goes on behind them.
    same = output[: len(ours.output_ids)] if ours.finish == "stop" else output
    return {
        "example": ours.example_id,
        "tokens": len(ours.output_ids),
        "same_prompt": prompt == ours.prompt_ids,
        "same_answer": same == ours.output_ids,
        "ours": score(task.metrics, [ours.text], [ours.references]),
        "plain": score(task.metrics, [text], [ours.references]),
    }


def encoded(tokenizer: Any, text: str) -> tuple[list[int], bool]:
    """The tokens of a prompt, through the tokenizer's template if it has one."""
    if tokenizer.chat_template is None:
        return list(tokenizer(text)["input_ids"]), False
    found = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
    )
    return list(found["input_ids"]), True


def generated(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    """The tokens that `generate()` puts behind a prompt, up to and including an end."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
    )
    return list(out[0, len(prompt) :].tolist())


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """A row for each metric: how many answers are the same, and what they score."""
    found = content["examples"]
    counts = (
        len(found),
        sum(each["tokens"] for each in found),
        sum(each["same_prompt"] for each in found),
        sum(each["same_answer"] for each in found),
    )
    rows = tuple(
        (content["task"], *counts, metric, *(_mean(found, who, metric) for who in SIDES))
        for metric in found[0]["ours"]
    )
    columns = ("task", "answers", "tokens", "same prompts", "same answers", "metric", *SIDES)
    notes = (f"{content['dtype']}, {content['rows']}; {content['machine']}.",)
    title = f"Answers of {content['model']} by plain code"
    return [Sheet(title, columns, rows, notes, digits=dict.fromkeys(SIDES, 3))]


def _mean(found: Sequence[Mapping[str, Any]], who: str, metric: str) -> float:
    return mean([float(each[who][metric]) for each in found])


def is_wrong(content: Mapping[str, Any]) -> bool:
    """True if plain code asks or answers otherwise anywhere."""
    return not all(each["same_prompt"] and each["same_answer"] for each in content["examples"])


def _stored(path: Path | None, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read the examples that a file holds of what is asked; none where there is no such file."""
    if path is None or not path.exists():
        return []
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    examples: list[dict[str, Any]] = content.pop("examples")
    return examples if content == asked else []


def main(words: Sequence[str] | None = None) -> int:
    """Answer both ways, show and keep what came of it; 1 where anything differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_answers", description=__doc__)
    parser.add_argument("--model", default="reference")
    parser.add_argument("--task", default="gsm8k")
    parser.add_argument("--rows", default="builtin", help="as --data of ppdbench")
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--save", type=Path, help="keep what came of it, as .json")
    asked = parser.parse_args(words)
    quiet()
    set_threads(asked.threads)
    spec = ModelSpec(name=asked.model, dtype=asked.dtype, device="cpu")
    config = RunConfig(
        model=spec,
        tasks=(asked.task,),
        data=asked.rows,
        limit=asked.limit,
        max_new_tokens=asked.max_new_tokens,
    )
    content: dict[str, Any] = {
        "model": asked.model,
        "task": asked.task,
        "dtype": asked.dtype,
        "rows": "built-in rows" if asked.rows == "builtin" else "rows of the data set",
        "machine": this_machine(timed=False),
    }
    examples = _stored(asked.save, content)
    done = {each["example"] for each in examples}
    ours = answers(load(spec), config)
    missing = [one for one in ours if one.example_id not in done]
    model, tokenizer = plain_model(spec) if missing else (None, None)
    for one in missing:
        examples.append(beside(one, model, tokenizer, config))
        print(f"{len(examples)} of {len(ours)}: {examples[-1]}", flush=True)
        if asked.save is not None:  # each time: an answer takes many seconds
            kept = json.dumps({**content, "examples": examples}, indent=1) + "\n"
            write_whole(asked.save, kept)
    content["examples"] = examples
    print_sheets(sheets(content))
    return int(is_wrong(content))


if __name__ == "__main__":
    raise SystemExit(main())
