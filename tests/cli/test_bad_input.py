"""Whatever is wrong is told in one line that names it and says what is allowed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError
from ppdbench.methods import METHODS
from ppdbench.methods.base import Method
from ppdbench.probe.runner import parse_layers
from ppdbench.runs.store import read_run
from tests import gguf_files
from tests.cli.probed import MODEL, SMALL, task_text
from tests.families import stock_model

GOOD_ROW = {
    "id": "a",
    "context": "Ann has a cat.",
    "question": "Who?",
    "answers": {"text": ["Ann"]},
}


# What the cases below find under FILES


def write_data(folder: Path) -> None:
    good = json.dumps(GOOD_ROW)
    (folder / "good.jsonl").write_text(good + "\n")
    (folder / "empty.jsonl").write_text("")
    (folder / "torn.jsonl").write_text(f"{good}\n{good[:-9]}")
    (folder / "columns.jsonl").write_text('{"id": "a", "question": "Who?", "colour": "red"}\n')
    (folder / "types.jsonl").write_text(json.dumps({**GOOD_ROW, "question": 17}) + "\n")
    (folder / "latin1.jsonl").write_bytes(good.replace("cat", "caté").encode("latin-1") + b"\n")
    (folder / "list.jsonl").write_text("[1, 2]\n")
    (folder / "data.txt").write_text(good)
    (folder / "twice.jsonl").write_text(f"{good}\n{good}\n")
    (folder / "taken").write_text("a file")


def write_tasks(folder: Path) -> None:
    prompts = {
        "undefined": "{{ question }} {{ answr }}",
        "internals": "{{ question.__class__.__mro__ }}",
        "syntax": "{{ question",
        "asked": "{{ question }}",
    }
    for name, prompt in prompts.items():
        (folder / f"{name}.yaml").write_text(task_text(prompt))
    (folder / "again.yaml").write_text(task_text("Q: {{ question }}"))
    (folder / "typo.yaml").write_text(task_text("x", bukket=3))
    (folder / "broken.yaml").write_text("name: [1,\n")


def save_model(folder: Path, model: Any, vocab: int = 300) -> Path:
    model.save_pretrained(folder)
    tokenizer(vocab, 512).save_pretrained(folder)
    return folder


def llama() -> Any:
    return stock_model("llama", vocab_size=300, max_position_embeddings=512)


def rwkv() -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2}
    config = AutoConfig.for_model("rwkv", attention_hidden_size=16, **sizes)
    return AutoModelForCausalLM.from_config(config)


def write_models(folder: Path) -> None:
    whole = save_model(folder / "whole", llama())
    save_model(folder / "rwkv", rwkv())
    save_model(folder / "other-words", llama(), vocab=400)

    broken = llama()
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight[3, 4] = float("nan")
    save_model(folder / "nan", broken)

    no_weights = shutil.copytree(whole, folder / "no-weights")
    (no_weights / "model.safetensors").unlink()
    no_words = shutil.copytree(whole, folder / "no-words")
    for file in no_words.glob("tokenizer*"):
        file.unlink()
    torn = shutil.copytree(whole, folder / "torn")
    (torn / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes()[:5000])
    bad_config = shutil.copytree(whole, folder / "bad-config")
    (bad_config / "config.json").write_text("{")
    (folder / "no-config").mkdir()


def write_gguf(folder: Path) -> None:
    whole = gguf_files.write(folder / "whole.gguf", stock_model("llama"))
    content = whole.read_bytes()
    spoiled = {
        "cut": content[:-9],
        "magic": b"GGML" + content[4:],
        "old": content[:4] + b"\1" + content[5:],
        "huge": content[:8] + b"\xff" * 8 + content[16:],
        "family": content.replace(b"llama", b"lamma"),
        "tensor": content.replace(b"blk.0.attn_q", b"blk.9.attn_q"),
    }
    for name, made in spoiled.items():
        (folder / f"{name}.gguf").write_bytes(made)
    changed: dict[str, dict[str, Any]] = {
        "part": {"split.count": 3},
        "wordless": {"tokenizer.ggml.tokens": None},
        "layers": {"block_count": 0},
        "raising": {"tokenizer.chat_template": "{{ raise_exception('one role') }}"},
        "unwritten": {"tokenizer.chat_template": "{% for m in messages %}"},
        "endless": {"tokenizer.chat_template": "{% for i in range(10**9) %}x{% endfor %}"},
    }
    for name, settings in changed.items():
        gguf_files.write(folder / f"{name}.gguf", stock_model("llama"), **settings)


def write_heads(folder: Path) -> None:
    from ppdbench.engine.loading import ModelSpec, load

    (folder / "empty").mkdir()
    header = {
        "format": "ppdbench-addon",
        "version": 1,
        "method": "heads",
        "model": load(ModelSpec(name=MODEL)).fingerprint,
        "vocab_size": 300,
        "hidden_size": 32,
        "layers": [1],
    }
    changes: dict[str, dict[str, Any]] = {
        "other-method": {"method": "medusa"},
        "other-model": {"model": "0" * 16},
        "other-version": {"version": 9},
        "layer-9": {"layers": [9]},
        "no-list": {"layers": "all"},
        "no-tensors": {},
    }
    for name, change in changes.items():
        (folder / name).mkdir()
        (folder / name / "heads.json").write_text(json.dumps(header | change))
    (folder / "no-json").mkdir()
    (folder / "no-json" / "heads.json").write_text("{")
    shutil.copytree(folder / "no-tensors", folder / "torn-tensors")
    (folder / "torn-tensors" / "heads.safetensors").write_bytes(b"\x08\0\0\0")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    for write in (write_data, write_tasks, write_models, write_gguf, write_heads):
        name = write.__name__.removeprefix("write_")
        (root / name).mkdir()
        write(root / name)
    return root


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    wait: int = 3
    eager: bool = False


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = Method("patient", Patient, True, False, "Waits.")
    monkeypatch.setitem(METHODS._items, "patient", method)
    monkeypatch.delenv("PPDBENCH_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True, slots=True)
class Case:
    """A command line (FILES stands for the files above) and patterns its one line must match."""

    words: str
    says: tuple[str, ...] = field(default=())


def probe(words: str, *says: str) -> Case:
    return Case(f"probe {words}", says)


def decode(words: str, *says: str) -> Case:
    return Case(f"decode {words}", says)


SQUAD = "--task squad --data FILES/data"
HUB = "--data hub --offline"
GGUF = "--model FILES/gguf"

CASES = {
    # names
    "unknown task": probe("--task gsm8kk", "'gsm8kk'", "did you mean gsm8k", "squad"),
    "empty task": probe("--task=", "task", "name"),
    "task file that is not there": probe("--task no.yaml", "no.yaml", "does not exist"),
    "unknown method": decode(
        "--method gredy", "'gredy'", "did you mean greedy", "known: draft-verify, "
    ),
    "unknown option of a method": decode(
        "--method patient --set weit=3", "'weit'", "did you mean wait", "eager, wait"
    ),
    "method without the option it announces": decode(
        "--method layerskip:", "'layerskip:'", "no option follows", "layerskip:key=value"
    ),
    "option of a method without any": decode("--set x=1", "'greedy'", "no options", "'x'"),
    "unknown format": probe("--format xml", "'xml'", "json", "latex"),
    "unknown option": probe("--tusk squad", "--tusk", "--task"),
    "unknown target": probe("--target beam", "'beam'", "greedy, top-k, top-p, min-p"),
    "one argument too many": probe("squad", "squad"),
    # --set
    "set without value": decode("--method patient --set wait", "'wait'", "key=value"),
    "set without key": decode("--method patient --set =3", "'=3'", "key=value"),
    "set twice": decode("--method patient --set wait=1 --set wait=2", "wait", "twice"),
    "set of another type": decode("--method patient --set wait=long", "wait='long'", "type int"),
    "set of no boolean": decode("--method patient --set eager=ja", "eager='ja'", "true or false"),
    # layers, k, buckets
    "layer 0": probe("--layers 0", "layer 0", "3 layers", "1..3"),
    "layer L+1": probe("--layers 4", "layer 4", "3 layers", "1..3"),
    "layers in text": probe("--layers upper", "'upper'", "4,8 or 2-6"),
    "layers backwards": probe("--layers 3-1", "3-1", "1..3"),
    "layers to far above": probe("--layers 2-70", "layer (4|70)", "1..3"),
    "layers negative": probe("--layers=-1", "'-1'", "use"),
    "k 0": probe("-k 0", "-k 0", "1 or more"),
    "k above the vocabulary": probe("-k 301", "-k 301", "300", "1..300"),
    "k in text": probe("-k top", "'top'", "1,3,5"),
    "bucket that does not divide": probe("--bucket 3", "--bucket 3", "8 tokens", "1, 2, 4, 8"),
    "bucket 0": probe("--bucket 0", "--bucket 0", "1, 2, 4, 8"),
    # numbers
    "limit 0": probe("--limit 0", "--limit 0", "1 or more"),
    "limit -1": decode("--limit -1", "--limit -1", "1 or more"),
    "limit in text": decode("--limit few", "'few'", "integer"),
    "no new tokens": probe("--max-new-tokens 0", "--max-new-tokens 0", "1 or more"),
    "new tokens beyond the context": decode(
        "--max-new-tokens 4096", "--max-new-tokens 4096", "4096 tokens"
    ),
    "no room for the prompt": decode("--max-new-tokens 4090", "example 0", "allows 6", "lower"),
    "shots -1": probe("--shots -1", "--shots -1", "0 or more"),
    "more shots than rows": probe("--shots 99", "--shots 99", "available"),
    "batch size 0": probe("--batch-size 0", "--batch-size 0", "1 or more"),
    "warmup -1": decode("--warmup -1", "--warmup -1", "0 or more"),
    "top-k 0": probe("--target top-k --top-k 0", "0", "1 or more"),
    "top-p 0": probe("--target top-p --top-p 0", "p=0", "up to 1"),
    "top-p 2": probe("--target top-p --top-p 2", "p=2", "up to 1"),
    "temperature 0": probe("--target top-p --temperature 0", "temperature=0", "above 0"),
    "temperature nan": probe("--target top-p --temperature nan", "temperature=nan", "above 0"),
    "tiny temperature": probe("--target top-k --temperature 1e-45", "temperature", "above"),
    "example that is not there": probe("--show-example 2", "--show-example 2", "0..1"),
    # the same thing twice
    "same task twice": probe("--task squad --task squad", "squad", "twice"),
    "same task under two names": probe(
        "--task FILES/tasks/asked.yaml --task FILES/tasks/again.yaml --data FILES/data/good.jsonl",
        "asked",
        "twice",
    ),
    "same target twice": probe("--target top-p --target top-p", "target", "twice"),
    # data
    "empty data": probe(f"{SQUAD}/empty.jsonl", "empty.jsonl", "no rows"),
    "torn data": probe(f"{SQUAD}/torn.jsonl", "torn.jsonl, line 2", "cut off"),
    "missing column": probe(
        f"{SQUAD}/columns.jsonl", "'context'", "the row has: id, question, colour"
    ),
    "wrong type": probe(f"{SQUAD}/types.jsonl", "'question'", "text", "number 17"),
    "not UTF-8": probe(f"{SQUAD}/latin1.jsonl", "latin1.jsonl", "not UTF-8 at byte"),
    "no objects": probe(f"{SQUAD}/list.jsonl", "line 1", "list of 2"),
    "same id twice": probe(f"{SQUAD}/twice.jsonl", "rows 0 and 1", "'a'"),
    "unknown kind of file": probe(f"{SQUAD}/data.txt", "data.txt", ".jsonl, .json, .csv"),
    "data that is not there": probe(f"{SQUAD}/nowhere", "nowhere", "no such file or folder"),
    "empty data option": probe("--data=", "--data", "builtin"),
    "unknown split": probe("--split dev", "'dev'", "test"),
    "hub data while offline": probe("--task mt_bench " + HUB, "--offline", "--data"),
    # task files
    "undefined variable": probe(
        "--task FILES/tasks/undefined.yaml", "undefined.yaml", "'answr'", "may use: question"
    ),
    "Python internals": probe(
        "--task FILES/tasks/internals.yaml --data FILES/data/good.jsonl",
        "internals.yaml",
        "not allowed",
        "__class__",
    ),
    "template syntax": probe("--task FILES/tasks/syntax.yaml", "syntax.yaml", "line 1"),
    "unknown key": probe("--task FILES/tasks/typo.yaml", "bukket", "did you mean bucket"),
    "no YAML": probe("--task FILES/tasks/broken.yaml", "broken.yaml, line", "not valid YAML"),
    # models
    "unsupported family": probe(
        "--model FILES/models/rwkv", "family rwkv does not run", "list models"
    ),
    "folder without config": probe("--model FILES/models/no-config", "no-config", "config.json"),
    "folder without weights": decode("--model FILES/models/no-weights", "weights", "safetensors"),
    "folder without tokenizer": decode(
        "--model FILES/models/no-words", "tokenizer", "tokenizer.json"
    ),
    "torn weights": decode("--model FILES/models/torn", "models/torn", "does not load"),
    "torn config": decode("--model FILES/models/bad-config", "models/bad-config"),
    "empty model": decode("--model=", "--model is empty", "local folder"),
    "missing folder": decode("--model ./nowhere", "./nowhere", "does not exist"),
    "tokenizer of another vocabulary": decode(
        "--model FILES/models/other-words", "399", "299", "do not belong together"
    ),
    "hub id while offline": decode(
        "--model no-such/model --offline", "'no-such/model'", "offline", "local folder"
    ),
    "unknown shape": decode("--model synthetic:lama-7b", "'lama-7b'", "did you mean llama-7b"),
    "unknown setting of a shape": decode("--model synthetic:wide=3", "'wide'", "hidden"),
    "negative heads": decode("--model synthetic:heads=-2", "heads=-2"),
    "negative kv heads": decode("--model synthetic:kv_heads=-1", "kv_heads=-1"),
    "negative ffn": decode("--model synthetic:ffn=-5", "ffn=-5"),
    "huge seed of a shape": decode("--model synthetic:seed=99999999999999999999", "seed="),
    "NaN weights, probed": probe(
        "--model FILES/models/nan --layers 2",
        "example 0",
        r"after layer [234]",
        "check the weights",
    ),
    "NaN weights, decoded": decode(
        "--model FILES/models/nan", "example 0", r"after layer \d", "check the weights"
    ),
    # GGUF files
    "cut off": probe(f"{GGUF}/cut.gguf", "cut.gguf is cut off or damaged", "fetch"),
    "another magic": probe(f"{GGUF}/magic.gguf", "no GGUF file: it does not begin with GGUF"),
    "an old version": probe(f"{GGUF}/old.gguf", "version 1; supported"),
    "more tensors than bytes": probe(f"{GGUF}/huge.gguf", "cut off or damaged: it promises"),
    "a family of nobody's": probe(f"{GGUF}/family.gguf", "'lamma' are not read; supported: "),
    "a tensor too few": decode(f"{GGUF}/tensor.gguf", "lacks 1 tensors, first blk.0.attn_q"),
    "one part of several": probe(f"{GGUF}/part.gguf", "1 of 3|one of 3 parts", "join them first"),
    "no words": probe(f"{GGUF}/wordless.gguf", "holds no tokenizer"),
    "no layers": probe(f"{GGUF}/layers.gguf", "num_hidden_layers is 0"),
    "several in a folder": probe(GGUF, "GGUF files; give --gguf one of cut.gguf"),
    "none of that name": probe(f"{GGUF} --gguf no.gguf", "no.gguf", "no such file; it has cut"),
    "a file within a file": probe(f"{GGUF}/whole.gguf --gguf a.gguf", "a file itself; leave"),
    "an adapter beside it": probe(f"{GGUF}/whole.gguf --adapter x", "GGUF file holds rounded"),
    "a file that is not there": probe("--model ./no.gguf", "no.gguf does not exist"),
    # chat templates
    "chat without a template": probe("--chat on", "no chat template; leave it out"),
    "system without a template": probe("--system Short.", "--system: .* no chat template"),
    "another way to chat": probe("--chat maybe", "'maybe'", "auto, on or off|auto.*on.*off"),
    "plain, with a system text": probe("--chat off --system Short.", "--system is for chat"),
    "a setting of nothing": probe(f"{GGUF}/whole.gguf --chat-set think=1", "reads no think"),
    "a setting without a value": probe("--chat-set think", "'think'", "KEY=VALUE"),
    "a setting of many": probe("--chat-set think=[1,2]", "--chat-set think", "not a list"),
    "a template that refuses": probe(f"{GGUF}/raising.gguf", "template failed", "one role"),
    "a template that ends early": probe(f"{GGUF}/unwritten.gguf", "template failed", "endfor"),
    "a template without end": probe(f"{GGUF}/endless.gguf", "template failed", "--chat off"),
    # machine
    "unknown device": decode("--device tpu", "'tpu'", "cpu, cuda"),
    "device of another kind": decode("--device meta", "'meta'", "cpu, cuda"),
    "unknown dtype": decode("--dtype int4", "'int4'", "float32, bfloat16"),
    "no threads": decode("--threads 0", "--threads 0", "use 1"),
    "too many threads": decode("--threads 100000", "--threads 100000", "use 1"),
    # run folder
    "file in the way": decode("--out FILES/data/taken", "data/taken", "--out"),
    "folder below a file": decode("--out FILES/data/taken/run", "data/taken", "--out"),
    "empty out": decode("--out=", "--out"),
    "resume without a run": decode("--out new --resume", "new", "nothing to resume"),
    "resume without out": decode("--resume", "--resume", "--out"),
    # heads
    "no heads": probe("--head FILES/heads/empty", "heads.json is missing", "train heads"),
    "heads without JSON": probe("--head FILES/heads/no-json", "not valid JSON"),
    "another method's parts": probe("--head FILES/heads/other-method", "trained heads"),
    "another model's heads": probe("--head FILES/heads/other-model", "another model", "0{16}"),
    "another version": probe("--head FILES/heads/other-version", "version 9", "reads 1"),
    "head for no layer": probe("--head FILES/heads/layer-9", "layer 9", r"1\.\."),
    "layers that are no list": probe("--head FILES/heads/no-list", "list of layer numbers"),
    "heads without tensors": probe("--head FILES/heads/no-tensors", "heads.safetensors"),
    "torn tensors": probe("--head FILES/heads/torn-tensors", "heads.safetensors", "cannot be read"),
}


def words_of(case: Case, files: Path) -> list[str]:
    """The command line, the good options first: of two, click takes the later one."""
    command, *rest = case.words.replace("FILES", str(files)).split()
    # Where no other folder is in question, a run that starts by mistake leaves no traces.
    out = [] if "--resume" in rest or "--out=" in rest else ["--out", "run"]
    return [command, *SMALL, *out, *rest]


def complaint(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The one line that a refused command writes."""
    assert run(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ppdbench: ")
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_exits_2_with_one_line_that_names_it(
    case: Case, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(capsys, words_of(case, files))
    for said in case.says:
        assert re.search(said, line)


def test_an_unknown_command_is_named_and_the_known_ones_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = complaint(capsys, ["prob"])
    assert "'prob'" in line
    assert "probe" in line
    assert "decode" in line


@pytest.mark.parametrize("words", [["list"], ["list", "methds"]], ids=" ".join)
def test_list_names_its_kinds(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, words)
    for kind in ("methods", "tasks", "models", "tables"):
        assert kind in line


def test_a_range_of_layers_without_end_is_refused_before_it_is_counted_out() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"1000000.*use 1\.\.3"):
            parse_layers("1-1000000", 3)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="this one is there")
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_missing_gpu_is_told(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, ["decode", *SMALL, "--out", "run", "--device", device])
    assert repr(device) in line
    assert "0 CUDA GPUs" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    line = complaint(capsys, ["decode", *SMALL, "--out", "closed/run"])
    assert "cannot write to closed/run" in line


