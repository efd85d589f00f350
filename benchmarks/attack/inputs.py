"""Bad input to every command: options with values that cannot be, and files that are broken.

Each attempt is a command line with one thing wrong. Survived is: exit code 2, one line on stderr
that names what is wrong, an answer within seconds, and nothing written. Commands run in forked
processes, so that nobody waits for imports.
"""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.attack.base import AttackKind, Attempt, CommandEnd, spread

SHORT = 25
LIMIT_S = 20.0  # on a machine that has other things to do, too
LONGEST_LINE = 500
MEMORY = 12 << 30  # of a process; what asks for more fails by itself
HUGE = "1000000000"
ABSURD = "1000000000000000000000"
FILES = "FILES/"  # stands for the folder with files below

TINY = "synthetic:layers=2,hidden=32,heads=2,vocab=300"
MODEL = ("--model", TINY)
WORK = (*MODEL, "--data", "builtin", "--limit", "1", "--max-new-tokens", "4", "--task", "squad")
TRAIN = (
    *(*MODEL, "--text", f"{FILES}text.txt", "--sequence", "16", "--batch-size", "2"),
    *("--steps", "1", "--out", "out"),
)

# Tokens of a text are for the next time, whatever else was wrong.
KEPT = (
    "out",
    *(f"out/{name}.{kind}" for name in ("tokens", "held-out") for kind in ("bin", "json")),
)

# Command lines that would do, to which one bad option is added; of two, the later one counts.
COMMANDS: Mapping[str, Sequence[str]] = {
    "probe": (*WORK, "--out", "run"),
    "decode": (*WORK, "--out", "run"),
    "bench": (*WORK, "--method", "greedy", "--out", "run"),
    "sweep": (*WORK, "--method", "prompt-lookup", "--grid", "max_draft=2,4", "--out", "run"),
    "train heads": TRAIN,
    "train medusa": TRAIN,
    "train eagle": TRAIN,
    "train hidden-transfer": TRAIN,
    "train prompt-tokens": (*TRAIN, "--insertions", "4"),
    "train layerskip": TRAIN,
    "skips": (*WORK, "--out", "skips.json"),
    "datastore": (*MODEL, "--text", f"{FILES}text.txt", "--out", "store"),
    "theory": ("--layers", "40", "--exit-after", "20", "--k", "3", "--p", "0.5"),
    "table": ("ppd/2",),
    "list": ("methods",),
    "env": MODEL,
}

