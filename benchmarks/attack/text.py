"""Hostile text through every writer and every format, and hostile templates.

An attempt is survived if what was written, looked at from outside, holds nothing that acts where it
is shown or read; and if a template ends soon, in little memory, with one line that names it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.attack import scan
from benchmarks.attack.base import AttackKind, Attempt, CommandEnd, spread
from benchmarks.attack.forks import FORK, forked
from benchmarks.attack.templates import OF_CHATS, TEMPLATES
from ppdbench.files.resources import reference_model

PATIENCE_S = 300.0
SOON_S, MUCH_BYTES = 30.0, 1_000_000_000  # of a template, on a machine that is busy

ACTING = "\x1b[31m\x1b]0;title\x07\x9b1m\x85\u202eb\u2066\u200b\ufeff\u2028\U000e0041\xad"
MARKUP = (
    '<script>alert(1)</script><img src=x onerror=1>" onload="x '
    "[l](javascript:1) ![i](x) `c` **d** ~~e~~ | &lt; \\end{tabular} \\input{x} $1$ %0A # "
    "##[error]f"
)
HOSTILE = f'=HYPERLINK("http://x") {ACTING} {MARKUP}\r::error::g\n::warning::h'
# Starts of cells and lines that mean something of their own.
STARTS = ("+1+cmd", "-2+3", "@SUM(1)", "\t=1", "＝1", "::error::x", "# h", "- i", "> q", "[2cm]")
LONG = "a" * 1_000_000
NAME = HOSTILE.replace("/", "_")[:80]  # of a folder

Look = Callable[[str], str | None]


# Runs that are full of it


MODEL = "synthetic:layers=4,hidden=32,heads=2,vocab=300"
RUNS = {
    "bench": ["bench", "--method", "prompt-lookup"],
    "probe": ["probe", "--layers", "2,4"],
    "sweep": ["sweep", "--method", "prompt-lookup", "--grid", "max_draft=2,4"],
}


@cache
def made() -> Path:
    """A folder for runs, with a task, columns, ids, texts and a model that have hostile names."""
    place = Path(tempfile.mkdtemp(prefix="text-"))
    (place / NAME).symlink_to(reference_model())
    (place / "task.yaml").write_text(yaml.safe_dump(_task(), allow_unicode=True), "utf-8")
    column = _task()["fields"]["question"]
    rows = [{"id": f"{start}{HOSTILE}", column: HOSTILE, "answer": HOSTILE} for start in STARTS]
    (place / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return place


@cache
def _make(name: str) -> None:
    """A run on these; `hurt` is one that somebody else may hand on."""
    if name == "hurt":
        _make("bench")
        _hurt(made() / "bench", made() / "hurt")
        return
    words = [*RUNS[name], "--model", MODEL, *_given(), "--out", str(made() / name)]
    said = forked(words, made() / "said" / name, PATIENCE_S)
    if said.code:
        raise RuntimeError(f"{name} could not be made: {said.last}")


def _given() -> list[str]:
    task, data = made() / "task.yaml", made() / "data.jsonl"
    words = ["--task", str(task), "--data", str(data), "--limit", "5"]
    return [*words, "--max-new-tokens", "4"]


def _task() -> dict[str, Any]:
    return {
        "name": HOSTILE,
        "version": 1,
        "description": HOSTILE,
        "dataset": {"hub_id": None, "config": None, "split": "test"},
        "fields": {"question": HOSTILE.replace(".", "")},
        "id": "id",
        "prompt_text": "Q: {{ question }}\nA:",
        "reference": "answer",
        "max_new_tokens": 8,
        "bucket": 2,
        "metrics": ["rouge1"],
    }


# What is kept of an example that could not be done.
OF_FAILED = frozenset(
    {
        *("task", "example_id", "method", "target", "number", "cut_tokens", "prompt_ids"),
        *("output_ids", "processes", "references"),
    }
)


def _hurt(run: Path, copy: Path) -> None:
    """A run as somebody else may hand it on: its names are hostile too, and examples failed."""
    shutil.copytree(run, copy)
    header = json.loads((copy / "run.json").read_bytes())
    header.pop("checksum", None)
    header["model"]["name"] = HOSTILE
    header["command"] = ["ppdbench", HOSTILE, LONG]
    header["not_run"] = {HOSTILE: HOSTILE}
    header["environment"]["cpu"]["model"] = HOSTILE
    (copy / "run.json").write_text(json.dumps(header), "utf-8")
    lines = [json.loads(line) for line in (copy / "samples.jsonl").read_bytes().splitlines()]
    for line in lines:
        line.pop("checksum", None)
        line |= {"text": f"{HOSTILE}\ud800", "references": [HOSTILE]}
    kept = {name: value for name, value in lines[0].items() if name in OF_FAILED}
    lines[0] = {**kept, "verdict": "failed", "error": f"{HOSTILE} {LONG}"}
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (copy / "samples.jsonl").write_text(text, "utf-8")


# What is asked of them


def _printed(words: Sequence[str], look: Look, folder: Path) -> str | None:
    """Scan what a command says on both ways out."""
    said = _said(words, folder)
    if said.code == 2:
        return f"refused: {said.last[:200]}"
    return _mishap(said) or look(said.out) or scan.of_lines(said.err)


def _refused(words: Sequence[str], folder: Path) -> str | None:
    """An error of one line, unless the traceback is asked for."""
    said = _said(words, folder)
    if said.code != 2:
        return f"code {said.code}"
    if "--debug" not in words and said.err.count("\n") != 1:
        return f"an error of {len(said.err.splitlines())} lines: {said.err[:200]}"
    return _mishap(said) or scan.of_lines(said.err) or scan.of_lines(said.out)


def _said(words: Sequence[str], folder: Path) -> CommandEnd:
    for word in words:
        if word.startswith("MADE/"):
            _make(word.removeprefix("MADE/"))
    places = {"MADE": str(made()), "HERE": str(folder)}
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    return forked(words, folder / "said", PATIENCE_S)


def _mishap(said: CommandEnd) -> str | None:
    if "unexpected " in said.err or said.code not in (0, 1, 2, 3):
        return f"code {said.code}: {said.last[:200]}"
    return None


def _written(words: Sequence[str], name: str, look: Look, folder: Path) -> str | None:
    """Scan what a command writes to files of that name, which must be there."""
    said = _said(words, folder)
    if (why := _mishap(said) or scan.of_lines(said.out)) is not None:
        return why
    files = sorted(folder.glob(name))
    if not files:
        return f"no {name}: {said.last[:200]}"
    for file in files:
        if (why := scan.unseen(file.name) or look(file.read_text("utf-8"))) is not None:
            return f"{file.name}: {why}"
    return None


def _annotated(words: Sequence[str], folder: Path) -> str | None:
    """Annotations stand among what is said on stderr."""
    said = _said(words, folder)
    return _mishap(said) or scan.of_lines(said.out) or scan.of_annotations(said.err)


def _writers() -> Iterator[Attempt]:
    for run in ("bench", "probe", "sweep", "hurt"):
        stored = f"MADE/{run}"
        for form, look in scan.BY_FORM.items():
            words = ["report", stored, "--format", form]
            yield Attempt(f"report of {run} as {form}", partial(_printed, words, look))
        page = ["report", stored, "--out", "HERE/page.html", "--plots", "HERE/plots"]
        yield Attempt(f"page of {run}", partial(_written, page, "page.html", scan.of_html))
        yield Attempt(f"drawings of {run}", partial(_written, page, "plots/*.svg", scan.of_xml))
    check = ["check", "MADE/hurt", "--baseline", "MADE/bench"]
    for form, look in scan.BY_FORM.items():
        yield Attempt(f"check as {form}", partial(_printed, [*check, "--format", form], look))
    for option, name, look in (
        ("--junit", "a.xml", scan.of_xml),
        ("--summary", "a.md", scan.of_markdown),
    ):
        words = [*check, option, f"HERE/{name}"]
        yield Attempt(f"check {option}", partial(_written, words, name, look))
    noted = [*check, "--annotations", "github"]
    yield Attempt("check --annotations", partial(_annotated, noted))
    kept = ["check", "MADE/bench", "--baseline", "HERE/a.json", "--update"]
    yield Attempt("a baseline", partial(_written, kept, "a.json", scan.of_json))
    sweep = ["sweep", "--show", "MADE/sweep"]
    for form, look in scan.BY_FORM.items():
        yield Attempt(f"sweep as {form}", partial(_printed, [*sweep, "--format", form], look))
    drawn = [*sweep, "--plot", "HERE/a.svg"]
    yield Attempt("the map of a sweep", partial(_written, drawn, "a.svg", scan.of_xml))
    theory = ["theory", "--run", "MADE/probe"]
    for form, look in scan.BY_FORM.items():
        yield Attempt(f"theory as {form}", partial(_printed, [*theory, "--format", form], look))


def _live() -> Iterator[Attempt]:
    """Yield scans of what is written while a model decodes, its own folder's name included."""
    for form, look in scan.BY_FORM.items():
        words = ["decode", "--method", "jacobi", "--model", f"{made()}/{NAME}", *_given()]
        yield Attempt(f"decode as {form}", partial(_printed, [*words, "--format", form], look))


