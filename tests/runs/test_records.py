"""Stored records: what is written is what is read, and damage is named by file, line and field."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppdbench.errors import DataError
from ppdbench.runs import description
from ppdbench.runs.records import KINDS, DecodedSample, ProbedSample, Record, Settings
from ppdbench.runs.store import read_run
from ppdbench.runs.validation import Unsound, from_json, unsealed
from tests import records
from tests.filled import RunFolder, sample_key, to_line

RESULTS = Path(__file__).parents[2] / "results"
COMMITTED = ("pipelined", "readme", "tables")
STORED = sorted(path.parent for name in COMMITTED for path in (RESULTS / name).glob("**/run.json"))
DECODED = records.sample(
    "decode",
    example_id="7",
    task="squad",
    method="jacobi",
    number=3,
    output_ids=[1, 2, 3],
    accepted=[1],
    proposed=[4],
    step_ms=[2.5],
    baseline_step_ms=[2.0, 2.0],
    scores={"bleu": [1, 2], "squad_f1": 0.5},
)


def run(folder: Path, *samples: dict[str, Any]) -> Path:
    """A decoding run as it is written today; the path of its lines."""
    with RunFolder(folder, records.header("decode"), resume=False) as store:
        for sample in samples or (DECODED,):
            store.append(sample)
    return folder / "samples.jsonl"


# What is stored is read


def test_committed_runs_are_read_whole_and_those_without_checksums_are_said_to_have_none() -> None:
    kinds, sealed = set(), set()
    for folder in STORED:
        raw = (folder / "samples.jsonl").read_bytes().splitlines()
        lines = {sample_key(s): s for s in map(json.loads, raw)}
        without = sum(line.pop("checksum", None) is None for line in lines.values())
        stored = read_run(folder)
        plain = [json.loads(msgspec.json.encode(sample)) for sample in stored.samples]
        assert {sample_key(sample): sample for sample in plain} == lines, folder
        assert without in (0, len(lines))  # a run is of one version
        assert stored.unsealed == without
        kinds.add(stored.header.kind)
        sealed.add(without == 0)
    assert kinds >= {"bench", "decode", "probe", "drafts"}
    assert False in sealed  # runs of versions before are kept to be read


def test_a_record_has_attributes_that_stay_and_is_stored_as_it_is(tmp_path: Path) -> None:
    run(tmp_path)
    (sample,) = read_run(tmp_path).samples
    assert isinstance(sample, DecodedSample)
    assert (sample.accepted, sample.step_ms, sample.exits) == ([1], [2.5], None)
    assert msgspec.to_builtins(sample) == {**DECODED, "processes": 1}
    with pytest.raises(AttributeError):
        sample.accepted = []  # type: ignore[misc]


def test_lines_written_today_carry_checksums(tmp_path: Path) -> None:
    lines = run(tmp_path)
    assert read_run(tmp_path).unsealed == 0
    assert json.loads(lines.read_bytes())["checksum"]


# Damage


def changed(sample: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The line of a changed sample as an earlier version would have written it."""
    made = json.loads(to_line(sample))
    del made["checksum"]
    change(made)
    return json.dumps(made).encode() + b"\n"


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "deleted": (lambda s: s.pop("accepted"), "accepted is missing"),
    "renamed": (lambda s: s.update(qccepted=s.pop("accepted")), "qccepted is no field"),
    "retyped": (lambda s: s.update(accepted="1"), "accepted: expected array, got str"),
    "a text among numbers": (lambda s: s.update(step_ms=["2"]), r"step_ms\[0\]: expected float"),
    "null": (lambda s: s.update(text=None), "text: expected str, got null"),
    "huge": (lambda s: s.update(prefill_ms=1e300), "prefill_ms: expected float <="),
    "below zero": (lambda s: s.update(proposed=[-1]), r"proposed\[0\]: expected int >= 0"),
    "NaN": (lambda s: s.update(prefill_ms=float("nan")), "it is not JSON"),
    "nested": (lambda s: s.update(output_ids=[[1]]), r"output_ids\[0\]: expected int"),
    "one step fewer": (lambda s: s.update(step_ms=[]), "accepted has 1 entries, step_ms has 0"),
    "another verdict": (lambda s: s.update(verdict="fine"), "verdict: invalid enum value 'fine'"),
}


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES)
def test_a_damaged_line_is_named_with_its_field(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], why: str
) -> None:
    lines = run(tmp_path)
    other = {**DECODED, "example_id": "8"}
    lines.write_bytes(lines.read_bytes() + changed(other, change) + to_line(other))
    with pytest.raises(DataError, match=rf"samples\.jsonl line 2 is damaged: .*{why}"):
        read_run(tmp_path)