# Values that no command takes for an option of this name.
BAD: Mapping[str, Sequence[str]] = {
    "--limit": ("0", "-1"),
    "--max-new-tokens": ("0", "-1", HUGE),
    "--shots": ("-1", HUGE),
    "--batch-size": ("0", "-1", HUGE),
    "--micro-batch": ("0", HUGE),
    "--threads": ("0", "-1", HUGE),
    "--warmup": ("-1", HUGE),
    "--bucket": ("0", "-1", "3"),
    "--show-example": ("-1", HUGE),
    "--steps": ("0", "-1", ABSURD),
    "--epochs": ("0", "-1", "nan", "inf", "1e300"),
    "--sequence": ("0", "-1", HUGE),
    "--learning-rate": ("0", "-1", "nan", "inf"),
    "--schedule": ("linear", ""),
    "--warmup-ratio": ("-1", "2", "nan"),
    "--weight-decay": ("-1", "nan"),
    "--beta2": ("1", "-1", "nan"),
    "--clip": ("0", "-1", "nan"),
    "--precision": ("fp8", ""),
    "--checkpoint-every": ("0", "-1"),
    "--max-documents": ("0", "-1"),
    "--held-out-tokens": ("-1",),
    "--split-by": ("word", ""),
    "--save-dtype": ("int4", ""),
    "--loss": ("hinge", ""),
    "--rank": ("-1", HUGE),
    "--heads": ("0", HUGE),
    "--decay": ("0", "2", "nan"),
    "--version": ("2",),
    "--passes": ("0", HUGE),
    "--draft-vocab": ("-1", HUGE),
    "--ffn": ("-1",),
    "--noise": ("-1", "nan"),
    "--prompts": ("0", HUGE),
    "--epts": ("0",),
    "--insertions": ("0", HUGE),
    "--mask": ("nothing", ""),
    "--preset": ("nothing", ""),
    "--shape": ("layers=x", f"layers={HUGE}", "wide=3"),
    "--p-max": ("-1", "1", "nan"),
    "--e-scale": ("-1", "2", "nan"),
    "--rotation": ("0", HUGE),
    "--curriculum": ("steep", ""),
    "--simulate": ("1", "-1", "1000000000000", ABSURD),
    "--tokens": ("0", "-1", "1000000000000", ABSURD),
    "--exit-after": ("0", "-1", "19", "40", ABSURD),
    "--k": ("0", "-1", "x", ABSURD),
    "--p": ("-1", "2", "nan", "x"),
    "--prompt-tokens": ("0", "-1"),
    "--new-tokens": ("0", "-1"),
    "--rounds": ("0", "-1"),
    "--budget": ("0", "-1"),
    "--draft-length": ("0", "-1"),
    "--depth": ("0", "-1"),
    "--search": ("blind", ""),
    "--target": ("beam", ""),
    "--format": ("xml", ""),
    "--dtype": ("int4", ""),
    "--device": ("tpu", "cuda:99", "meta", ""),
    "--quantize": ("int3", ""),
    "--device-map": ("nowhere", f"{FILES}broken.json"),
    "--max-memory": ("cpu=much", "x"),
    "--split": ("nowhere",),
    "--data": ("/nowhere/data", ""),
    "--model": (
        *("./nowhere", "", "synthetic:", "synthetic:lama-7b", "nobody/nothing"),
        *(f"synthetic:layers={HUGE}", f"synthetic:hidden={HUGE}", f"synthetic:vocab={HUGE}"),
        *(f"synthetic:context={ABSURD}", "synthetic:layers=x", "synthetic:seed=-1"),
    ),
    "--task": ("nothing", "", "nothing.yaml"),
    "--method": ("nothing", "greedy:x=1", "layerskip:exit_layer"),
    "--set": ("x", "=1", "x=1"),
    "--grid": ("max_draft", "max_draft=", "x=1"),
    "--text": ("/nowhere/text", "", f"{FILES}latin1.txt"),
    "--held-out": ("/nowhere/text", "", f"{FILES}latin1.txt"),
    "--calibration": ("/nowhere/c.json", f"{FILES}broken.json", f"{FILES}list.json"),
    "--head": ("/nowhere/heads", f"{FILES}text.txt"),
    "--suite": ("/nowhere/suite.yaml", f"{FILES}broken.yaml", f"{FILES}list.yaml"),
    "--start": ("/nowhere/prompts",),
    "--export": ("table.docx", "", "/proc/nowhere/table.md"),
    "--plot": ("plot.bmp", "", "/proc/nowhere/plot.png"),
    "--shard": ("3/2", "0/1", "x", "1"),
    "--out": ("", f"{FILES}taken", f"{FILES}taken/run", "/proc/nowhere"),
    "--run": ("/nowhere/run",),
    "--size": ("0", "x"),
}

# Files as options, each with the commands that read such a one.
TASKS = ("undefined", "internals", "syntax", "typo", "broken", "list", "no-name", "huge", "escape")
DATA = ("empty", "torn", "columns", "types", "latin1", "list", "twice", "nul", "deep")
MODELS = (
    *("no-config", "no-weights", "no-words", "torn-weights", "bad-header", "bad-config"),
    *("list-config", "no-family", "unknown-family", "deep-config", "zero-layers", "text-layers"),
    *("huge-vocab", "huge-width", "bad-tokenizer", "empty-tokenizer", "other-shapes", "gguf.gguf"),
)
TREES = ("broken.json", "list.json", "empty.txt", "cyclic-tree.json", "huge-tree.json")


@dataclass(frozen=True, slots=True)
class BadInput:
    """A command line, and words of which one must be in what it says."""

    words: tuple[str, ...]
    names: tuple[str, ...]


def every_input() -> Iterator[BadInput]:
    """Yield all bad input, command by command."""
    for command, good in COMMANDS.items():
        for option, kind in options_of(command).items():
            values = BAD.get(option, ())
            typed = ("x", "1.5") if kind is click.INT else ("x",) if kind is click.FLOAT else ()
            for value in dict.fromkeys((*values, *typed)):
                yield BadInput((*command.split(), *good, f"{option}={value}"), named(option, value))
    yield from files()
    yield from others()


