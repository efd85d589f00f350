"""Damaged run folders, through every command that reads one.

An attempt is survived if the command ends as it does with the sound run and says the same; or
says what it left out; or ends with 2 and one line that names the file. Runs with checksums and
without, as earlier versions wrote them, are hurt alike: of the latter it is said that they have
none.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.attack.base import AttackKind, Attempt, CommandEnd, spread
from benchmarks.attack.forks import forked

LONG, SHORT = 640, 40
PATIENCE_S = 60.0
HEADER, LINES = "run.json", "samples.jsonl"
MODEL = "synthetic:layers=4,hidden=32,heads=2,vocab=300"
SMALL = ["--model", MODEL, "--data", "builtin", "--task", "squad", "--max-new-tokens", "8"]
SMALL += ["--limit", "5"]
MADE: dict[str, list[str]] = {
    "bench": ["bench", *SMALL, "--method", "jacobi", "--method", "layerskip"],
    "probe": ["probe", *SMALL, "--target", "greedy", "--target", "top-p"],
    "sweep": ["sweep", *SMALL, "--method", "layerskip", "--grid", "draft_length=2,4"],
}
SHOWN: dict[str, list[list[str]]] = {
    "bench": [
        ["report", "RUN", "--format", "json"],
        ["report", "RUN", "--out", "PLACE/page.html"],
        ["check", "RUN", "--baseline", "SOUND", "--format", "json"],
        ["check", "SOUND", "--baseline", "RUN", "--format", "json"],
        [*MADE["bench"], "--out", "RUN", "--resume", "--format", "json"],
    ],
    "probe": [
        ["theory", "--run", "RUN", "--format", "json"],
        ["report", "RUN", "--format", "json"],
        ["report", "RUN", "--out", "PLACE/page.html"],
        ["check", "RUN", "--baseline", "SOUND", "--format", "json"],
        ["table", "ppd/1", "RUN", "--format", "json"],
        [*MADE["probe"], "--out", "RUN", "--resume", "--format", "json"],
    ],
    "sweep": [
        ["sweep", "--show", "RUN", "--format", "json"],
        ["report", "RUN", "--format", "json"],
        ["report", "RUN", "--out", "PLACE/page.html"],
    ],
}
# What commands say where they leave something out, or cannot know whether it is sound.
NAMED = ("incomplete", "no checksums", "unfinished", "not finished", "done again")

Damage = Callable[[Path, random.Random], None]


# Damage to bytes


def cut_anywhere(path: Path, draw: random.Random) -> None:
    """The end of the file is lost."""
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content))])


def cut_at_a_line(path: Path, draw: random.Random) -> None:
    """The last lines are lost, and half of one."""
    lines = path.read_bytes().splitlines(keepends=True)
    kept = draw.randrange(len(lines))
    path.write_bytes(b"".join(lines[:kept]) + lines[kept][: draw.randrange(1, len(lines[kept]))])


def flip(path: Path, draw: random.Random) -> None:
    """One bit is another."""
    content = bytearray(path.read_bytes())
    bit = draw.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def overwrite(path: Path, draw: random.Random) -> None:
    """Overwrite some bytes."""
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content))
    content[at : at + 16] = draw.choice([bytes(16), draw.randbytes(16), b"\xff" * 16])
    path.write_bytes(bytes(content))


def empty(path: Path, draw: random.Random) -> None:
    """Leave nothing."""
    path.write_bytes(b"")


def folder_instead(path: Path, draw: random.Random) -> None:
    """A folder has its name."""
    path.unlink()
    path.mkdir()


def gone(path: Path, draw: random.Random) -> None:
    """Take it away."""
    path.unlink()


def deep(path: Path, draw: random.Random) -> None:
    """Brackets without end."""
    _replace_line(path, draw, b"[" * 100_000 + b"\n")


def no_object(path: Path, draw: random.Random) -> None:
    """JSON, but no object."""
    _replace_line(path, draw, draw.choice([b"[]", b"17", b"null", b'"text"', b"{}"]) + b"\n")


def twice(path: Path, draw: random.Random) -> None:
    """A line stands there twice."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines)), draw.choice(lines))
    path.write_bytes(b"".join(lines))


def swapped(path: Path, draw: random.Random) -> None:
    """Two lines have changed places."""
    lines = path.read_bytes().splitlines(keepends=True)
    one, other = draw.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    path.write_bytes(b"".join(lines))


