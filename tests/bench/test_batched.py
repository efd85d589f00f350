"""`--batch`: rows, records, verdicts and what is refused; the engine itself is tested elsewhere."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppdbench.bench import batch_sizes, claims
from ppdbench.bench.batch_sizes import streams
from ppdbench.bench.interleaved import Interleaved
from ppdbench.bench.labels import label_alone
from ppdbench.cli.main import run
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.session import Session
from ppdbench.methods import METHODS
from ppdbench.methods.base import Method
from ppdbench.report import batch_tables
from ppdbench.report.outputs import of_run
from ppdbench.report.page.runs import read_runs
from ppdbench.report.terminal import table_lines
from ppdbench.runs.records import TIMES, DecodedSample
from ppdbench.runs.store import RunFolder, read_run
from ppdbench.runs.workload import Item
from tests import processes

MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300,agree=0.9"
SMALL = ["--model", MODEL, "--data", "builtin", "--limit", "6", "--max-new-tokens", "8"]
SMALL += ["--warmup", "1"]
BOTH = ["--method", "greedy", "--method", "prompt-lookup"]


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Outputs of a few milliseconds: whatever else the machine does would be a gap in their times.
    monkeypatch.setattr(claims, "closes", lambda samples: True)


def bench(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert run(["bench", *SMALL, "--format", "json", *arguments]) == code
    return json.loads(capsys.readouterr().out)


def facts(folder: str) -> list[dict[str, Any]]:
    """What is stored of each example, less its times."""
    samples = [msgspec.to_builtins(sample) for sample in read_run(folder).samples]
    left_out = TIMES | {"processes"}
    return [{n: v for n, v in s.items() if n not in left_out} for s in samples]


@dataclass(frozen=True, slots=True, kw_only=True)
class OddOptions:
    """Options of a method that is wrong, or breaks, with every second prompt."""

    breaks: bool = False

    def prepare(self, setup: Setup) -> Decoder:
        return Odd(self.breaks)


class Odd(Decoder):
    """Greedy decoding with another token, or none."""

    def __init__(self, breaks: bool) -> None:
        self.breaks = breaks

    def decode(self, session: Session, request: Request) -> Decoded:
        decoded = autoregressive(session, request)
        if sum(request.prompt) % 2:
            return decoded
        if self.breaks:
            raise RuntimeError("even prompt")
        ids = list(decoded.output_ids)
        ids[3] = (ids[3] + 1) % 200
        return dataclasses.replace(decoded, output_ids=tuple(ids))


@pytest.fixture
def odd() -> Iterator[None]:
    METHODS.add("odd", Method("odd", OddOptions, True, False, "Wrong."))
    yield
    del METHODS._items["odd"]


@pytest.mark.usefixtures("undoubted")
def test_rows_say_what_all_sequences_give_and_what_one_user_sees(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # So many that a busy machine, which keeps some from counting, leaves enough for a speedup.
    found = bench(capsys, *BOTH, "--batch", "1,3", "--limit", "12", "--out", "run")
    rows = {(row["method"], row["batch"]): row for row in found}
    assert set(rows) == {(m, n) for m in ("greedy", "prompt-lookup") for n in (1, 3)}
    for (_, batch), row in rows.items():
        assert row["identical"] == 12
        assert row["tokens_per_s"] == pytest.approx(batch * row["tokens_per_s_per_sequence"])
        assert row["time_to_first_token_ms"] > 0
        assert 0 < row["timed_share"] <= 1
        assert row["speedup"] > 0
        assert row["peak_memory_bytes"] > 0
    assert rows["greedy", 3]["alone_tokens_per_s"] > 0
    lookup = rows["prompt-lookup", 3]
    assert lookup["crossover"] == rows["prompt-lookup", 1]["crossover"]
    assert lookup["label"] == "prompt-lookup (batch 3)"
    # The table has how much faster than greedy decoding of one prompt after the other all are.
    (speed, *_) = batch_tables.sheets(found)
    over = speed.header.index("x\nalone")
    of_greedy = rows["greedy", 1]
    times = {(row[0], row[1]): row[over] for row in speed.rows}
    assert times["greedy", 1] == of_greedy["tokens_per_s"] / of_greedy["baseline_tokens_per_s"]
    assert all(isinstance(value, float) and value > 0 for value in times.values())


def test_a_row_of_one_sequence_is_a_batch_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = bench(capsys, "--method", "greedy")
    assert row["batch"] == 1
    assert row["tokens_per_s"] == row["tokens_per_s_per_sequence"]
    assert row["time_to_first_token_ms"] == pytest.approx(row["prefill_ms"])
    assert row["timed_share"] == 1
    assert "crossover" not in row


def test_batches_and_refill_change_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    every = [*BOTH, "--method", "layerskip", "--method", "lookahead"]
    bench(capsys, *every, "--batch", "1,2,5", "--out", "run")
    outputs: dict[str, set[tuple[int, ...]]] = {}
    for sample in read_run("run").samples:
        outputs.setdefault(sample.example_id, set()).add(tuple(sample.output_ids))
    assert len(outputs) == 6
    assert all(len(found) == 1 for found in outputs.values())


def test_what_is_drawn_does_not_depend_on_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    methods = [*BOTH, "--method", "lookahead"]
    found = bench(capsys, *methods, "--target", "top-p", "--batch", "1,3", "--out", "run")
    assert {(row["n_examples"], row["target"]) for row in found} == {(6, "top-p")}
    outputs: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for sample in read_run("run").samples:
        assert isinstance(sample, DecodedSample)
        alone = label_alone(sample.method, sample.batch)
        outputs.setdefault((alone, sample.example_id), set()).add(tuple(sample.output_ids))
    assert len(outputs) == 3 * 6
    assert all(len(each) == 1 for each in outputs.values())


def test_what_is_stored_says_what_was_timed_and_what_was_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench(capsys, "--method", "prompt-lookup", "--batch", "4", "--out", "run")
    stored = read_run("run")
    for sample in stored.samples:
        assert isinstance(sample, DecodedSample)
        assert sample.batch == 4
        for part in (sample.full, sample.baseline_full, sample.baseline_again_full):
            assert part is not None
        assert sample.full is not None
        assert sample.full.steps <= len(sample.step_ms)
        assert sample.full.ms <= sum(sample.step_ms) + 1e-3
        assert sample.full.tokens <= len(sample.output_ids) - 1
        assert sample.alone is not None
        assert sample.alone.steps == len(sample.output_ids) - 1
    assert sum(s.full.steps for s in stored.samples if isinstance(s, DecodedSample) and s.full)
    assert stored.header.memory is not None
    assert set(stored.header.memory.batches or {}) == {"4"}


def test_memory_is_that_of_all_places_of_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    draft = "draft_model=synthetic:layers=1,hidden=32,heads=2,vocab=300"
    by_batch = {}
    for size in (1, 4):
        words = [*SMALL, "--method", "speculative", "--set", draft, "--batch", str(size)]
        assert run(["decode", *words, "--format", "json"]) == 0
        by_batch[size] = json.loads(capsys.readouterr().out)["memory"]
    one, four = by_batch[1], by_batch[4]
    assert 3 * one["cache_bytes"] < four["cache_bytes"] <= 4 * one["cache_bytes"]
    # One draft model for all, and for each a cache of its own: of one layer where ours has three.
    more = four["method_bytes"] - one["method_bytes"]
    assert 0.8 * one["cache_bytes"] < more < 3 * one["method_bytes"]


def test_a_wrong_output_in_a_batch_ends_the_claim_and_the_run(
    odd: None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench(capsys, "--method", "odd", "--method", "greedy", "--batch", "3", code=1)
    wrong, greedy = found
    assert 0 < wrong["mismatch"] < 6
    assert wrong["mismatch"] + wrong["identical"] == 6
    assert wrong["speedup"] is None
    assert wrong["speedup_withheld"] == "mismatch"
    assert greedy["identical"] == 6


def test_an_example_that_breaks_leaves_its_place_to_the_next(
    odd: None, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--method", "odd:breaks=true", "--batch", "2", "--out", "run"]
    (row,) = bench(capsys, *arguments, code=3)
    assert 0 < row["failed"] < 6
    assert row["failed"] + row["identical"] == 6
    (again,) = bench(capsys, *arguments, "--resume", code=3)
    assert again["failed"] == row["failed"]


def test_greedy_in_a_batch_that_is_not_greedy_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Interleaved.reference

    def another(self: Interleaved, item: Item) -> Decoded:
        decoded = real(self, item)
        ids = list(decoded.output_ids)
        ids[2] = (ids[2] + 1) % 200
        return dataclasses.replace(decoded, output_ids=tuple(ids))

    monkeypatch.setattr(Interleaved, "reference", another)
    assert run(["bench", *SMALL, *BOTH, "--batch", "2"]) != 0
    told = capsys.readouterr().err
    assert "greedy decoding in a batch of 2 gives another output" in told


def test_four_examples_give_times_and_no_speedup(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, "--method", "prompt-lookup", "--batch", "1,2", "--limit", "4")
    assert {row["speedup_withheld"] for row in found} == {"too few examples"}
    assert {row["crossover"] for row in found} == {"too few examples"}
    assert all(row["tokens_per_s"] > 0 for row in found)


def test_a_killed_run_resumes_to_what_an_uninterrupted_one_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", *SMALL, *BOTH, "--batch", "1,2", "--limit", "17", "--max-new-tokens", "4"]
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", processes.slowed(lambda: 0.05))
        with processes.ranks([*words, "--out", "killed"], tmp_path / "said") as (worker,):
            until = time.monotonic() + processes.PATIENCE_S
            while time.monotonic() < until:
                if (tmp_path / "killed/run.json").exists():
                    stored = read_run("killed").samples
                    if sum(s.method.endswith("(batch 2)") for s in stored) > 3:
                        break
                time.sleep(0.02)
            worker.kill()
    held = len(read_run("killed").samples)
    assert 34 < held < 68
    assert run([*words, "--out", "killed", "--resume"]) == 0
    assert run([*words, "--out", "whole"]) == 0
    assert facts("killed") == facts("whole")
    assert len(facts("whole")) == 68


def test_resuming_with_other_batches_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    bench(capsys, "--method", "greedy", "--batch", "2", "--out", "run")
    for other in (["--batch", "3"], [], ["--batch", "2", "--prefill", "8"]):
        assert run(["bench", *SMALL, "--method", "greedy", *other, "--out", "run", "--resume"]) == 2
        told = capsys.readouterr().err
        assert told.startswith("ppdbench: cannot resume: ")
        assert "config." in told
        assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch", "0"], "--batch 0: use 1 or more"),
        (["--batch", "two"], "--batch 'two': use numbers"),
        (["--batch", "7"], "--batch 7: gsm8k has 6 examples here; use 6 or less"),
        (["--batch", "7", "--limit", "1"], "--batch 7: gsm8k has 1 example here; use 1 or less"),
        (["--batch", "2", "--strict"], "--strict fixes the shape"),
        (["--batch", "2", "--profile"], "--profile looks at one sequence"),
        (["--batch", "2", "--compile", "on"], "--compile on is for one sequence"),
        (["--batch", "2", "--prefill", "0"], "--prefill 0: use apart, or rows"),
        (["--prefill", "8"], "--prefill is about batches"),
        (["--batch", "1", "--prefill", "8"], "--prefill is about batches"),
        (["--batch", "2", "--verify-distribution"], "--batch is not for --verify-distribution"),
        (["--plot", "x.png"], "--plot draws speeds by batch"),
        (["--batch", "2", "--plot", "x.txt"], ".png"),
        (["--batch", "4", "--shard", "1/2", "--out", "run"], "of which one of 2 processes gets 3"),
        (["--batch", "2", "--method", "ppd:exit_after=2"], "its units share"),
    ],
)
def test_what_batches_cannot_do_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = [] if "--method" in arguments else ["--method", "greedy"]
    assert run(["bench", *SMALL, *usual, *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_a_batch_that_does_not_fit_is_refused_before_weights_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = batch_sizes.reckon

    def tight(*arguments: Any) -> Any:
        placement = real(*arguments)
        free = placement.need.total + 3 * placement.need.cache + 1
        memory = dataclasses.replace(placement.memory, free={placement.memory.home: free})
        return dataclasses.replace(placement, memory=memory)

    monkeypatch.setattr(batch_sizes, "reckon", tight)
    assert run(["bench", *SMALL, "--method", "greedy", "--batch", "3"]) == 0
    capsys.readouterr()
    assert run(["bench", *SMALL, "--method", "greedy", "--batch", "1,4"]) == 2
    assert "use --batch 3 or less" in capsys.readouterr().err


def test_shards_decode_their_parts_in_batches(capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("1/2", "2/2"):
        words = ["bench", *SMALL, "--method", "greedy", "--batch", "3"]
        assert run([*words, "--shard", part, "--out", "run"]) == 0
    assert [sample.verdict for sample in read_run("run").samples] == ["identical"] * 6


def test_prompts_in_pieces_beside_others_change_no_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = bench(capsys, *BOTH, "--batch", "1,3", "--prefill", "8", "--out", "run")
    assert {row["identical"] for row in found} == {6}
    assert read_run("run").header.config.prefill == 8  # type: ignore[attr-defined]
    assert [row["prefill"] for row in found] == [None, None, 8, 8]
    notes = [note for sheet in of_run(read_runs(["run"])[0]).sheets for note in sheet.notes]
    assert sum("8 rows at a time, beside the steps of others" in note for note in notes) == 1
    assert {row["prefill"] for row in bench(capsys, *BOTH, "--batch", "2")} == {"apart"}


def test_pages_and_pictures_show_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # On a machine that stalls, some of the examples have no step within a full batch.
    bench(capsys, *BOTH, "--limit", "16", "--batch", "1,2", "--out", "run", "--plot", "both.svg")
    assert "tokens/s of all sequences" in Path("both.svg").read_text()
    assert run(["report", "run", "--out", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "speedup over greedy by batch" in page
    assert "Pareto front" in page


def test_tables_of_batches_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    bench(capsys, *BOTH, "--batch", "1,2", "--out", "run")
    sheets = of_run(read_runs(["run"])[0]).sheets
    lines = [line.plain for sheet in sheets for line in table_lines(sheet, 80)]
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines]
    assert sum(row[:2] == ["prompt-lookup", "2"] for row in rows) == 2
    assert any(row[:1] == ["prompt-lookup"] and "pays" in row for row in rows)


def test_streams_take_several_rounds_and_none_is_too_small() -> None:
    assert [len(part) for part in streams(range(16), 4)] == [16]
    assert [len(part) for part in streams(range(40), 4)] == [20, 20]
    assert [len(part) for part in streams(range(5), 4)] == [5]
    assert [i for part in streams(range(37), 2) for i in part] == list(range(37))


def test_a_sweep_over_draft_lengths_and_batches_writes_a_schedule(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["sweep", *SMALL, "--method", "prompt-lookup", "--grid", "max_draft=1,4"]
    assert run([*words, "--batch", "1,3", "--out", "run", "--export", "schedule.json"]) == 0
    assert "Drafted tokens by batch" in capsys.readouterr().out
    found = json.loads(Path("schedule.json").read_text())
    ranges = found["num_speculative_tokens_per_batch_size"]
    assert ranges[0][0] == 1
    assert ranges[-1][1] == 3
    assert {drafted for _, _, drafted in ranges} <= {0, 1, 4}
    assert found["grid"] == {"max_draft": [1, 4], "batch": [1, 3]}
    assert {cell["identical"] for cell in found["cells"]} == {6}
    assert run([*words, "--batch", "2", "--search", "halving"]) == 2
    assert "cells of one batch size" in capsys.readouterr().err


def test_generate_takes_a_padded_batch_of_the_same_prompts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--method", "greedy", "--method", "transformers:greedy", "--batch", "3"]
    found = bench(capsys, *words, "--max-new-tokens", "4", "--out", "run")
    assert [row["identical"] for row in found] == [6, 6]
    assert all(row["tokens_per_s"] > 0 for row in found)
    lengths = {len(sample.prompt_ids) for sample in read_run("run").samples}
    assert len(lengths) > 1