def named(option: str, value: str) -> tuple[str, ...]:
    """List the words of which a line about this value may speak."""
    plain = option.lstrip("-")
    parts = re.split(r"[/:=,]", value)
    said = {option, plain.replace("-", "_"), plain.replace("-", " "), value, *parts[1:]}
    return tuple(word for word in {*said, parts[0]} if word)


def files() -> Iterator[BadInput]:
    """Broken files where a command reads such a one."""
    for name in TASKS:
        for command in ("probe", "decode"):
            task = f"{FILES}{name}.yaml"
            words = (
                command,
                *COMMANDS[command][:-2],
                "--task",
                task,
                "--data",
                f"{FILES}good.jsonl",
            )
            yield BadInput(words, (f"{name}.yaml",))
    for name in DATA:
        # The first two rows are read: with one alone, what is wrong with the second is nobody's.
        words = ("probe", *COMMANDS["probe"], "--limit", "2", "--data", f"{FILES}{name}.jsonl")
        yield BadInput(words, (name, "squad"))
    for name in MODELS:
        for command in ("decode", "train heads", "env", "datastore"):
            if command == "datastore" and name in ("no-weights", "torn-weights", "bad-header"):
                continue  # words are all that it needs
            if command == "env" and name in ("no-words", "bad-tokenizer", "empty-tokenizer"):
                continue  # and it needs none
            if command != "decode" and name == "other-shapes":
                continue
            words = (*command.split(), *COMMANDS[command], "--model", f"{FILES}{name}")
            yield BadInput(words, (name,))
    for name in TREES:
        yield BadInput(("tree", "show", f"{FILES}{name}"), (name,))
        for method in ("medusa", "hidden-transfer", "prompt-tokens", "eagle"):
            words = ("decode", *COMMANDS["decode"], "--method", method)
            yield BadInput((*words, "--set", f"tree={FILES}{name}"), (name,))
    for folder in ("nowhere", f"{FILES}empty", f"{FILES}torn-run", f"{FILES}text.txt"):
        tail = folder.rpartition("/")[2]
        for command in ("report", "theory --run", "sweep --show", "table ppd/2"):
            yield BadInput((*command.split(), folder), (tail,))
        yield BadInput(("check", folder, "--baseline", f"{FILES}broken.json"), (tail, "broken"))


def others() -> Iterator[BadInput]:
    """Yield the bad input that no table of options holds."""
    yield BadInput(("prob",), ("prob",))
    for name in ("/nowhere/c.json", f"{FILES}broken.json", f"{FILES}list.json"):
        build = ("tree", "build", "--calibration", name, "--out", "tree.json")
        yield BadInput(build, (name.rpartition("/")[2],))
    for command in COMMANDS:
        yield BadInput((*command.split(), *COMMANDS[command], "--nothing"), ("--nothing",))
    for method, option, value in (
        *(("speculative", "draft_model", name) for name in ("/nowhere", "", "nobody/nothing")),
        *(("speculative", "draft_length", value) for value in ("-2", "x", "-1")),
        *(("medusa", "addon", name) for name in ("/nowhere", f"{FILES}empty", f"{FILES}text.txt")),
        *(("eagle", "addon", name) for name in ("/nowhere", f"{FILES}empty")),
        *(("hidden-transfer", "addon", name) for name in ("/nowhere", f"{FILES}empty")),
        *(("prompt-tokens", "addon", name) for name in ("/nowhere", f"{FILES}empty")),
        *(("rest", "datastore", name) for name in ("/nowhere", "", f"{FILES}empty")),
        *(("draft-verify", "skip", name) for name in ("/nowhere", f"{FILES}broken.json")),
        *(("ppd", name, value) for name, value in (("k", "-1"), ("k", HUGE), ("form", "round"))),
        *(("ppd", name, value) for name, value in (("head", "/nowhere"), ("exit_after", "9"))),
        *(("layerskip", "exit_layer", value) for value in ("-1", "2", "9", "x")),
        *(("early-exit", "exit_layer", value) for value in ("-1", "9")),
        *(("lookahead", name, "-1") for name in ("window", "ngram", "guesses")),
        *(("jacobi", "window", value) for value in ("0", "-1", "x")),
        *(("prompt-lookup", "max_draft", value) for value in ("-2", "-1", "x")),
    ):
        for command in ("decode", "bench"):
            words = (command, *COMMANDS[command][:-4], "--out", "run")
            tail = value.rpartition("/")[2]
            named_by = tuple(filter(None, (option, tail, method)))
            yield BadInput((*words, "--method", f"{method}:{option}={value}"), named_by)


