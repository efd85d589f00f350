"""Headers say how prompts were asked, and runs that were asked otherwise do not mix."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ppdbench.cli.main import run
from ppdbench.engine.loading import ModelSpec, load_words
from ppdbench.engine.synthetic import tokenizer
from ppdbench.runs.prompting import other_prompts, prompted_alike, prompting, told_apart
from ppdbench.runs.records import Chat, Header
from ppdbench.runs.store import read_run, read_run_header
from ppdbench.tasks import chat
from ppdbench.tasks.chat_options import ChatOptions
from tests.cli.test_decode_command import model_folder

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}!{% endif %}"
)
FULL_LENGTH = 6
SMALL = ("--data", "builtin", "--limit", "2", "--max-new-tokens", str(FULL_LENGTH))
HASH = "0123456789abcdef"


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a chat template whose first outputs hold its end token."""
    place = tmp_path_factory.mktemp("chatty")
    words = tokenizer(300, 1024)
    words.chat_template = TEMPLATE
    free = model_folder(place / "free", eos=299)
    words.save_pretrained(free)
    decode(free, place / "run")
    end = read_run(place / "run").samples[0].output_ids[2]  # type: ignore[union-attr]
    folder = model_folder(place / "model", eos=[298, end])
    words.save_pretrained(folder)
    return folder


def decode(model: Path, out: Path, *more: str, task: str = "gsm8k", command: str = "decode") -> int:
    quick = ["--warmup", "0", "--compile", "off"] if command == "decode" else []
    words = [command, "--model", str(model), "--task", task, "--out", str(out), *SMALL]
    return run([*words, *quick, *more])


