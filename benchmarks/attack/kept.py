"""Damaged files that people keep beside runs: baselines, trees, calibrations, trained parts, ...

An attempt is survived if the command ends with 2 and one line that names the file, or ends as
with the sound file: few of these have checksums, and a number may be another number.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.attack.base import AttackKind, Attempt, CommandEnd, spread
from benchmarks.attack.forks import forked
from benchmarks.attack.records import DAMAGES, MODEL, Damage
from ppdbench.files.resources import reference_model

LONG, SHORT = 520, 16
PATIENCE_S = 90.0
ASKED = ["--data", "builtin", "--task", "squad", "--limit", "1", "--max-new-tokens", "4"]
LINES = ("twice", "swapped", "cut_at_a_line")  # of files that have some


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file to hurt, in a copy of the place that `make` fills, and who reads it."""

    file: str
    words: tuple[str, ...]
    make: Callable[[Path], None]


def _baseline(place: Path) -> None:
    run = ["bench", "--model", MODEL, *ASKED[:-4], "--limit", "5", "--max-new-tokens", "8"]
    _done([*run, "--method", "jacobi", "--out", str(place / "run")], place)
    _done(["check", str(place / "run"), "--baseline", str(place / "kept.json"), "--update"], place)


def _calibration(place: Path) -> None:
    shutil.copy(reference_model("medusa") / "calibration.json", place / "kept.json")


def _tree(place: Path) -> None:
    shutil.copy(reference_model("medusa") / "tree.json", place / "kept.json")


def _dynamic_tree(place: Path) -> None:
    calibration = reference_model("prompt-tokens") / "calibration.json"
    words = ["tree", "build", "--calibration", str(calibration), "--size", "12"]
    _done([*words, "--out", str(place / "kept.json")], place)


def _latency(place: Path) -> None:
    from ppdbench.trees.latency import Latency, PassTime

    passes = tuple(PassTime(rows, 0.01 * rows, 0.009 * rows, 0.011 * rows) for rows in (1, 4, 8))
    facts: dict[str, Any] = {"model": "reference", "weight_hash": "0", "dtype": "float32"}
    made = Latency(
        synthetic=False, threads=1, context=256, rounds=3, passes=passes, device="cpu", **facts
    )
    made.save(place / "kept.json")


def _part(name: str, place: Path) -> None:
    """A part trained for the reference model, with the record of its training."""
    shutil.copytree(reference_model(name), place / "part")
    record = reference_model("heads") / "training.json"
    if name != "heads":
        shutil.copy(record, place / "part" / "training.json")


def _skips(place: Path) -> None:
    text = '{\n  "reference": {\n    "attention": [1, 3],\n    "mlp": [2]\n  }\n}\n'
    (place / "kept.json").write_text(text, "utf-8")


def _training(place: Path) -> None:
    words = [f"{n} bottles hang on wall {n % 7}" for n in range(400)]
    (place / "text.txt").write_text("\n\n".join(words), "utf-8")
    filled = [word.replace("SOUND", str(place)).replace("PLACE", str(place)) for word in TRAIN]
    _done([word for word in filled if word != "--resume"], place)


def _done(words: Sequence[str], place: Path) -> None:
    said = forked(words, place / "said")
    assert said.code == 0, said.err


def _decoding(method: str, option: str) -> tuple[str, ...]:
    return ("decode", *ASKED, "--method", method, "--set", option, "--format", "json")