def options_of(command: str) -> dict[str, Any]:
    """The options of a command that take a value, by their longest name."""
    from ppdbench.cli.main import cli

    found: click.Command = cli
    for word in command.split():
        assert isinstance(found, click.Group)
        child = found.get_command(click.Context(found), word)
        assert child is not None
        found = child
    return {
        max(parameter.opts, key=len): parameter.type
        for parameter in found.params
        if isinstance(parameter, click.Option) and not parameter.is_flag
    }


# The files


@functools.cache
def files_folder() -> Path:
    """A folder with all of them, made once and gone when this process ends."""
    held = tempfile.TemporaryDirectory(prefix="inputs-")
    _KEPT.append(held)
    root = Path(held.name)
    write_plain(root)
    write_tasks(root)
    write_models(root)
    return root


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def write_plain(root: Path) -> None:
    """Data, text, JSON and run folders."""
    row = {"id": "a", "context": "Ann has a cat.", "question": "Who?", "answers": {"text": ["Ann"]}}
    good = json.dumps(row)
    texts = {
        "good.jsonl": f"{good}\n",
        "empty.jsonl": "",
        "torn.jsonl": f"{good}\n{good[:-9]}",
        "columns.jsonl": '{"id": "a", "colour": "red"}\n',
        "types.jsonl": json.dumps({**row, "question": 17}) + "\n",
        "list.jsonl": "[1, 2]\n",
        "twice.jsonl": f"{good}\n{good}\n",
        "nul.jsonl": "\0\0\0\n",
        "deep.jsonl": "[" * 20_000 + "\n",
        "text.txt": "The cat sat on the mat and looked at the rain.\n\n" * 40,
        "empty.txt": "",
        "taken": "a file",
        "broken.json": '{"a": ',
        "list.json": "[1, 2]",
        "broken.yaml": "name: [1,\n",
        "list.yaml": "- 1\n- 2\n",
        "cyclic-tree.json": json.dumps({"paths": "loop"}),
        "huge-tree.json": json.dumps({"version": 1, "paths": [[0] * 5000]}),
        "gguf.gguf": "GGUF",
    }
    for name, text in texts.items():
        (root / name).write_text(text, "utf-8")
    for name in ("latin1.jsonl", "latin1.txt"):
        (root / name).write_bytes(good.replace("cat", "caf\xe9").encode("latin-1") + b"\n")
    (root / "empty").mkdir()
    (root / "torn-run").mkdir()
    (root / "torn-run" / "run.json").write_text('{"schema_version": 1')


def write_tasks(root: Path) -> None:
    """Task files, each with one thing wrong."""
    plain = (
        "name: asked\nversion: 1\ndescription: a question\n"
        "dataset: {hub_id: null, split: test}\nfields: {question: question}\nid: id\n"
        'prompt_text: "PROMPT"\nreference: null\nmax_new_tokens: 8\nbucket: 1\n'
    )
    prompts = {
        "undefined": "{{ question }} {{ answr }}",
        "internals": "{{ question.__class__.__mro__ }}",
        "syntax": "{{ question",
    }
    for name, prompt in prompts.items():
        (root / f"{name}.yaml").write_text(plain.replace("PROMPT", prompt))
    (root / "typo.yaml").write_text(plain + "bukket: 3\n")
    (root / "no-name.yaml").write_text(plain.replace("name: asked\n", ""))
    (root / "huge.yaml").write_text(plain.replace("tokens: 8", f"tokens: {ABSURD}"))
    outside = plain.replace('prompt_text: "PROMPT"', "prompt: ../../../../etc/hostname")
    (root / "escape.yaml").write_text(outside)