# Names that are wrong, and come back in errors


def _errors() -> Iterator[Attempt]:
    for words in (
        [HOSTILE],
        ["list", HOSTILE],
        ["list", "methods", HOSTILE],
        ["table", HOSTILE],
        ["decode", "--method", HOSTILE],
        ["decode", "--method", "jacobi", "--set", f"{HOSTILE}=1"],
        ["decode", "--method", "jacobi", "--task", HOSTILE],
        ["decode", "--method", "jacobi", "--task", f"{NAME}.yaml"],
        ["decode", "--method", "jacobi", "--model", f"./{NAME}"],
        ["decode", "--method", "jacobi", "--data", f"/tmp/{NAME}"],
        ["decode", "--method", "jacobi", "--out", f"/dev/null/{NAME}"],
        ["sweep", "--method", "jacobi", "--grid", HOSTILE],
        ["bench", "--suite", f"/tmp/{NAME}"],
        ["report", f"/tmp/{NAME}"],
        ["tree", "show", f"/tmp/{NAME}"],
        ["check", "MADE/bench", "--baseline", f"/tmp/{NAME}"],
        ["list", "tasks", "--debug", HOSTILE],
        ["report", LONG[:100_000]],
    ):
        names = (" ".join(words)[:40], words[-1][-5:])
        shown = " ... ".join(names).encode("unicode_escape").decode("ascii")
        yield Attempt(f"error of {shown}", partial(_refused, words))
    for what, content in (
        ("a task with a hostile key", {**_task(), HOSTILE: 1}),
        ("a task with a hostile metric", {**_task(), "metrics": [HOSTILE]}),
        ("a task with a hostile prompt", {**_without(_task(), "prompt_text"), "prompt": HOSTILE}),
    ):
        yield Attempt(what, partial(_task_refused, content))
    for name in ("../secret", "{secret}", "link", "folder/secret"):
        yield Attempt(f"a prompt at {name}", partial(_prompt_refused, name))


