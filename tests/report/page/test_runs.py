"""Which runs a page takes, what they are called, and which may stand side by side."""

import json
from pathlib import Path

import pytest

from ppdbench.errors import ConfigError, DataError
from ppdbench.report.page.comparison import differences, groups
from ppdbench.report.page.runs import Run, read_runs
from ppdbench.runs import samples
from tests.report.page import made


def two(tmp_path: Path, **changes: object) -> list[Run]:
    return read_runs([made.bench(tmp_path / "a"), made.bench(tmp_path / "b", **changes)])


def test_runs_are_called_by_as_much_of_their_path_as_tells_them_apart(tmp_path: Path) -> None:
    one, other = made.bench(tmp_path / "x" / "run"), made.probe(tmp_path / "y" / "run")
    assert [run.name for run in read_runs([one])] == ["run"]
    assert [run.name for run in read_runs([one, other])] == ["x/run", "y/run"]


def test_a_run_given_twice_is_refused_however_it_is_written(tmp_path: Path) -> None:
    run = made.bench(tmp_path / "a")
    with pytest.raises(ConfigError, match="given twice"):
        read_runs([run, run / ".." / "a"])


def test_an_empty_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    run = made.write(tmp_path / "a", made.header("bench", methods=made.methods("greedy")), [])
    with pytest.raises(DataError, match=r"no finished samples; finish the run with --resume"):
        read_runs([run])
    (run / "samples.jsonl").write_text('{"schema', "utf-8")
    with pytest.raises(DataError, match=r"no finished samples, only a line that is incomplete;"):
        read_runs([run])


def test_a_probe_of_failures_alone_has_nothing_to_show(tmp_path: Path) -> None:
    samples = [made.probed(verdict="failed", output_ids=[], ranks={})]
    run = made.write(tmp_path / "a", made.header("probe"), samples)
    with pytest.raises(DataError, match="every example failed"):
        read_runs([run])


def test_other_schema_versions_are_refused(tmp_path: Path) -> None:
    good, other = made.bench(tmp_path / "a"), made.bench(tmp_path / "b", schema_version=99)
    with pytest.raises(DataError, match="schema version 99"):
        read_runs([good, other])


def test_kinds_of_runs_without_a_page_are_refused_by_name(tmp_path: Path) -> None:
    run = made.probe(tmp_path / "a")
    header = {**json.loads((run / "run.json").read_text("utf-8")), "kind": "train"}
    (run / "run.json").write_text(json.dumps(header), "utf-8")
    with pytest.raises(DataError, match=r"kind: 'train' is none of decode, .*probe"):
        read_runs([run])


def test_all_figures_of_a_decoding_run_come_from_reading_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    parse = samples.parse_sample
    monkeypatch.setattr(
        samples, "parse_sample", lambda line, kind: read.append(line) or parse(line, kind)
    )
    folder = made.bench(tmp_path / "a")
    written = (folder / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (run,) = read_runs([folder])
    assert run.summaries
    assert run.overall
    assert not run.mismatches
    assert len(read) == len(written)


def test_equal_conditions_can_be_compared(tmp_path: Path) -> None:
    one, other = two(tmp_path)
    assert differences(one, other) == []
    assert groups([one, other], "gsm8k") == [[one, other]]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("model__weight_hash", "dead", "weights (feed and dead)"),
        ("model__dtype", "bfloat16", "type of numbers (float32 and bfloat16)"),
        ("environment__cpu__model", "Other CPU", "processor (Some CPU and Other CPU)"),
        ("environment__torch__threads", 8, "threads (1 and 8)"),
        ("config__strict", True, "fixed shapes (False and True)"),
        ("config__prefill", 64, "prompts that join a batch (apart and 64)"),
        ("data__gsm8k__sha256", "cccc", "other examples or lengths"),
        ("config__max_new_tokens", 99, "other examples or lengths"),
    ],
)
def test_what_differs_keeps_runs_apart_and_is_named(
    tmp_path: Path, path: str, value: object, words: str
) -> None:
    one, other = two(tmp_path, **{path: value})
    assert differences(one, other) == [words]
    assert groups([one, other], "gsm8k") == [[one], [other]]


def test_other_temperatures_and_other_prompts_keep_runs_apart(tmp_path: Path) -> None:
    drawn = {"kind": "top-p", "top_k": 3, "top_p": 0.5, "temperature": 0.3}
    head = made.header("bench", methods=made.methods("swift"))
    written = []
    for name, changes in {
        "plain": {},
        "chat": {"chat": {"template": "abcd", "system": None, "settings": {}}},
        "cool": {"config": {**head["config"], "target": drawn}},
        "warm": {"config": {**head["config"], "target": {**drawn, "temperature": 1.0}}},
    }.items():
        samples = [made.decoded("swift")]
        written.append(made.write(tmp_path / name, {**head, **changes}, samples))
    plain, chat, cool, warm = read_runs(written)
    (words,) = differences(plain, chat)
    assert words.startswith("prompts (")
    assert "chat template abcd" in words
    (words,) = differences(cool, warm)
    assert words.startswith("target (top-p, ")
    assert "temperature=0.3" in words
    assert groups([plain, chat, cool, warm], "gsm8k") == [[plain], [chat], [cool], [warm]]


def test_times_of_a_shared_machine_are_not_those_of_an_idle_one(tmp_path: Path) -> None:
    head = made.header("bench", methods=made.methods("swift"))
    alone = made.write(tmp_path / "a", head, [made.decoded("swift")])
    shared = made.write(tmp_path / "b", head, [made.decoded("swift", processes=4)])
    assert differences(*read_runs([alone, shared])) == ["processes at once (1 and 4)"]