def _replace_line(path: Path, draw: random.Random, line: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    if path.suffix == ".json":
        lines = [line]
    else:
        lines[draw.randrange(len(lines))] = line
    path.write_bytes(b"".join(lines))


# Damage to one value of the JSON


def deleted(place: Any, key: Any, draw: random.Random) -> None:
    """Take it away."""
    del place[key]


def renamed(place: Any, key: Any, draw: random.Random) -> None:
    """Give it another name."""
    value = place.pop(key)
    if isinstance(place, dict):
        place[f"{key}x"] = value


def retyped(place: Any, key: Any, draw: random.Random) -> None:
    """Give it another type."""
    others = ["text", 7, 0.5, True, [], {}, [1], {"a": 1}]
    place[key] = draw.choice([other for other in others if type(other) is not type(place[key])])


def nulled(place: Any, key: Any, draw: random.Random) -> None:
    """Make it null."""
    place[key] = None


def huge(place: Any, key: Any, draw: random.Random) -> None:
    """Make it larger than all bounds."""
    place[key] = draw.choice([1e308, -1e308, 10**30, -(10**30), 2**63])


def not_a_number(place: Any, key: Any, draw: random.Random) -> None:
    """Make it NaN or infinite, which is no JSON."""
    place[key] = draw.choice([float("nan"), float("inf")])


def nested(place: Any, key: Any, draw: random.Random) -> None:
    """Nest it one level too deep."""
    place[key] = draw.choice([[place[key]], {"value": place[key]}])


Change = Callable[[Any, Any, random.Random], None]
VALUES: tuple[Change, ...] = (deleted, renamed, retyped, nulled, huge, not_a_number, nested)
BYTES: tuple[Damage, ...] = (cut_anywhere, cut_at_a_line, flip, flip, flip, overwrite, empty)
BYTES += (folder_instead, gone, deep, no_object, twice, swapped)


def change_value(how: Change, path: Path, draw: random.Random) -> None:
    """Change some value of a file, or of a line; the checksum stays."""
    if path.suffix == ".json":
        content = json.loads(path.read_bytes())
        where, key = draw.choice(list(_places(content)))
        how(where, key, draw)
        path.write_text(json.dumps(content, indent=2), "utf-8")
        return
    lines = path.read_bytes().splitlines()
    at = draw.randrange(len(lines))
    content = json.loads(lines[at])
    where, key = draw.choice(list(_places(content)))
    how(where, key, draw)
    lines[at] = json.dumps(content, ensure_ascii=False).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every object with a key, and every list with the index of its first entry."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield content, key
            yield from _places(value)
    elif isinstance(content, list) and content:
        yield content, 0
        yield from _places(content[0])


DAMAGES: list[tuple[str, Damage]] = [(how.__name__, how) for how in BYTES]
DAMAGES += [(how.__name__, partial(change_value, how)) for how in VALUES * 2]


# Attempts


@cache
def sound() -> Path:
    """A folder with sound runs, and what commands say of them."""
    place = Path(tempfile.mkdtemp(prefix="records-"))
    for name, words in MADE.items():
        said = forked([*words, "--out", str(place / name)], place / "said" / name)
        assert said.code in (0, 1), said.err
        old = place / f"{name}-old"
        shutil.copytree(place / name, old)
        _without_checksums(old)
    return place


def _without_checksums(run: Path) -> None:
    header = json.loads((run / HEADER).read_bytes())
    header.pop("checksum")
    (run / HEADER).write_text(json.dumps(header, indent=2), "utf-8")
    lines = [json.loads(line) for line in (run / LINES).read_bytes().splitlines()]
    for line in lines:
        line.pop("checksum")
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    (run / LINES).write_text(text, "utf-8")


@cache
def expected(name: str, words: tuple[str, ...]) -> CommandEnd:
    """Run a command on the sound run."""
    place = Path(tempfile.mkdtemp(dir=sound()))
    return _said(name, words, place, lambda _: None)


def _said(name: str, words: Sequence[str], place: Path, hurt: Callable[[Path], None]) -> CommandEnd:
    """Run a command on a copy of the run that was hurt."""
    run = place / "run"
    shutil.copytree(sound() / name, run)
    hurt(run)
    named = {"RUN": str(run), "SOUND": str(sound() / name.removesuffix("-old"))}
    filled = [named.get(word, word.replace("PLACE", str(place))) for word in words]
    said = forked(filled, place, PATIENCE_S)
    page = place / "page.html"
    out = page.read_text("utf-8") if page.exists() else said.out
    # What a page offers for download are the files as they lie.
    out = re.sub(r"base64,[^\"]*", "", out.replace(str(place), ""))
    return CommandEnd(said.code, out, said.err.replace(str(place), ""))


def attempt(name: str, file: str, damage: Damage, words: list[str], seed: int, place: Path) -> Any:
    """Hurt a copy of a run and judge what a command makes of it."""
    before = expected(name, tuple(words))
    said = _said(name, words, place, lambda run: damage(run / file, random.Random(seed)))
    return verdict(before, said, timed="--resume" in words)


def verdict(before: CommandEnd, said: CommandEnd, *, timed: bool) -> str | None:
    """Say why it was not survived; `timed` commands measure anew and never say the same twice."""
    if "unexpected" in said.err or "Traceback" in said.err or said.code == 99:
        return said.last
    if said.code == 2:
        errors = [line for line in said.err.splitlines() if line.startswith("ppdbench:")]
        if len(errors) != 1:
            return f"{len(errors)} error lines: {said.err}"
        return None if "run" in errors[0] else f"names no file: {errors[0]}"
    named = any(words in said.err + said.out for words in NAMED)
    if named or timed:
        return None if said.code in (0, 1, 3) else f"exit code {said.code}: {said.last}"
    if said.code != before.code:
        return f"exit code {said.code} instead of {before.code}: {said.last}"
    return None if said.out == before.out else "says something else, and not why"


def attempts(short: bool) -> list[Attempt]:
    """The same ones each time."""
    draw = random.Random(17)
    runs = [f"{name}{age}" for age in ("", "-old") for name in MADE]
    made = []
    for number in range(LONG):
        name = runs[number % len(runs)]
        what, damage = DAMAGES[number // len(runs) % len(DAMAGES)]
        file = draw.choice([HEADER, LINES, LINES])
        if what in ("twice", "swapped", "cut_at_a_line"):
            file = LINES
        words = draw.choice(SHOWN[name.removesuffix("-old")])
        shown = f"{name} {file} {what} ({number}): {' '.join(words[:3])}"
        shown += " --resume" if "--resume" in words else ""
        made.append(Attempt(shown, partial(attempt, name, file, damage, words, number)))
    return list(spread(made, SHORT)) if short else made


KIND = AttackKind("damaged records", attempts)
