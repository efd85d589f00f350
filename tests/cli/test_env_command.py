"""`ppdbench env` from the outside."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.families import tiny
from ppdbench.cli.main import run
from ppdbench.engine import synthetic

TINY = "synthetic:layers=2,hidden=32,heads=2,vocab=300,context=64"
SHORT = ["--prompt-tokens", "8", "--new-tokens", "4", "--rounds", "1", "--device", "cpu"]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppdbench.machine.bandwidth.measure_bandwidth", lambda *_, **__: 1e10)
    monkeypatch.setattr("ppdbench.bench.baseline.measure_bandwidth", lambda *_: 1e10)
    monkeypatch.setattr("ppdbench.bench.pass_curve.measure_bandwidth", lambda *_: 1e10)


def test_what_cannot_be_is_told_before_the_machine_is_looked_at(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ppdbench.machine.environment.warnings", lambda _: ["too hot; cool it"])
    (tmp_path / "broken.json").write_text("{", "utf-8")
    assert run(["env", "--model", TINY, "--device-map", str(tmp_path / "broken.json")]) == 2
    err = capsys.readouterr().err
    assert "is no JSON file" in err
    assert err.count("\n") == 1


def test_description_bandwidth_and_warnings(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppdbench.machine.environment.warnings", lambda _: ["too hot; cool it"])
    assert run(["env", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert value["bandwidth_bytes_per_s"] == 1e10
    assert value["environment"]["cpu"]["usable_cores"] >= 1
    assert value["warnings"] == ["too hot; cool it"]
    assert err == "warning: too hot; cool it\n"


@pytest.mark.parametrize("form", ["table", "csv", "markdown", "latex"])
def test_every_format_shows_versions_and_bandwidth(capsys: Captured, form: str) -> None:
    assert run(["env", "--format", form]) == 0
    out = capsys.readouterr().out
    assert "packages torch" in out
    assert "read bandwidth GB/s" in out


def test_csv_is_one_table_of_the_machine_and_of_what_a_model_needs(capsys: Captured) -> None:
    words = ("--model", "synthetic:llama-70b", "--device", "cpu", "--format", "csv")
    assert run(["env", *words]) == 0
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert head[:3] == ["table", "what", "value"]
    assert {len(row) for row in rows} == {len(head)}
    tables = ["Environment", "Memory", "Memory: synthetic:llama-70b", "Where it goes"]
    assert list(dict.fromkeys(row[0] for row in rows)) == tables
    (memory,) = (dict(zip(head, row, strict=True)) for row in rows if row[0] == "Memory")
    told = {name: cell for name, cell in memory.items() if cell}
    assert told == {"table": "Memory", "device": "cpu", "read bandwidth GB/s": "10.0"}


def test_baseline_json_has_the_fixed_keys(capsys: Captured) -> None:
    assert run(["env", "--baseline", "--model", TINY, "--format", "json", *SHORT]) == 0
    value = json.loads(capsys.readouterr().out)
    keys = {
        *("greedy_tokens_per_s", "generate_tokens_per_s", "ratio", "bandwidth_bytes_per_s"),
        *("bandwidth_utilisation", "model", "dtype", "rounds", "identical", "environment"),
    }
    assert keys <= value.keys()
    assert (value["model"], value["rounds"], value["identical"]) == (TINY, 1, value["prompts"])
    assert value["path"].startswith(("flat", "eager"))
    assert value["why"]
    assert value["synthetic"] is True


TIMES = "ms", "generate_ms", "behind_other_ms"
CURVE = ["env", "--curve", "--model", TINY, "--context", "20", "--rounds", "1", "--device", "cpu"]


def test_curve_json_has_the_fixed_keys(capsys: Captured) -> None:
    assert run([*CURVE, "--rows", "9,1,4", "--format", "json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [point["rows"] for point in value["curve"]] == [1, 4, 9]
    assert all(set(point) == {"rows", *TIMES} for point in value["curve"])
    assert "experts_of_a_layer" not in value
    assert min(p[side] for p in value["curve"] for side in TIMES) > 0
    assert value["reading_ms"] > 0
    assert value["path"].startswith(("flat", "eager"))
    assert value["prepared_s"] >= 0
    assert (value["context"], value["synthetic"]) == (20, True)


def test_curve_is_a_table_and_a_picture(capsys: Captured, tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    arguments = [*CURVE, "--rows", "3", "--format", "csv", "--plot", str(picture)]
    assert run([*arguments, "--new-tokens", "9"]) == 0
    out, err = capsys.readouterr()
    table = list(csv.reader(io.StringIO(out)))
    assert table[0][:3] == ["rows", "ours ms", "transformers ms"]
    assert [row[0] for row in table[1:]] == ["1", "3"]
    assert [float(cell) for cell in table[1][3:5]] == [1.0, 1.0]
    for line in ("ours", "transformers", "reading the weights once"):
        assert line in picture.read_text()
    assert "--new-tokens means nothing with --curve" in err


@pytest.fixture
def of_experts(tmp_path: Path) -> str:
    """The folder of a model whose layers choose between four experts."""
    tiny("mixtral", vocab_size=300, max_position_embeddings=64).save_pretrained(tmp_path / "model")
    synthetic.tokenizer(300, 64).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_curve_of_a_model_with_experts_tells_how_many_a_pass_reads(
    capsys: Captured, of_experts: str
) -> None:
    asked = [*CURVE, "--model", of_experts, "--rows", "1,9"]
    assert run([*asked, "--format", "json"]) == 0
    value = json.loads(capsys.readouterr().out)
    one, nine = value["curve"]
    assert set(one) == {"rows", *TIMES, "experts"}
    assert value["experts_of_a_layer"] == 4
    assert one["experts"] == 2 < nine["experts"] <= 4
    assert run([*asked, "--format", "csv"]) == 0
    table = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert table[0][-1] == "experts read"
    assert [float(row[-1]) for row in table[1:]] == [one["experts"], nine["experts"]]


def test_curve_says_the_limit_and_the_path(capsys: Captured) -> None:
    assert run([*CURVE, "--rows", "2"]) == 0
    piped = capsys.readouterr().out
    out = " ".join(piped.split())
    assert "reading the weights once, 0.2 MB at 10.0 GB/s" in out
    assert "our passes: " in out
    assert "in 1 round, in turns" in out
    assert "the same likeliest token for 2 of 2 rows" in out
    (heads,) = (line for line in piped.splitlines() if line.startswith(" rows "))
    assert "other work ms" in heads and len(heads) <= 80


def test_rounds_that_differ_widely_are_told(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ppdbench.bench.baseline import BaselineReport

    monkeypatch.setattr(BaselineReport, "ratio_range", (0.5, 2.0))
    assert run(["env", "--baseline", "--model", TINY, "--format", "json", *SHORT]) == 0
    out, err = capsys.readouterr()
    told = "rounds differ widely: ratios 0.50 to 2.00; end other programs or raise --rounds"
    assert told in json.loads(out)["warnings"]
    assert told in err


def test_baseline_table_names_what_was_compared(capsys: Captured) -> None:
    arguments = ["env", "--baseline", "--model", TINY, "--dtype", "bfloat16", "--format", "csv"]
    assert run([*arguments, *SHORT]) == 0
    out, err = capsys.readouterr()
    table = list(csv.reader(io.StringIO(out)))
    assert [row[0] for row in table] == ["decoding", "greedy (ours)", "generate()"]
    assert float(table[1][1]) > 0
    assert "%" not in err  # no progress bars where stderr is no terminal


def test_without_a_model_the_embedded_one_or_its_stand_in_is_used(capsys: Captured) -> None:
    from ppdbench.engine.loading import REFERENCE, STAND_IN, reference_is_there

    assert run(["env", "--baseline", "--format", "json", *SHORT]) == 0
    out, err = capsys.readouterr()
    expected = REFERENCE if reference_is_there() else STAND_IN
    assert json.loads(out)["model"] == expected
    assert (STAND_IN in err) == (expected == STAND_IN)


def test_options_without_effect_are_named(capsys: Captured) -> None:
    assert run(["env", "--dtype", "bfloat16", "--rounds", "3"]) == 0
    err = capsys.readouterr().err
    assert "--dtype means nothing without --model or --baseline" in err
    assert "--rounds means nothing without --baseline" in err
    assert "--rows" not in err
    assert "--revision" not in err


def memory_of(capsys: Captured, *words: str) -> dict[str, Any]:
    assert run(["env", "--format", "json", "--model", *words]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)["memory"]
    return content


def test_memory_of_a_model_is_worked_out_without_making_it(capsys: Captured) -> None:
    """130 GB of weights and 10 of keys and values would not fit where tests run."""
    words = ("--dtype", "bfloat16", "--device", "cpu", "--prompt-tokens", "4000")
    memory = memory_of(capsys, "synthetic:llama-70b", *words)
    assert 136e9 < memory["layers_bytes"] + memory["embedding_and_head_bytes"] < 139e9
    assert memory["cache_bytes"] == 2 * 80 * 8 * 128 * 2 * memory["context"]
    assert memory["held_bytes"]["cpu"] == memory["total_bytes"]


def test_memory_counts_draft_models_and_what_methods_read(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "addon.safetensors").write_bytes(b"0" * 1234)
    drafting = "speculative:draft_model=synthetic:demo"
    reading = f"medusa:addon={tmp_path}"
    memory = memory_of(capsys, TINY, "--method", drafting, "--method", reading)
    draft, files = memory["methods_bytes"].values()
    assert files == 1234
    assert draft == memory_of(capsys, "synthetic:demo")["total_bytes"]
    assert memory["total_bytes"] == memory_of(capsys, TINY)["total_bytes"] + draft + files


def test_memory_says_where_layers_would_go(capsys: Captured) -> None:
    words = ("--device", "cpu", "--device-map", "auto", "--max-memory", "cpu=60MB")
    memory = memory_of(capsys, "synthetic:llama-20m", *words)
    assert set(memory["held_bytes"]) == {"cpu", "disk"}
    assert memory["held_bytes"]["cpu"] <= memory["free_bytes"]["cpu"] == 60_000_000
    assert memory["fits"]


def test_the_memory_table_adds_up_and_says_whether_it_fits(capsys: Captured) -> None:
    assert run(["env", "--model", "synthetic:llama-70b", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "Memory: synthetic:llama-70b" in out
    assert "keys and values of 192 tokens" in out
    assert "Where it goes" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rounds", "0", "--baseline"], "--rounds 0: use 1 or more"),
        (["--new-tokens", "-4"], "--new-tokens -4: use 1 or more"),
        (["--prompt-tokens", "0"], "--prompt-tokens 0: use 1 or more"),
        (["--threads", "0"], "--threads 0, but"),
        (["--threads", "100000"], "--threads 100000, but"),
        (["--device", "tpu"], "device 'tpu' is not"),
        (["--device", "cuda:99"], "'cuda:99' asked for"),
        (["--baseline", "--model", "./nowhere"], "./nowhere does not exist"),
        (["--baseline", "--model", TINY, "--dtype", "int3"], "dtype 'int3' is not known"),
        (["--baseline", "--model", TINY, "--prompt-tokens", "61"], "64 at most"),
        (["--format", "yaml"], "'yaml' is not one of"),
        (["--curve", "--baseline"], "one at a time; give one"),
        (["--curve", "--rows", "0,4"], "--rows 0,4: use 1 or more"),
        (["--curve", "--rows", "many"], "--rows 'many': use numbers"),
        (["--curve", "--rows", "60", "--model", TINY], "64 tokens at most"),
        (["--curve", "--context", "0"], "--context 0: use 1 or more"),
        (["--curve", "--plot", "curve.bmp"], "curve.bmp"),
        (["--rounds", "many"], "'many' is not a valid integer"),
    ],
)
def test_bad_values_are_one_line_and_exit_2(
    capsys: Captured, arguments: list[str], complaint: str
) -> None:
    assert run(["env", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    told = [line for line in err.splitlines() if line.startswith("ppdbench: ")]
    assert len(told) == 1
    assert complaint in told[0]
    assert "Traceback" not in err


def test_help_does_not_wait_for_torch() -> None:
    script = (
        "import sys; from ppdbench.cli.main import run; run(['env', '--help']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--baseline" in done.stdout