def write_models(root: Path) -> None:
    """Copies of a tiny model, each broken in its own way."""
    import torch

    from ppdbench.engine.shapes import parse
    from ppdbench.engine.synthetic import build, tokenizer

    whole = root / "whole"
    shape = parse(TINY)
    build(shape, torch.float32, torch.device("cpu")).save_pretrained(whole)
    tokenizer(shape.vocab, shape.context).save_pretrained(whole)
    config = json.loads((whole / "config.json").read_text())
    weights = (whole / "model.safetensors").read_bytes()

    def broken(name: str) -> Path:
        return Path(shutil.copytree(whole, root / name))

    (broken("no-config") / "config.json").unlink()
    (broken("no-weights") / "model.safetensors").unlink()
    no_words = broken("no-words")
    for file in no_words.glob("tokenizer*"):
        file.unlink()
    (broken("torn-weights") / "model.safetensors").write_bytes(weights[:5000])
    (broken("bad-header") / "model.safetensors").write_bytes(b"\xff" * 8 + weights[8:])
    (broken("bad-tokenizer") / "tokenizer.json").write_text("{")
    (broken("empty-tokenizer") / "tokenizer.json").write_text("{}")
    texts = {"bad-config": "{", "list-config": "[1]", "deep-config": "[" * 100_000}
    for name, text in texts.items():
        (broken(name) / "config.json").write_text(text)
    changes: Mapping[str, Mapping[str, object]] = {
        "no-family": {"model_type": None},
        "unknown-family": {"model_type": "wibble"},
        "zero-layers": {"num_hidden_layers": 0},
        "text-layers": {"num_hidden_layers": "many"},
        "huge-layers": {"num_hidden_layers": int(HUGE)},
        "huge-vocab": {"vocab_size": int(ABSURD)},
        "huge-width": {"hidden_size": int(HUGE)},
        "other-shapes": {"hidden_size": 64},
    }
    for name, change in changes.items():
        (broken(name) / "config.json").write_text(json.dumps({**config, **change}))


# Running and judging


def attempts(short: bool) -> Iterable[Attempt]:
    """Every bad input as an attempt; in the short form some of them, evenly spread."""
    every = [Attempt(" ".join(bad.words), judged(bad)) for bad in every_input()]
    return spread(every, SHORT) if short else every


def judged(bad: BadInput) -> Callable[[Path], str | None]:
    """The attempt itself: why it was not survived, or None."""

    def run(place: Path) -> str | None:
        words = [word.replace(FILES, f"{files_folder()}/") for word in bad.words]
        work = place / "work"
        work.mkdir()
        said = forked(words, work, place)
        if said is None:
            return f"no answer within {LIMIT_S:.0f} s"
        return complaint(bad, said) or written(work)

    return run


def complaint(bad: BadInput, said: CommandEnd) -> str | None:
    """Return what is wrong with the answer itself; None if nothing is."""
    lines = said.err.splitlines()
    if said.code != 2:
        return f"exit code {said.code}: {said.last[:300]}"
    if len(lines) != 1 or said.out:
        return (
            f"{len(lines)} lines of errors, {len(said.out)} characters of output: {said.err[:300]}"
        )
    (line,) = lines
    if not line.startswith("ppdbench: ") or "--debug shows" in line or "Traceback" in line:
        return f"no answer for people: {line[:300]}"
    if len(line) > LONGEST_LINE:
        return f"a line of {len(line)} characters: {line[:200]}"
    if not any(name.lower() in line.lower() for name in bad.names):
        return f"it does not name what is wrong ({', '.join(bad.names)}): {line[:300]}"
    return None


def written(work: Path) -> str | None:
    """Name what should not be there; None if nothing is."""
    left = [str(path.relative_to(work)) for path in work.rglob("*")]
    left = [name for name in left if name not in KEPT]
    return f"it wrote {', '.join(sorted(left)[:5])}" if left else None


def forked(words: Sequence[str], work: Path, place: Path) -> CommandEnd | None:
    """Run a command in a process of its own; None if it does not end in time."""
    load_all()
    process = os.fork()
    if not process:
        _child(words, work, place)
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            out, err = ((place / name).read_text("utf-8", "replace") for name in ("out", "err"))
            return CommandEnd(os.waitstatus_to_exitcode(status), out, err)
        time.sleep(0.005)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _child(words: Sequence[str], work: Path, place: Path) -> None:
    """Do the work of the forked process."""
    from ppdbench.cli.main import run

    code = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        os.chdir(work)
        os.environ["HF_HUB_OFFLINE"] = "1"
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding="utf-8") for n in (1, 2))
        code = run(list(words))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


@functools.cache
def load_all() -> None:
    """Import once what commands would import one by one."""
    import datasets
    import torch
    import transformers

    from ppdbench.bench import runner, sweep
    from ppdbench.probe import drafts
    from ppdbench.training import prepare

    torch.set_num_threads(1)  # threads do not survive a fork
    assert all((datasets, transformers, runner, sweep, drafts, prepare))
    sys.stdout.flush()
    sys.stderr.flush()


KIND = AttackKind("inputs", attempts)
