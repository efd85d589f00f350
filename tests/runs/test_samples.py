"""Sample files of several processes: read together they are one run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from ppdbench.errors import ConfigError, DataError
from ppdbench.runs import samples
from ppdbench.runs.salvage import salvage
from ppdbench.runs.samples import HEAD, InOrder, SampleLocation, Stored, sample_paths
from ppdbench.runs.store import read_once, read_run, read_whole
from tests import records
from tests.filled import RunFolder, header_of, sample_key, to_line, typed


def on(device: str) -> dict[str, Any]:
    """The header of a run on this device."""
    return records.header("bench", model={"device": device})


HEADER = on("cuda:0")


def sample(number: int, **more: Any) -> dict[str, Any]:
    made = {"example_id": f"é{number}", "task": "squad", "method": "greedy", "verdict": "identical"}
    return records.sample("bench", **{**made, "number": number, **more})


def lines(path: Path, *some: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(map(to_line, some)))
    return path


def stored(folder: Path, *parts: list[int]) -> Path:
    """A run of as many processes as there are parts."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(HEADER))
    for index, numbers in enumerate(parts):
        lines(folder / f"samples-{index}.jsonl", *map(sample, numbers))
    return folder


def numbers(folder: Path) -> list[int]:
    return [line.number for line in read_run(folder).samples]


# One run of many files


def test_files_are_read_together_in_the_order_of_examples(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [1, 4], [0, 3], [2])
    lines(folder / "samples.jsonl", sample(5))
    assert numbers(folder) == [0, 1, 2, 3, 4, 5]


def test_ten_files_come_in_the_order_of_their_numbers_and_others_are_left_alone(
    tmp_path: Path,
) -> None:
    folder = stored(tmp_path / "run", *[[n] for n in range(11)])
    lines(folder / "samples.jsonl", sample(11))
    for other in ("samples-x.jsonl", "samples.jsonl.damaged", "samples-0.jsonl.part"):
        (folder / other).write_text("not JSON\nat all\n")
    found = [path.name for path in sample_paths(folder)]
    assert found == ["samples.jsonl", *[f"samples-{n}.jsonl" for n in range(11)]]