def test_resuming_with_other_options_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", *SMALL, "--out", "run"]) == 0
    capsys.readouterr()
    other = ["--limit", "1", "--seed", "5", "--dtype", "bfloat16"]
    line = complaint(capsys, ["probe", *SMALL, "--out", "run", "--resume", *other])
    assert "config.limit" in line
    assert "config.seed" in line
    assert "dtype" in line
    assert "config.tasks" not in line
    line = complaint(capsys, ["decode", *SMALL, "--out", "run", "--resume"])
    assert "a probe run is stored there, and this is a decode run" in line


def test_another_run_in_the_way_is_told_before_any_weights_load(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ppdbench.runs import running

    def refuse(spec: object, **_: object) -> Any:
        raise AssertionError(f"{spec} was loaded")

    assert run(["probe", *SMALL, "--out", "run"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(running, "load", refuse)
    line = complaint(capsys, ["probe", *SMALL, "--out", "run"])
    assert "already holds a run" in line
    assert "--resume" in line


def test_nothing_is_left_behind_by_a_refused_run(capsys: pytest.CaptureFixture[str]) -> None:
    complaint(capsys, ["probe", *SMALL, "--out", "run", "--layers", "9"])
    assert list(Path().iterdir()) == []


def test_a_complaint_is_not_preceded_by_a_note_about_the_stand_in_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert complaint(capsys, ["probe", "--task", "gsm8kk"]).startswith("ppdbench: unknown task")


@pytest.mark.parametrize(
    "words",
    [["probe", "--task", "gsm8kk"], ["probe", "--tusk"], ["prob"]],
    ids=["ours", "usage", "command"],
)
@pytest.mark.parametrize("how", ["option", "environment"])
def test_debug_shows_the_traceback_before_the_line(
    words: list[str],
    how: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if how == "option":
        words = [*words, "--debug"]
    else:
        monkeypatch.setenv("PPDBENCH_DEBUG", "1")
    assert run(words) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("ppdbench: ")


def test_an_error_nobody_foresaw_is_one_line_and_no_failed_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ppdbench.cli import catalog

    def fail() -> Any:
        raise ZeroDivisionError("nobody\nforesaw this")

    monkeypatch.setattr(catalog, "tasks", fail)
    line = complaint(capsys, ["list", "tasks"])
    assert "ZeroDivisionError" in line
    assert "nobody foresaw this" in line
    assert "--debug" in line


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["list", "tasks"], ["probe", "--help"]],
    ids=" ".join,
)
def test_success_is_exit_code_0_and_a_silent_stderr(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 0
    assert capsys.readouterr().err == ""


# Where stdout ends


def listing(stdout: int, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ppdbench", "list", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("words", [["tasks"], ["tables", "--format", "json"]], ids=" ".join)
def test_a_reader_that_leaves_is_no_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    worker = listing(writing, *words)
    os.close(writing)
    _, err = worker.communicate(timeout=60)
    assert (worker.returncode, err) == (0, "")


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")


@FULL
@pytest.mark.parametrize("words", [["tasks"], ["tables", "--format", "json"]], ids=" ".join)
def test_a_stdout_that_cannot_be_written_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        worker = listing(full.fileno(), *words)
        _, err = worker.communicate(timeout=60)
    assert worker.returncode == 2
    assert err.count("\n") == 1
    assert "No space left on device" in err


@FULL
def test_a_run_whose_tables_cannot_be_written_is_found_all_the_same() -> None:
    words = [sys.executable, "-m", "ppdbench", "decode", *SMALL, "--out", "run"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    *_, where, why = done.stderr.splitlines()
    assert where == "run: run"
    assert why == "ppdbench: cannot read or write the output: No space left on device"
    assert read_run(Path("run")).samples


@FULL
@pytest.mark.parametrize(("place", "mode"), [("/dev/full", "w"), (os.devnull, "r")])
def test_notes_that_cannot_be_written_change_nothing(place: str, mode: str) -> None:
    """Exit code 1 would say that an output is not greedy's."""
    words = [sys.executable, "-m", "ppdbench", "decode", *SMALL, "--format", "json", "--out", "run"]
    with Path(place).open(mode) as unheard:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=unheard, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)
    assert read_run(Path("run")).samples
