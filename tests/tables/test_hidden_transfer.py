"""Hidden Transfer: speedups by method, and what the paper says of its curves."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.cli.main import run
from tests.tables.stored import about, decoded, sample, table

Capture = pytest.CaptureFixture[str]

HERE = about("hidden-transfer", addon="", masked=False)


def test_methods_stand_beside_four_printed_models(tmp_path: Path, capsys: Capture) -> None:
    methods = {"greedy": about("greedy"), "hidden-transfer": HERE, "lookahead": about("lookahead")}
    samples = [sample("xsum", label, n) for label in methods for n in range(5)]
    stored = decoded(tmp_path / "a", methods, samples, not_run={"medusa": "no add-on for m"})
    content = table(capsys, "hidden_transfer/1", stored, code=3)
    rows = {(row["task"], row["method"]): row for row in content["rows"]}
    ours = rows["xsum", "hidden-transfer"]
    assert (ours["LLaMA 13B"], ours["Vicuna 7B"]) == (1.532, 1.786)
    assert ours["here"] == pytest.approx(1.6)
    assert ours["less mean"] == pytest.approx(1.6 - (1.532 + 1.419 + 1.816 + 1.786) / 4)
    assert ours["tokens per pass"] == 2
    assert ours["95% low"] <= ours["here"] <= ours["95% high"]
    assert rows["xsum", "greedy"]["here"] == 1
    assert rows["xsum", "lookahead"]["Vicuna 7B"] is None
    assert rows["xsum", "lookahead"]["here"] == pytest.approx(1.6)
    assert rows["gsm8k", "medusa"]["LLaMA 13B"] == 1.976
    assert rows["gsm8k", "medusa"]["here"] is None
    assert "medusa did not run: no add-on for m" in content["notes"]


def test_what_noise_can_be_is_no_speedup_in_a_table_either(tmp_path: Path, capsys: Capture) -> None:
    methods = {name: about(name) for name in ("greedy", "medusa", "draft-verify")}
    samples = [sample("xsum", label, n) for label in methods for n in range(5)]
    for each in samples:
        if each["method"] == "medusa":  # as fast as greedy decoding, here more and there less
            each["step_ms"] = [7.6 + 0.2 * int(each["example_id"])] * 4
        if each["method"] == "draft-verify":
            each["output_ids"] = [7] * 9
    folder = decoded(tmp_path / "a", methods, samples)
    content = table(capsys, "hidden_transfer/1", folder)
    rows = {row["method"]: row for row in content["rows"] if row["task"] == "xsum"}
    assert rows["medusa"]["here"] is rows["medusa"]["less mean"] is None
    assert rows["medusa"]["95% low"] < 1 < rows["medusa"]["95% high"]
    assert (rows["greedy"]["here"], rows["greedy"]["95% low"]) == (1, None)
    notes = " ".join(content["notes"])
    assert "No speedup, no difference from the noise of greedy decoding: medusa on xsum [" in notes
    assert "Fewer than 16 examples" in notes


def test_two_settings_under_one_name_in_two_runs_are_refused(
    tmp_path: Path, capsys: Capture
) -> None:
    def of(folder: str, *trees: str) -> str:
        methods = {f"medusa{n or ''}": about("medusa", tree=tree) for n, tree in enumerate(trees)}
        samples = [sample("xsum", label, n) for label in methods for n in range(5)]
        return decoded(tmp_path / folder, methods, samples)

    one, other, both = of("a", "narrow"), of("b", "wide"), of("c", "narrow", "wide")
    assert run(["table", "hidden_transfer/1", one, other]) == 2
    said = f"medusa ({one}) and medusa ({other}) are two settings of medusa on xsum"
    assert said in capsys.readouterr().err
    rows = table(capsys, "hidden_transfer/1", both)["rows"]
    assert {row["method"] for row in rows if row["here"]} == {"medusa", "medusa1"}
