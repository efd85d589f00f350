"""Every method under sampling, held against the model's own probabilities: p-values in one table.

    python -m benchmarks.sampled [--model reference] [--dtype float32] [--draws 3000]
        [--tokens 8] [--method NAME ...] [--setting NAME ...] [--work FOLDER] [--save FILE.json]

What `ppdbench bench --verify-distribution` finds for two ways to cut the distribution at two
temperatures, and for a third whose probabilities depend on the text. Draws are kept in --work: a
run that is interrupted goes on. Settings and methods may be drawn one by one: FILE.json keeps those
that it has. Takes a minute or two for each method and setting on the embedded model, several on
SmolLM2.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ppdbench.bench.drawing import LENGTH
from ppdbench.files.whole import write_whole
from ppdbench.report.export import emit
from ppdbench.report.faithful_tables import p_value
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
    "min-p 0.05, penalty 1.3": (
        *("--target", "min-p", "--min-p", "0.05"),
        *("--repetition-penalty", "1.3"),
    ),
}
WITHOUT_TEXT = ("ppd",)  # its unit that picks tokens does not know what text they follow
ANYWHERE = (
    *("greedy", "prompt-lookup", "layerskip", "layerskip:drawn=False", "draft-verify"),
    *("lookahead", "jacobi", "ppd", "early-exit"),
)
GUESSING = ("medusa", "eagle", "eagle:drawn=False", "hybrid")  # whose parts both models come with
# Methods that need parts of the embedded model, and those of transformers, which decode one
# output after another.
EMBEDDED_ALONE = (
    *("speculative:draft_model=reference-draft", "rest:datastore=reference"),
    *("hidden-transfer", "prompt-tokens"),
    *("transformers:greedy", "transformers:prompt-lookup", "transformers:early-exit"),
    "transformers:assistant:draft_model=reference-draft",
)
USUAL = {
    "reference": (*ANYWHERE, *GUESSING, *EMBEDDED_ALONE),
    "smollm2": (*ANYWHERE, *GUESSING, "rest:datastore=smollm2"),
}


def tested(asked: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return the verdicts of each setting, method by method."""
    methods = asked.method or USUAL.get(asked.model, ANYWHERE)
    found = {}
    for setting in asked.setting or SETTINGS:
        print(f"{asked.model}, {setting}", file=sys.stderr, flush=True)
        found[setting] = _of_setting(asked, methods, SETTINGS[setting], setting)
    return found


def _of_setting(
    asked: argparse.Namespace, methods: Sequence[str], words: Sequence[str], setting: str
) -> list[dict[str, Any]]:
    if "--repetition-penalty" in words:
        methods = [method for method in methods if method not in WITHOUT_TEXT]
    folder = asked.work / setting.replace(", ", "-").replace(" ", "-")
    command = ["bench", "--offline", "--model", asked.model, "--dtype", asked.dtype]
    command += ["--data", "builtin", "--task", "gsm8k", *words]
    command += [word for method in methods for word in ("--method", method)]
    command += ["--verify-distribution", "--draws", str(asked.draws), "--format", "json"]
    command += ["--max-new-tokens", str(asked.tokens)]
    command += ["--out", str(folder), *(["--resume"] if folder.exists() else [])]
    done = subprocess.run(
        [sys.executable, "-m", "ppdbench", *command], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    found = json.loads(done.stdout)
    return found if isinstance(found, list) else [found]  # of one method it is that method's own


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """A table with a row for each method, a column for each setting."""
    settings: Mapping[str, Any] = content["settings"]
    found = {name: {row["method"]: row for row in own} for name, own in settings.items()}
    rows = []
    for label in dict.fromkeys(label for own in found.values() for label in own):
        own = [found[name].get(label) for name in settings]
        told = [row for row in own if row is not None]
        power = min(row["power_at_0_02"] for row in told)
        high = max(row["total_variation_high"] for row in told)
        shown = [None if row is None else _shown(row) for row in own]
        rows.append((label, *shown, f"{high:.3f}", f"{power:.0%}"))
    head = ("method", *settings, "total variation at most", "power")
    notes = (
        f"{content['draws']} outputs of {content['tokens']} tokens each; p, in brackets that of "
        "the first outputs where new ones decided, and the verdict where it is not `faithful`. "
        "Total variation: the highest upper end of its intervals. Power: the lowest, to find a "
        "total variation of 0.02. "
        f"{content['versions']}.",
    )
    return [
        Sheet(f"Drawn outputs of {content['model']}, {content['dtype']}", head, tuple(rows), notes)
    ]


def _shown(row: Mapping[str, Any]) -> str:
    verdict = "" if row["faithful"] == "faithful" else f" {row['faithful']}"
    return f"{p_value(row)}{verdict}"


def joined(content: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """Join what was found with whatever the file it goes to holds and was not drawn anew."""
    if path is None or not path.exists():
        return content
    before = json.loads(path.read_text(encoding="utf-8"))
    for name in ("model", "dtype", "draws", "tokens", "versions"):
        if before[name] != content[name]:
            raise SystemExit(
                f"sampled: {path} has {name} {before[name]}, these draws {content[name]}; "
                "name another file, or delete it"
            )
    settings = {}
    for name in dict.fromkeys((*SETTINGS, *content["settings"])):
        rows = _by_method(before, name) | _by_method(content, name)
        if rows:
            settings[name] = [*rows.values()]
    return {**content, "settings": settings}


def _by_method(content: Mapping[str, Any], setting: str) -> dict[str, Any]:
    return {row["method"]: row for row in content["settings"].get(setting, ())}


def _versions() -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))


def main() -> None:
    """Draw, judge, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="reference")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--draws", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=LENGTH, help="of an output")
    parser.add_argument("--method", action="append", help="these alone")
    parser.add_argument("--setting", action="append", choices=[*SETTINGS], help="these alone")
    parser.add_argument("--work", type=Path, default=Path("results/sampled"))
    parser.add_argument("--save", type=Path, help="keep the figures, as .json, beside its others")
    asked = parser.parse_args()
    content = {
        "model": asked.model,
        "dtype": asked.dtype,
        "draws": asked.draws,
        "tokens": asked.tokens,
        "versions": _versions(),
        "settings": tested(asked),
    }
    content = joined(content, asked.save)
    emit(sheets(content), None, "markdown")
    if asked.save is not None:
        write_whole(asked.save, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
