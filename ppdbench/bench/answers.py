"""Answers that a model itself writes to prompts: the text that what drafts for it learns from.

Several prompts are decoded at once, greedily, each as it would be alone. A line is stored when its
answer has ended: the whole text, as the model saw and wrote it, in the column `text` that training
reads, and how far the prompt goes, since it is answers that drafters learn from. A run that is
interrupted goes on with the prompts that have no answer yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ppdbench.decoding.batch import Batch
from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.written import text_behind
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.errors import ConfigError, DataError
from ppdbench.files.lock import written_alone
from ppdbench.files.whole import write_whole
from ppdbench.machine.clock import Clock
from ppdbench.methods import METHODS
from ppdbench.runs.workload import Report, silent
from ppdbench.tasks.chat_options import ChatOptions, ChatTemplate
from ppdbench.training.text import TextSpec, documents

FILE, RECORD = "answers.jsonl", "answers.json"
SHA = "sha256"  # of all prompts, as the model sees them
PRECISION = "precision"
UNTOLD = (SHA, PRECISION)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersConfig:
    """The prompts, one a document of a text, and the bounds of their answers.

    Those of more than `max_prompt_tokens` are left out.
    """

    model: ModelSpec
    prompts: TextSpec
    batch: int = 16
    max_new_tokens: int = 256
    max_prompt_tokens: int = 512
    chat: ChatOptions = field(default_factory=ChatOptions)

    def __post_init__(self) -> None:
        for name in ("batch", "max_new_tokens", "max_prompt_tokens"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {value}: use 1 or more")


@dataclass(frozen=True, slots=True)
class Written:
    """The answers of a folder: their number and tokens, and prompts left out as too long."""

    answers: int
    prompt_tokens: int
    answer_tokens: int
    ended: int
    too_long: int

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, Any]], too_long: int) -> Written:
        """Count what the lines of a folder say."""
        sums = {
            name: sum(line[name] for line in lines)
            for name in ("prompt_tokens", "answer_tokens", "ended")
        }
        return cls(answers=len(lines), too_long=too_long, **sums)


class AskedPrompt(NamedTuple):
    """The number, text and tokens of a prompt; no tokens where there are too many."""

    number: int
    text: str
    ids: list[int]


def write_answers(
    config: AnswersConfig, out: Path, *, resume: bool = False, report: Report = silent
) -> Written:
    """Answer the prompts that have no answer in the folder `out` yet; say what it then holds."""
    report("loading the model", 0, None)
    loaded = load(config.model)
    template = config.chat.template(loaded.tokenizer)
    asked = _prompts(config, loaded, template)
    if not asked:
        raise DataError(f"--text {' '.join(config.prompts.sources)} holds no prompt")
    if not any(ids for _, _, ids in asked):
        raise DataError(
            f"every prompt has more than {config.max_prompt_tokens} tokens; raise "
            "--max-prompt-tokens"
        )
    prompts = [text for _, text, _ in asked]
    settings = _settings(config, loaded, template, prompts)
    if resume and not (out / RECORD).exists():
        raise DataError(f"{out} holds no answers to go on with")
    with written_alone(out):
        lines = _begun(out, settings, prompts, resume=resume)
        _answer(config, loaded, asked, lines, out, report)
        written = Written.of(lines, too_long=sum(not ids for _, _, ids in asked))
        record = {**settings, "written": asdict(written)}
        write_whole(out / RECORD, json.dumps(record, indent=2) + "\n")
    return written


def _answer(
    config: AnswersConfig,
    loaded: Loaded,
    asked: Sequence[AskedPrompt],
    lines: list[dict[str, Any]],
    out: Path,
    report: Report,
) -> None:
    """Write an answer, and add its line, to each prompt that has none and is not too long."""
    done = {line["number"] for line in lines}
    wanted = {number: (text, ids) for number, text, ids in asked if ids and number not in done}
    in_all = len(lines) + len(wanted)
    with (out / FILE).open("a", encoding="utf-8") as file:
        for number, output in _decoded(config, loaded, {n: ids for n, (_, ids) in wanted.items()}):
            text, ids = wanted[number]
            line = {
                "number": number,
                "text": text + text_behind(loaded.tokenizer, ids, output, special=True),
                "prompt_chars": len(text),
                "prompt_tokens": len(ids),
                "answer_tokens": len(output),
                "ended": output[-1] in loaded.eos_ids,
            }
            file.write(json.dumps(line) + "\n")
            file.flush()
            lines.append(line)
            report("answers", len(lines), in_all)


def _prompts(
    config: AnswersConfig, loaded: Loaded, template: ChatTemplate | None
) -> list[AskedPrompt]:
    """Every prompt of the text."""
    tokenizer, found = loaded.tokenizer, []
    room = min(config.max_prompt_tokens, loaded.max_positions - config.max_new_tokens)
    if room < 1:
        raise ConfigError(
            f"--max-new-tokens {config.max_new_tokens} leaves no room for a prompt: the model has "
            f"{loaded.max_positions} positions"
        )
    for number, text in enumerate(documents(config.prompts)):
        shown = text if template is None else template.render(tokenizer, [text])
        # A template writes the special tokens itself.
        ids = tokenizer(shown, add_special_tokens=template is None, verbose=False)["input_ids"]
        found.append(AskedPrompt(number, shown, ids if len(ids) <= room else []))
    return found


def _decoded(
    config: AnswersConfig, loaded: Loaded, prompts: dict[int, list[int]]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the output of each prompt, in the order in which they end."""
    if not prompts:
        return
    capacity = max(map(len, prompts.values())) + config.max_new_tokens
    batch = Batch(Setup(loaded, capacity))
    greedy = METHODS.get("greedy")
    decoders = batch.prepare(greedy.make().prepare, min(config.batch, len(prompts)))
    limits, clock = Limits(config.max_new_tokens, loaded.eos_ids), Clock(loaded.staged.device)
    requests = ((number, Request(ids, limits, clock)) for number, ids in prompts.items())
    for done in batch.decode(decoders, requests, clock):
        if done.decoded is None:
            raise DataError(f"prompt {done.key} could not be answered: {done.error}")
        yield done.key, list(done.decoded.output_ids)


