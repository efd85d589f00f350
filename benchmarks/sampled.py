"""Every method under sampling, held against the model's own probabilities: p-values in one table.

    python -m benchmarks.sampled [--model reference] [--draws 3000] [--method NAME ...]
        [--work FOLDER] [--save FILE.json]

What `ppdbench bench --verify-distribution` finds for two ways to cut the distribution at two
temperatures. Draws are kept in --work: a run that is interrupted goes on. Takes a minute or two
for each method and setting on the embedded model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ppdbench.files.whole import write_whole
from ppdbench.report.export import emit
from ppdbench.report.sheet import Sheet

SETTINGS = {
    "top-p 0.9, temperature 1": ("--target", "top-p", "--top-p", "0.9"),
    "top-p 0.9, temperature 0.6": (
        *("--target", "top-p", "--top-p", "0.9"),
        *("--temperature", "0.6"),
    ),
    "top-k 20, temperature 1": ("--target", "top-k", "--top-k", "20"),
    "top-k 20, temperature 0.6": (
        *("--target", "top-k", "--top-k", "20"),
        *("--temperature", "0.6"),
    ),
}
ANYWHERE = (
    *("greedy", "prompt-lookup", "layerskip", "layerskip:drawn=False", "draft-verify"),
    *("lookahead", "jacobi", "early-exit"),
    *("transformers:greedy", "transformers:prompt-lookup", "transformers:early-exit"),
)
WITH_PARTS = (
    *("speculative:draft_model=reference-draft", "rest:datastore=reference", "medusa"),
    *("hidden-transfer", "prompt-tokens", "eagle", "eagle:drawn=False"),
)


def tested(asked: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return the verdicts of each setting, method by method."""
    usual = ANYWHERE + (WITH_PARTS if asked.model == "reference" else ())
    methods = asked.method or usual
    found = {}
    for setting, words in SETTINGS.items():
        print(f"{asked.model}, {setting}", file=sys.stderr, flush=True)
        found[setting] = _of_setting(asked, methods, words, setting)
    return found


def _of_setting(
    asked: argparse.Namespace, methods: Sequence[str], words: Sequence[str], setting: str
) -> list[dict[str, Any]]:
    folder = asked.work / setting.replace(", ", "-").replace(" ", "-")
    command = ["bench", "--offline", "--model", asked.model, "--task", "gsm8k", *words]
    command += [word for method in methods for word in ("--method", method)]
    command += ["--verify-distribution", "--draws", str(asked.draws), "--format", "json"]
    command += ["--out", str(folder), *(["--resume"] if folder.exists() else [])]
    done = subprocess.run(
        [sys.executable, "-m", "ppdbench", *command], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """A table with a row for each method, a column for each setting."""
    settings: Mapping[str, Any] = content["settings"]
    labels = [row["method"] for row in next(iter(settings.values()))]
    rows = []
    for number, label in enumerate(labels):
        own = [rows_of[number] for rows_of in settings.values()]
        power = min(row["power_at_0_02"] for row in own)
        high = max(row["total_variation_high"] for row in own)
        shown = [_shown(row) for row in own]
        rows.append((label, *shown, f"{high:.3f}", f"{power:.0%}"))
    head = ("method", *settings, "total variation at most", "power")
    notes = (
        f"{content['draws']} outputs of 4 tokens each; p, and the verdict where it is not "
        "`faithful`. Total variation: the highest upper end of the four intervals. Power: the "
        f"lowest, to find a total variation of 0.02. {content['versions']}.",
    )
    return [Sheet(f"Drawn outputs of {content['model']}", head, tuple(rows), notes)]


def _shown(row: Mapping[str, Any]) -> str:
    verdict = "" if row["faithful"] == "faithful" else f" {row['faithful']}"
    return f"{row['p_value']:.2g}{verdict}"


def _versions() -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))


def main() -> None:
    """Draw, judge, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="reference")
    parser.add_argument("--draws", type=int, default=3000)
    parser.add_argument("--method", action="append", help="these alone")
    parser.add_argument("--work", type=Path, default=Path("results/sampled"))
    parser.add_argument("--save", type=Path, help="keep the figures, as .json")
    asked = parser.parse_args()
    content = {
        "model": asked.model,
        "draws": asked.draws,
        "versions": _versions(),
        "settings": tested(asked),
    }
    emit(sheets(content), None, "markdown")
    if asked.save is not None:
        write_whole(asked.save, json.dumps(content, indent=1) + "\n", make_folder=True)


if __name__ == "__main__":
    main()