def test_the_header_names_the_template_and_what_it_was_given(
    chatty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--system", "Be kind.", "--chat-set", "enable_thinking=false")
    assert decode(chatty, tmp_path / "run", *given) == 0
    printed = capsys.readouterr().out
    told = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["chat"]
    hashed = ChatOptions().template(load_words(ModelSpec(name=str(chatty)))[0])
    assert hashed is not None
    assert told == {
        "template": hashed.fingerprint,
        "system": "Be kind.",
        "settings": {"enable_thinking": False},
        "thinking": "off",
        "rendering": told["rendering"],
    }
    assert len(told["rendering"]) == 16
    prompts = f"chat template {hashed.fingerprint}, system text 'Be kind.', enable_thinking=false"
    assert f"Prompts: {prompts}, thinking off." in " ".join(printed.split())
    words, _ = load_words(ModelSpec(name=str(chatty)))
    first = words.decode(read_run(tmp_path / "run").samples[0].prompt_ids)
    assert first.startswith("<system>Be kind.<user>") and first.endswith("<assistant>!")


def test_plain_prompts_are_null(chatty: Path, tmp_path: Path) -> None:
    assert decode(chatty, tmp_path / "run", "--chat", "off") == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["chat"] is None


@pytest.mark.parametrize(
    "asked",
    [
        ("--chat", "off"),
        ("--system", "Be brief."),
        ("--chat-set", "enable_thinking=true"),
    ],
)
def test_a_run_goes_on_only_as_it_was_asked(
    chatty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: tuple[str, str]
) -> None:
    assert decode(chatty, tmp_path / "run") == 0
    assert decode(chatty, tmp_path / "run", "--resume", "--chat", "on") == 0
    capsys.readouterr()
    assert decode(chatty, tmp_path / "run", "--resume", *asked) == 2
    (line,) = (n for n in capsys.readouterr().err.splitlines() if n.startswith("ppdbench:"))
    assert "cannot resume: chat (chat template" in line and " there, " in line


def test_a_run_does_not_go_on_where_the_template_writes_another_day(
    chatty: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dated = tmp_path / "dated"
    shutil.copytree(chatty, dated)
    words = tokenizer(300, 1024)
    words.chat_template = (
        "{{ day if day is defined else strftime_now('%d') }}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    )
    words.save_pretrained(dated)
    now = [datetime(2026, 1, 1)]

    class Clock:
        @staticmethod
        def now() -> datetime:
            return now[-1]

    monkeypatch.setattr(chat, "datetime", Clock)
    assert decode(dated, tmp_path / "run") == 0
    assert decode(dated, tmp_path / "run", "--resume") == 0
    assert decode(dated, tmp_path / "fixed", "--chat-set", "day=1") == 0
    now.append(datetime(2026, 1, 2))
    capsys.readouterr()
    assert decode(dated, tmp_path / "run", "--resume") == 2
    (line,) = (n for n in capsys.readouterr().err.splitlines() if n.startswith("ppdbench:"))
    assert "cannot resume: chat (chat template" in line and "around a prompt" in line
    assert decode(dated, tmp_path / "fixed", "--chat-set", "day=1", "--resume") == 0


def test_a_check_refuses_a_baseline_that_was_asked_otherwise(
    chatty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert decode(chatty, tmp_path / "chat") == 0
    assert decode(chatty, tmp_path / "plain", "--chat", "off") == 0
    baseline = str(tmp_path / "baseline.json")
    assert run(["check", str(tmp_path / "chat"), "--baseline", baseline, "--update"]) == 0
    for other in (str(tmp_path / "chat"), baseline):
        assert run(["check", str(tmp_path / "plain"), "--baseline", other]) == 2
        assert "prompts: plain here, chat template" in capsys.readouterr().err
    assert run(["check", str(tmp_path / "chat"), "--baseline", baseline]) == 0


def test_a_probe_of_chats_ends_with_the_text_unless_full_length_is_asked_for(
    chatty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lengths(name: str, *more: str) -> list[int]:
        assert decode(chatty, tmp_path / name, *more, command="probe") == 0
        return [len(s.output_ids) for s in read_run(tmp_path / name).samples]

    ended = lengths("ended")
    said = capsys.readouterr()
    assert "note: outputs end with the text" in said.err
    assert "--full-length goes on to full length" in " ".join(said.out.split())
    assert ended[0] <= 3
    assert set(lengths("full", "--full-length")) == {FULL_LENGTH}
    assert "outputs end with the text" not in capsys.readouterr().err
    assert set(lengths("plain", "--chat", "off")) == {FULL_LENGTH}


def test_every_end_token_of_the_generation_settings_ends_an_output(
    chatty: Path, tmp_path: Path
) -> None:
    assert decode(chatty, tmp_path / "run") == 0
    first, *_ = read_run(tmp_path / "run").samples
    declared = json.loads((chatty / "generation_config.json").read_text("utf-8"))["eos_token_id"]
    assert len(declared) == 2
    assert first.output_ids[-1] == declared[1]  # type: ignore[union-attr]


# What headers of earlier versions stand for


def header_of(
    chatty: Path, tmp_path: Path, chat: Chat | UnsetType | None, task: str, mode: str = "auto"
) -> Header:
    place = tmp_path / "made"
    if not place.exists():
        assert decode(chatty, place) == 0
    made = read_run_header(place)
    config = replace(made.config, chat=replace(made.config.chat, mode=mode))
    return replace(made, chat=chat, config=config, data={task: next(iter(made.data.values()))})


KNOWN = Chat(template=HASH, system=None, settings={})
GIVEN = Chat(template=HASH, system="Be kind.", settings={})


@pytest.mark.parametrize(
    ("task", "chat", "mode", "mixes"),
    [
        ("gsm8k", None, "auto", True),
        ("gsm8k", KNOWN, "auto", False),
        ("mt_bench", KNOWN, "auto", True),
        ("mt_bench", GIVEN, "auto", False),
        ("mt_bench", None, "auto", True),  # the tokenizer has no template, and had none
        ("mt_bench", None, "off", False),
    ],
)
def test_an_earlier_run_is_read_as_what_it_did(
    chatty: Path, tmp_path: Path, task: str, chat: Chat | None, mode: str, mixes: bool
) -> None:
    earlier = header_of(chatty, tmp_path, UNSET, task)
    now = header_of(chatty, tmp_path, chat, task, mode)
    assert (other_prompts(earlier, now) is None) == mixes


def test_an_earlier_run_of_a_model_without_template_had_plain_prompts(
    chatty: Path, tmp_path: Path
) -> None:
    earlier: Any = header_of(chatty, tmp_path, UNSET, "mt_bench")
    for name in ("reference", "synthetic:layers=2"):
        assert prompting(replace(earlier, model=replace(earlier.model, name=name))) is None


def test_what_a_template_wrote_tells_runs_apart_where_both_say_it() -> None:
    one, other = (replace(KNOWN, rendering=rendering) for rendering in ("one", "other"))
    assert prompted_alike(one, one)
    assert prompted_alike(one, KNOWN) and prompted_alike(KNOWN, other)
    assert not prompted_alike(one, other)
    assert not prompted_alike(one, replace(GIVEN, rendering=None))
    there, here = told_apart(one, other)
    assert there != here