def _settings(
    config: AnswersConfig, loaded: Loaded, template: ChatTemplate | None, prompts: Sequence[str]
) -> dict[str, Any]:
    """The options that answers depend on, and the prompts as a hash."""
    return {
        "model": config.model.name,
        "weights": loaded.fingerprint,
        PRECISION: loaded.staged.precision,
        "prompts": asdict(config.prompts),
        "chat": None if template is None else template.fingerprint,
        "system": config.chat.system,
        "max_new_tokens": config.max_new_tokens,
        "max_prompt_tokens": config.max_prompt_tokens,
        SHA: hashlib.sha256(repr(list(prompts)).encode()).hexdigest()[:16],
    }


def _begun(
    out: Path, settings: dict[str, Any], prompts: Sequence[str], *, resume: bool
) -> list[dict[str, Any]]:
    """Begin a folder, or return what it holds; a torn last line is answered again."""
    record, file = out / RECORD, out / FILE
    if not resume:
        if record.exists():
            raise ConfigError(f"{out} holds answers already; use --resume, or another --out")
        write_whole(record, json.dumps(settings, indent=2) + "\n")
        write_whole(file, "")
        return []
    try:
        held = json.loads(record.read_text("utf-8"))
        whole = file.read_text("utf-8")
        whole = whole[: whole.rfind("\n") + 1]
        lines = [json.loads(line) for line in whole.splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"{out} holds no answers to go on with: {error}") from error
    asked = json.loads(json.dumps(settings))
    # Earlier versions kept no hash: there the lines themselves have to tell. Nor did they say the
    # type of the numbers.
    asked = {name: value for name, value in asked.items() if name in held or name not in UNTOLD}
    if changed := ", ".join(name for name, value in asked.items() if held.get(name) != value):
        raise ConfigError(f"{out} was written with other options ({changed}); use another --out")
    for line in lines:
        if not _answers(line, prompts):
            raise DataError(f"{file} answers other prompts than these; use another --out")
    write_whole(file, whole)
    return lines


def _answers(line: Any, prompts: Sequence[str]) -> bool:
    """True if a line of a folder answers the prompt of its number."""
    try:
        return bool(line["text"][: line["prompt_chars"]] == prompts[line["number"]])
    except (KeyError, TypeError, IndexError):
        return False