def test_lines_without_numbers_keep_their_order(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run")
    plain = [sample(n) for n in (3, 1, 2)]
    for one in plain:
        del one["number"]
    lines(folder / "samples.jsonl", *plain)
    assert [line.example_id for line in read_run(folder).samples] == ["é3", "é1", "é2"]


def test_a_result_beats_a_failure_whichever_file_it_is_in(tmp_path: Path) -> None:
    for good, bad in (("samples-0", "samples-1"), ("samples-1", "samples-0")):
        folder = stored(tmp_path / good)
        lines(folder / f"{good}.jsonl", sample(0))
        lines(folder / f"{bad}.jsonl", sample(0, verdict="failed"), sample(1, verdict="failed"))
        found = {line.number: line.verdict for line in read_run(folder).samples}
        assert found == {0: "identical", 1: "failed"}


def test_within_a_file_the_later_one_counts(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run")
    lines(folder / "samples.jsonl", sample(0, text="first"), sample(0, text="second"))
    (only,) = read_run(folder).samples
    assert only.text == "second"


def test_a_torn_line_of_any_file_is_left_out_and_told(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [0, 1], [2, 3])
    torn = folder / "samples-1.jsonl"
    torn.write_bytes(torn.read_bytes()[:-9])
    assert read_run(folder).torn
    assert numbers(folder) == [0, 1, 2]


def test_a_resumed_run_cuts_torn_lines_of_all_files_and_writes_its_own(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [0, 1], [2, 3])
    both = [folder / "samples-0.jsonl", folder / "samples-1.jsonl"]
    for torn in both:
        torn.write_bytes(torn.read_bytes()[:-9])
    with RunFolder(folder, HEADER, resume=True) as run_folder:
        assert (len(run_folder.done), run_folder.cut_off) == (2, both)
        for number in (1, 3):
            run_folder.append(sample(number))
        assert [s.number for s in run_folder.gather()] == [0, 1, 2, 3]
    assert not read_run(folder).torn
    assert numbers(folder) == [0, 1, 2, 3]


def test_damage_names_the_file_and_the_line_and_what_to_do(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [0, 1], [2, 3, 4])
    hurt = folder / "samples-1.jsonl"
    hurt.write_bytes(hurt.read_bytes().replace(b'"number": 3', b'"number": '))
    with pytest.raises(DataError, match=r"samples-1\.jsonl line 2 is damaged.*--salvage"):
        read_run(folder)


def test_methods_and_targets_of_an_example_come_in_the_order_of_the_header(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run")
    header = records.header("bench", methods={"b": {}, "a": {}})
    (folder / "run.json").write_text(json.dumps(header))
    lines(folder / "samples-0.jsonl", sample(1, method="a"), sample(0, method="a"))
    lines(folder / "samples-1.jsonl", sample(1, method="b"), sample(0, method="b"))
    found = [(s.number, s.method, s.target) for s in read_run(folder).samples]
    assert found == [(0, "b", None), (0, "a", None), (1, "b", None), (1, "a", None)]
    told = {"example_id": "2", "task": "squad", "method": "probe", "number": 2}
    drawn = [{**told, "target": name} for name in ("greedy", "top-p")]
    config = {"targets": [{"kind": "top-p"}, {"kind": "greedy"}]}
    probed = records.write_run(tmp_path / "probed", "probe", drawn, config=config)
    assert [s.target for s in read_run(probed).samples] == ["top-p", "greedy"]


# Heads


def test_a_line_begins_with_what_puts_it_in_its_place() -> None:
    line = to_line({"text": "x", "number": 3, "target": "greedy", **sample(3, target="top-p")})
    assert list(json.loads(line))[: len(HEAD)] == list(HEAD)


ODD = [
    {},
    {"target": "top-p"},
    {"verdict": "failed"},
    {"example_id": 'quoted "id"'},
    {"example_id": "back\\slash"},
    {"task": "two\nlines"},
    {"turn": None},
    {"method": "layerskip:exit_layer=2,draft_length=4"},
]


@pytest.mark.parametrize("change", ODD, ids=repr)
def test_heads_alone_tell_what_whole_lines_tell(tmp_path: Path, change: dict[str, Any]) -> None:
    odd = sample(4, **change)
    lines(tmp_path / "samples.jsonl", odd)
    by_head, whole = Stored(tmp_path, header_of(HEADER)), Stored(tmp_path, header_of(HEADER))
    by_head.look(whole=False)
    whole.look(whole=True)
    assert list(by_head) == list(whole) == [sample_key(odd)]
    assert dict(by_head) == dict(whole)


def test_a_large_run_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(tmp_path / "run", [1, 3], [0, 2])
    small = list(read_run(folder).samples)
    monkeypatch.setattr(samples, "HELD_BYTES", 10)
    large = read_run(folder).samples
    assert isinstance(large, InOrder)
    assert list(large) == small
    assert large[1:3] == small[1:3]
    assert large[-1] == small[-1]


def test_who_reads_all_of_a_large_run_has_it_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stored(tmp_path / "run", [1, 3], [0, 2])
    monkeypatch.setattr(samples, "HELD_BYTES", 10)
    monkeypatch.setattr(SampleLocation, "read", lambda *_: pytest.fail("read twice"))
    whole = read_whole(folder).samples
    assert [found.number for found in whole] == [0, 1, 2, 3]


def test_who_reads_a_run_once_has_none_of_it_in_memory(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [1, 3], [0, 2])
    found = read_once(folder).samples
    assert list(found) == list(read_whole(folder).samples)
    assert found[0] is not found[0]


def test_of_many_files_only_some_are_open_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stored(tmp_path / "run", [0, 3], [1, 4], [2, 5])
    monkeypatch.setattr(samples, "MOST_OPEN", 2)
    opened: list[Any] = []

    def noting(path: Path, *mode: str) -> Any:
        opened.append(real(path, *mode))
        return opened[-1]

    real = Path.open
    run = read_once(folder)
    monkeypatch.setattr(Path, "open", noting)
    for number, found in enumerate(run.samples):
        assert found.number == number
        assert sum(not file.closed for file in opened) <= 2
    assert len(opened) >= 3
    assert all(file.closed for file in opened)


def test_damage_within_a_line_is_told_when_its_turn_comes(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run")
    path = lines(folder / "samples.jsonl", *(sample(n, text="abc") for n in range(3)))
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:-2] + b"?}\n" + third)
    found = iter(read_once(folder).samples)
    assert next(found).number == 0
    with pytest.raises(DataError, match="line 2 is damaged"):
        next(found)


def test_turns_are_counted_apart_from_their_questions() -> None:
    told = [sample(0), sample(0, method="other"), sample(1, turn=1), sample(2, turn=2)]
    asked = [typed("bench", each) for each in told]
    assert (samples.count_examples(asked), samples.count_turns(asked)) == (2, 3)
    assert samples.in_turns(8, 16) == "8 in 16 turns"
    assert samples.in_turns(8, 8, "example") == "8 examples"
    assert samples.in_turns(1, 1, "example") == "1 example"


def test_damage_inside_a_large_run_is_named_when_it_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stored(tmp_path / "run", [])
    path = lines(folder / "samples-0.jsonl", *[sample(n, exits=[n]) for n in range(3)])
    path.write_bytes(path.read_bytes().replace(b'"exits": [1]', b'"exits": [1'))
    monkeypatch.setattr(samples, "HELD_BYTES", 10)
    found = read_run(folder).samples
    assert found[2].exits == [2]
    with pytest.raises(DataError, match=r"samples-0\.jsonl line 2 is damaged"):
        list(found)
    # Before work is added to it, all of a run is looked at.
    with pytest.raises(DataError, match="line 2"):
        RunFolder(folder, HEADER, resume=True)


def test_samples_that_no_longer_fit_are_found_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "HELD_BYTES", 250)
    with RunFolder(tmp_path, HEADER, resume=False) as folder:
        for number in range(6):
            folder.append(sample(number))
            assert folder.done[sample_key(sample(number))].number == number
        assert [s.number for s in folder.gather()] == list(range(6))


def test_any_of_several_equal_devices_may_continue_a_run(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [0])
    with RunFolder(folder, on("cuda:3"), resume=True) as store:
        assert len(store.done) == 1
    with pytest.raises(ConfigError, match=r'model\.device \("cuda" there, "cpu" here\) differs'):
        RunFolder(folder, on("cpu"), resume=True)


def test_reading_a_run_never_imports_torch(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [0, 1], [2])
    code = "import sys; from ppdbench.runs.salvage import salvage\n"
    code += "from ppdbench.runs.store import read_run\n"
    code += "print(salvage(__import__('pathlib').Path(sys.argv[1])), end=' ')\n"
    code += "print(len(read_run(sys.argv[1]).samples), 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "3", "False"]


# Salvage


def hurt(folder: Path) -> Path:
    """Two damaged lines in one file of the run."""
    path = folder / "samples-1.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first[:20] + b"\n" + second + third[:-9] + first)
    return path


def test_salvage_drops_damaged_lines_and_keeps_the_file_as_it_was(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [0, 1], [2, 3, 4])
    path = hurt(folder)
    before, sound = path.read_bytes(), (folder / "samples-0.jsonl").read_bytes()
    assert salvage(folder) == 2
    assert numbers(folder) == [0, 1, 3]
    assert (folder / "samples-1.jsonl.damaged").read_bytes() == before
    assert (folder / "samples-0.jsonl").read_bytes() == sound
    assert salvage(folder) == 0
    assert sorted(p.name for p in folder.glob("*.damaged*")) == ["samples-1.jsonl.damaged"]


def test_an_earlier_damaged_file_is_not_overwritten(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [0, 1], [2, 3, 4])
    (folder / "samples-1.jsonl.damaged").write_text("earlier")
    hurt(folder)
    assert salvage(folder) == 2
    assert (folder / "samples-1.jsonl.damaged").read_text() == "earlier"
    assert (folder / "samples-1.jsonl.damaged-2").exists()


def test_a_run_being_written_is_not_repaired(tmp_path: Path) -> None:
    with RunFolder(tmp_path, HEADER, resume=False) as folder:
        folder.append(sample(0))
        with pytest.raises(ConfigError, match="being written by another process"):
            salvage(tmp_path)


def test_what_is_no_run_is_not_repaired(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no run folder"):
        salvage(tmp_path)


MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
PROBE = ["probe", "--model", MODEL, "--data", "builtin", "--task", "squad", "--limit", "4"]
PROBE += ["--max-new-tokens", "8", "--format", "csv"]


def test_a_damaged_run_goes_on_with_salvage_and_ends_as_it_would_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*PROBE, "--out", str(tmp_path / "run")]
    assert run(asked) == 0
    whole = capsys.readouterr().out
    path = tmp_path / "run" / "samples.jsonl"
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(kept[0] + kept[1][50:] + kept[2] + kept[3])
    assert run([*asked, "--resume"]) == 2
    assert "samples.jsonl line 2 is damaged" in capsys.readouterr().err
    assert run([*asked, "--resume", "--salvage"]) == 0
    done = capsys.readouterr()
    assert done.out == whole
    assert "1 damaged line dropped" in done.err
    assert len(path.read_bytes().splitlines()) == 4


def test_salvage_without_a_run_to_continue_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in (["--salvage"], ["--salvage", "--out", str(tmp_path)]):
        assert run([*PROBE, *more]) == 2
        assert "--salvage needs --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["theory --run RUN", "table ppd/3 RUN", "report RUN", "check RUN --baseline RUN"]
)
def test_commands_that_read_runs_refuse_damage_and_salvage_drops_it(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = stored(tmp_path / "run", [0, 1], [2, 3, 4])
    hurt(folder)
    asked = words.replace("RUN", str(folder)).split()
    assert run(asked) == 2
    assert "samples-1.jsonl line 1 is damaged" in capsys.readouterr().err
    run([*asked, "--salvage"])
    said = capsys.readouterr().err
    assert "2 damaged lines dropped from" in said
    assert "is damaged" not in said
    assert numbers(folder) == [0, 1, 3]