SHOW = ("tree", "show", "PLACE/kept.json", "--format", "json")
BUILD = ("tree", "build", "--out", "PLACE/tree.json", "--format", "json", "--calibration")
MEDUSA = str(reference_model("medusa") / "calibration.json")
TRAIN: tuple[str, ...] = ("train", "heads", "--model", MODEL, "--steps", "4", "--batch-size", "2")
TRAIN += ("--sequence", "16", "--layers", "2", "--checkpoint-every", "2", "--resume")
TRAIN += ("--text", "SOUND/text.txt", "--out", "PLACE/run")
FILES: dict[str, KeptFile] = {
    "baseline": KeptFile(
        "kept.json", ("check", "PLACE/run", "--baseline", "PLACE/kept.json"), _baseline
    ),
    "calibration": KeptFile("kept.json", (*BUILD, "PLACE/kept.json", "--size", "8"), _calibration),
    "tree": KeptFile("kept.json", SHOW, _tree),
    "dynamic tree": KeptFile("kept.json", SHOW, _dynamic_tree),
    "latency": KeptFile("kept.json", (*BUILD, MEDUSA, "--latency", "PLACE/kept.json"), _latency),
    "skips": KeptFile("kept.json", _decoding("draft-verify", "skip=PLACE/kept.json"), _skips),
    "datastore": KeptFile(
        "part/datastore.json",
        _decoding("rest", "datastore=PLACE/part"),
        partial(_part, "datastore"),
    ),
    "heads": KeptFile(
        "part/heads.json",
        ("probe", *ASKED, "--head", "PLACE/part", "--format", "json"),
        partial(_part, "heads"),
    ),
    "training of a part": KeptFile(
        "part/training.json",
        _decoding("medusa", "addon=PLACE/part"),
        partial(_part, "medusa"),
    ),
    "training": KeptFile("run/training.json", TRAIN, _training),
    "training log": KeptFile("run/train.jsonl", TRAIN, _training),
    "stamp": KeptFile("run/tokens.json", TRAIN, _training),
}
for _name in ("medusa", "eagle", "hidden-transfer", "prompt-tokens"):
    FILES[_name] = KeptFile(
        "part/addon.json", _decoding(_name, "addon=PLACE/part"), partial(_part, _name)
    )


@cache
def sound(name: str) -> Path:
    """A place with the sound file."""
    place = Path(tempfile.mkdtemp(prefix="kept-"))
    FILES[name].make(place)
    return place


def said_of(name: str, place: Path, hurt: Callable[[Path], None]) -> CommandEnd:
    """Run the command on a copy of the file that was hurt."""
    kept, copy = FILES[name], place / "copy"
    shutil.copytree(sound(name), copy)
    hurt(copy / kept.file)
    places = {"PLACE": str(copy), "SOUND": str(sound(name))}
    words = [re.sub("PLACE|SOUND", lambda found: places[found[0]], word) for word in kept.words]
    if words[0] in ("decode", "probe"):
        words += ["--out", str(place / "out")]
    return forked(words, place / "said", PATIENCE_S)


def attempt(name: str, damage: Damage, seed: int, place: Path) -> str | None:
    """Hurt a copy and judge what the command makes of it."""
    said = said_of(name, place, lambda path: damage(path, random.Random(seed)))
    if "unexpected" in said.err or "Traceback" in said.err or said.code == 99:
        return said.last
    if said.code in (0, 1):
        return None
    errors = [line for line in said.err.splitlines() if line.startswith("ppdbench:")]
    if said.code != 2 or len(errors) != 1:
        return f"exit code {said.code} with {len(errors)} error lines: {said.last}"
    # A file that is gone may be missed by the name of its folder.
    named = any(word in errors[0] for word in (Path(FILES[name].file).name, str(place)))
    return None if named else f"names no file: {errors[0]}"


def attempts(short: bool) -> list[Attempt]:
    """The same ones each time: every file in turn, with every damage."""
    names = list(FILES)
    made = []
    for number in range(LONG):
        name, (what, damage) = names[number % len(names)], DAMAGES[number // 2 % len(DAMAGES)]
        if what in LINES and not FILES[name].file.endswith(".jsonl"):
            what, damage = DAMAGES[2]
        run = partial(attempt, name, damage, number)
        made.append(Attempt(f"{name} {what} ({number})", run))
    return list(spread(made, SHORT)) if short else made


KIND = AttackKind("damaged files", attempts)