def _without(keys: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if key != name}


def _task_refused(content: dict[str, Any], folder: Path) -> str | None:
    (folder / "task.yaml").write_text(yaml.safe_dump(content, allow_unicode=True), "utf-8")
    said = _said(["decode", "--method", "jacobi", "--task", "HERE/task.yaml"], folder)
    return (_mishap(said) or scan.of_lines(said.err)) if said.code == 2 else f"code {said.code}"


def _prompt_refused(name: str, folder: Path) -> str | None:
    """A task whose prompt is a file from elsewhere; the file's content must not be told."""
    secret, home = folder / "secret", folder / "home"
    secret.write_text("a secret {{ nothing }}")
    home.mkdir()
    (home / "link").symlink_to(secret)
    (home / "folder").symlink_to(folder)
    keys = {**_without(_task(), "prompt_text"), "prompt": name.format(secret=secret)}
    (home / "task.yaml").write_text(yaml.safe_dump(keys, allow_unicode=True), "utf-8")
    said = _said(["decode", "--method", "jacobi", "--task", str(home / "task.yaml")], folder)
    if said.code != 2 or "nothing" in said.err or "outside the folder" not in said.err:
        return f"code {said.code}: {said.last[:200]}"
    return scan.of_lines(said.err)


# Templates


def _templates() -> Iterator[Attempt]:
    for name, template in TEMPLATES.items():
        yield Attempt(f"a template: {name}", partial(_rendered, template, chat=False))
    for name, template in OF_CHATS.items():
        yield Attempt(f"a chat template: {name}", partial(_rendered, template, chat=True))