def test_every_bit_that_flips_in_a_line_is_noticed(tmp_path: Path) -> None:
    line = to_line(DECODED)
    silent = []
    for bit in range(8 * len(line)):
        hurt = bytearray(line)
        hurt[bit // 8] ^= 1 << bit % 8
        try:
            body = unsealed(bytes(hurt))
            from_json(body, DecodedSample)
        except Unsound:
            continue
        silent.append(bit)
    # The one in the last place makes the line torn, which reading tells.
    assert all(bit // 8 == len(line) - 1 for bit in silent)


def test_flips_in_a_header_are_noticed(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "run.json"
    sound = path.read_bytes()
    draw = random.Random(0)
    for _ in range(300):
        hurt = bytearray(sound)
        bit = draw.randrange(8 * len(sound))
        hurt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(hurt))
        try:
            header = read_run(tmp_path).header
        except DataError as error:
            assert str(path) in str(error) or "schema version" in str(error)
            continue
        path.write_bytes(sound)
        assert header == read_run(tmp_path).header  # spaces and line ends do not count


HEADERS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no model": (lambda h: h.pop("model"), "model is missing"),
    "a list as configuration": (lambda h: h.update(config=[]), "config: expected object"),
    "an option too many": (lambda h: h["config"].update(x=1), "config.x is no field"),
    "no number": (lambda h: h["model"].update(n_layers="4"), "model.n_layers: expected int"),
    "an unknown kind": (lambda h: h.update(kind="dance"), "kind: 'dance' is none of decode"),
    "no kind": (lambda h: h.pop("kind"), "kind is missing"),
}


@pytest.mark.parametrize(("change", "why"), HEADERS.values(), ids=HEADERS)
def test_a_damaged_header_is_named_with_its_field(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], why: str
) -> None:
    header = records.header("decode")
    change(header)
    (tmp_path / "run.json").write_text(json.dumps(header))
    with pytest.raises(DataError, match=rf"run\.json is damaged: {why}"):
        read_run(tmp_path)


def test_a_header_that_was_edited_by_hand_is_read_without_its_checksum(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "run.json"
    edited = {**json.loads(path.read_text()), "started": "now"}
    path.write_text(json.dumps(edited))
    with pytest.raises(DataError, match=r"checksum does not fit.*takes the checksum out"):
        read_run(tmp_path)
    del edited["checksum"]
    path.write_text(json.dumps(edited))
    assert read_run(tmp_path).header.started == "now"


class Coloured(DecodedSample, frozen=True, kw_only=True):
    colour: str


def test_what_no_record_knows_cannot_be_stored(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match=r"example 7 cannot be stored: colour is no field"),
        RunFolder(tmp_path, records.header("decode"), resume=False) as store,
    ):
        store.append(Coloured(**DECODED, colour="red"))
    assert (tmp_path / "samples.jsonl").read_bytes() == b""


def test_probed_lines_have_a_rank_for_each_token() -> None:
    told = {"example_id": "1", "task": "squad", "method": "probe", "output_ids": [1, 2]}
    sample = records.sample("probe", **told, ranks={"1": [0]})
    with pytest.raises(Unsound, match="layer 1 has 1 entries, output_ids has 2"):
        from_json(json.dumps(sample).encode(), ProbedSample)


# The types


def test_the_configuration_of_every_run_is_a_record() -> None:
    from ppdbench.bench.runner import DecodeConfig
    from ppdbench.bench.sweep import SweepConfig
    from ppdbench.probe.drafts import DraftsConfig
    from ppdbench.probe.runner import ProbeConfig

    told = {"decode": DecodeConfig, "sweep": SweepConfig, "drafts": DraftsConfig}
    for kind, config in {**told, "probe": ProbeConfig}.items():
        known = {f.name: f.type for f in msgspec.structs.fields(KINDS[kind].header)}["config"]
        assert issubclass(known, Settings)
        assert {f.name for f in fields(config)} == set(known.__struct_fields__)


def test_no_record_holds_what_could_be_anything() -> None:
    """But for the facts of methods, which plug-ins make."""
    loose = [
        f"{record.__name__}.{field.name}"
        for record in all_records(Record)
        for field in msgspec.structs.fields(record)
        if "Any" in str(field.type)
    ]
    assert {name.partition(".")[2] for name in loose} == {"facts"}


def all_records(base: type[Record]) -> list[type[Record]]:
    """It and its heirs."""
    heirs = [heir for heir in base.__subclasses__() if heir.__module__ == base.__module__]
    return [base, *(found for heir in heirs for found in all_records(heir))]


def test_each_field_is_documented_and_the_page_is_current() -> None:
    """Made anew with `python -m ppdbench.runs.description`."""
    assert description.PAGE.read_text("utf-8") == description.records_page()