def _rendered(template: str, folder: Path, *, chat: bool) -> str | None:
    """Say why a rendering in a process of its own was not survived; None if it was."""
    said, began = folder / "said", time.monotonic()
    process = FORK.Process(target=_render, args=(template, chat, said))
    process.start()
    process.join(SOON_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        return f"no end within {time.monotonic() - began:.0f} s"
    if process.exitcode != 0:
        return f"exit code {process.exitcode}"
    how, text = said.read_text("utf-8").split("\n", 1)
    if how == "rendered" and ("0x" in text or len(text) > 1_000_000):
        return f"rendered: {text[:80]!r}"
    if how == "refused" and ("\n" in text or "emplate" not in text or " at 0x" in text):
        return f"refused: {text[:200]!r}"
    return None


class _Tokenizer:
    """All of a tokenizer that a chat template meets."""

    special_tokens_map = {"bos_token": "<s>", "eos_token": "</s>"}  # noqa: RUF012

    def __init__(self, template: str) -> None:
        self.template = template

    def get_chat_template(self) -> str:
        """Return a template as transformers asks for it."""
        return self.template


def _render(template: str, chat: bool, said: Path) -> None:
    """Render in a child, where nothing may take more memory than this."""
    from ppdbench.errors import ConfigError
    from ppdbench.tasks.chat import render_chat
    from ppdbench.tasks.templates import Template

    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MUCH_BYTES, held + MUCH_BYTES))
    try:
        if chat:
            text = render_chat(_Tokenizer(template), [{"role": "user", "content": "hi"}])
        else:
            prompt = Template("template.jinja", template)
            prompt.check(frozenset({"text"}))
            text = prompt.render({"text": "hello"})
        said.write_text(f"rendered\n{text}", "utf-8", "backslashreplace")
    except ConfigError as error:
        said.write_text(f"refused\n{error}", "utf-8", "backslashreplace")
    os._exit(0)


# One small run is enough for these, which write every form.
QUICK = (
    *("report of hurt as table", "report of hurt as csv", "report of hurt as markdown"),
    *("report of hurt as json", "page of hurt", "check as latex"),
    *("check --junit", "check --summary", "check --annotations"),
)


def attempts(short: bool) -> Iterable[Attempt]:
    """Return all attempts, or some of each part."""
    writers, errors, templates = list(_writers()), list(_errors()), list(_templates())
    if short:
        quick = [one for one in writers if one.name in QUICK]
        return (*quick, *spread(errors, 4), *spread(templates, 4))
    return (*writers, *_live(), *errors, *templates)


KIND = AttackKind("text", attempts)
