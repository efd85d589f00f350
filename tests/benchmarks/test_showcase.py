"""`make showcase`: what is planned, what stays away and why, and a page of a very small one."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from benchmarks.showcase import __main__ as showcase
from benchmarks.showcase import archive, page, plan
from benchmarks.showcase.pace import JobPace, in_words
from benchmarks.showcase.plan import ShowcaseAsked, ShowcaseJob, jobs, lacking, lacks, methods_of
from ppdbench.cli.main import run
from ppdbench.files import resources
from ppdbench.runs.store import read_run
from ppdbench.tables import TABLES, steps

DTYPES = ("bfloat16", "float32")
SMALL = "synthetic:layers=4,hidden=32,heads=2,vocab=300,agree=0.9"


def asked(folder: Path = Path("out"), model: str = "reference", **how: object) -> ShowcaseAsked:
    return ShowcaseAsked(folder=folder, model=model, dtypes=DTYPES, **how)  # type: ignore[arg-type]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as if nothing had been trained for any model."""
    monkeypatch.setattr(resources, "PACKAGE", tmp_path)
    return tmp_path


# The plan


def test_all_tables_and_both_types_are_planned_and_what_trains_comes_last() -> None:
    planned = jobs(asked(text="corpus.txt"))
    named = [name for job in planned for name in re.findall(r"[a-z_]+/\w+", job.what)]
    assert sorted(named) == sorted(plan.PAPERS)
    assert [job.dtype for job in planned if job.recipe[0].name == plan.BENCH] == list(DTYPES)
    trains = ["train" in step.command.split()[:1] for job in planned for step in job.recipe]
    assert trains.index(True) > len([job for job in planned if job.dtype == "float32"])
    assert all(step.names <= {"heads"} for job in planned[:-2] for step in job.recipe)


def test_every_task_and_every_method_with_and_without_what_was_trained_stand_in_the_bench() -> None:
    words = plan.bench(asked()).command
    assert words.count("--task ") == 10
    methods = methods_of(asked())
    assert {"greedy", "layerskip", "eagle", "eagle:tree=chain", "medusa"} <= set(methods)
    assert {"ppd", "ppd:head=reference"} <= set(methods)
    assert len(methods) == len(set(methods))


@pytest.mark.usefixtures("bare")
def test_methods_tables_and_heads_without_a_trained_part_stay_away_with_a_word_on_each() -> None:
    here = asked(model="smollm2", text="corpus.txt")
    assert not {"eagle", "medusa", "ppd:head=smollm2"} & set(methods_of(here))
    assert plan.drafts(here) is None
    told = "\n".join(lacking(here))
    for absent in ("eagle: no add-on for smollm2", "heads of layers: none", "rest: no datastore"):
        assert absent in told
    assert "table prompt_ppd/1: it takes medusa, prompt-tokens trained for smollm2" in told
    assert lacks("hidden_transfer/figures", here) is not None
    assert lacks("prompt_ppd/2", here) is None  # it trains its own
    assert "SHOWCASE_TEXT" in str(lacks("prompt_ppd/2", asked(model="smollm2")))
    assert lacks("ppd/2", here) is None


def test_a_part_that_is_there_brings_its_methods_back(bare: Path) -> None:
    (bare / "smollm2/eagle").mkdir(parents=True)
    here = asked(model="smollm2")
    assert {"eagle", "eagle:tree=chain"} <= set(methods_of(here))
    assert not any(line.startswith("eagle") for line in lacking(here))


# How long it takes


def test_an_estimate_is_corrected_by_what_jobs_took() -> None:
    here = asked(limit=2, tokens=16)
    planned = jobs(here)
    pace = JobPace(here)
    before = pace.estimate_s(planned[1:])
    first = pace.estimate_s(planned[:1])
    pace.learn(first, 3 * first)
    assert pace.estimate_s(planned[1:]) == pytest.approx(3 * before)


def test_more_examples_tokens_or_methods_take_longer() -> None:
    small, more, longer = (asked(limit=n, tokens=t) for n, t in ((2, 16), (4, 16), (2, 32)))
    one, two, three = (
        JobPace(a).estimate_s([ShowcaseJob("", "float32", (plan.bench(a),))])
        for a in (small, more, longer)
    )
    assert one < two
    assert one < three
    everything = JobPace(asked()).estimate_s(jobs(asked()))
    assert everything > 3600


def test_times_are_said_as_people_say_them() -> None:
    assert [in_words(s) for s in (0.2, 20, 300, 9000)] == ["1 s", "20 s", "5 min", "2 h 30 min"]


# A small one


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder and the words it was made with; its steps ran in this process, which is quicker."""
    folder = tmp_path_factory.mktemp("showcase")
    words = [str(folder), "--model", SMALL, "--dtypes", "float32", "--limit", "1", "--tokens", "4"]
    words += [
        "--tasks",
        "squad,gsm8k",
        "--tables",
        "ppd/2,layerskip/1,prompt_ppd/1",
        "--threads",
        "1",
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(steps, "_run", lambda typed: run(list(typed)))
        assert showcase.main(words) == 0
    return folder, words


def test_a_page_of_it_all_is_made(made: tuple[Path, list[str]]) -> None:
    text = (made[0] / page.PAGE).read_text("utf-8")
    for title in ("What came out", "The papers’ tables", "What is not here, and why", "ppd/2: "):
        assert title in text, title
    assert "table prompt_ppd/1: it takes medusa, prompt-tokens trained for synthetic" in text
    assert {p.name for p in (made[0] / "tables").iterdir()} == {"ppd-2.md", "layerskip-1.md"}
    rows = json.loads((made[0] / "showcase.json").read_text("utf-8"))
    assert rows[0]["method"] == "greedy"
    assert {"layerskip", "prompt-lookup", "transformers:greedy"} <= {row["method"] for row in rows}
    assert "squad" in text
    assert "float32" in (made[0] / "showcase.md").read_text("utf-8")
    assert (made[0] / page.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_what_is_done_is_not_done_again(
    made: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, words = made
    before = {p: p.stat().st_mtime_ns for p in folder.glob("runs/*/*/samples*.jsonl")}
    assert showcase.main(words) == 0
    assert "4 of 4 jobs are done" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in folder.glob("runs/*/*/samples*.jsonl")} == before


def test_a_method_that_came_later_is_run_beside_greedy_and_stands_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "_run", lambda typed: run(list(typed)))
    words = [str(tmp_path), "--model", SMALL, "--dtypes", "float32", "--limit", "1", "--tables", ""]
    words += ["--tokens", "4", "--tasks", "squad", "--threads", "1"]
    here = asked(tmp_path, SMALL, limit=1, tokens=4, tasks=("squad",))
    job = ShowcaseJob("", "float32", (plan.bench(here),))
    with monkeypatch.context() as before:
        before.setattr(plan, "methods_of", lambda _: ["greedy", "prompt-lookup"])
        assert showcase.main(words) == 0
        whole = JobPace(asked(limit=1, tokens=4, tasks=("squad",))).estimate_s([job])
    monkeypatch.setattr(plan, "methods_of", lambda _: ["greedy", "prompt-lookup", "jacobi"])
    job = ShowcaseJob("", "float32", (plan.bench(here),))
    assert JobPace(here).estimate_s([job]) < whole
    capsys.readouterr()
    assert showcase.main(words) == 0
    assert "1 of 2 jobs are done" in capsys.readouterr().out
    rows = json.loads((tmp_path / "showcase.json").read_text("utf-8"))
    named = [row["method"] for row in rows]
    assert {"greedy", "prompt-lookup", "jacobi", "transformers:greedy"} <= set(named)
    assert "Added to the run later" in (tmp_path / "showcase.md").read_text("utf-8")
    assert read_run(tmp_path / "runs/float32/bench").header.added.keys() == {"jacobi"}


def test_another_size_in_the_same_folder_is_refused(
    made: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert showcase.main([*made[1], "--limit", "2"]) == 2
    assert "was run with" in capsys.readouterr().err


def test_packed_runs_are_laid_out_again_and_make_the_same_page(
    made: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, words = made
    (run,) = (folder / plan.RUNS).glob("*/probe")
    (run / "addon.safetensors").write_bytes(b"weights")
    for _ in range(2):
        assert showcase.main([*words, "--pack"]) == 0
        packed = (folder / archive.ARCHIVE).read_bytes()
        assert "The runs in one file" in capsys.readouterr().out
    assert (folder / archive.ARCHIVE).read_bytes() == packed
    pages = {name: (folder / name).read_bytes() for name in (page.PAGE, "tables/ppd-2.md")}
    assert showcase.main([*words, "--unpack"]) == 2
    assert "is there already" in capsys.readouterr().err
    runs = (folder / plan.RUNS).rename(tmp_path / plan.RUNS)
    assert showcase.main([*words, "--unpack"]) == 0
    assert not list((folder / plan.RUNS).rglob("*.safetensors"))
    files = [path for path in runs.rglob("*.json*") if path.is_file()]
    assert len(files) > 4
    for path in files:
        assert (folder / path.relative_to(tmp_path)).read_bytes() == path.read_bytes()
    assert showcase.main([*words, "--page"]) == 0
    assert {name: (folder / name).read_bytes() for name in pages} == pages


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"),
        (b"no archive", "cannot read"),
        (("runs/../../taken",), "no file of a run"),
        (("elsewhere",), "no file of a run"),
    ],
)
def test_what_is_no_archive_of_runs_is_refused_before_anything_is_written(
    content: bytes | tuple[str] | None,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "showcase"
    folder.mkdir()
    if isinstance(content, bytes):
        (folder / archive.ARCHIVE).write_bytes(content)
    elif content:
        with tarfile.open(folder / archive.ARCHIVE, "w:xz") as made:
            made.addfile(tarfile.TarInfo(content[0]), io.BytesIO())
    assert showcase.main([str(folder), "--unpack"]) == 2
    assert said in capsys.readouterr().err
    left = [path.name for path in tmp_path.rglob("*")]
    assert left == ["showcase", *([archive.ARCHIVE] if content else [])]


def test_nothing_to_pack_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert showcase.main([str(tmp_path), "--pack"]) == 2
    assert "holds no runs to pack" in capsys.readouterr().err


def test_an_estimate_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert showcase.main([str(tmp_path), "--model", SMALL, "--estimate"]) == 0
    said = capsys.readouterr().out
    assert "0 of " in said
    assert "left out: medusa: no add-on" in said
    assert list(tmp_path.iterdir()) == []


def test_a_page_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = tmp_path / "runs/bfloat16/probe"  # and interrupted before its first example
    begun.mkdir(parents=True)
    (begun / "run.json").write_text("{}", "utf-8")
    (begun / "samples.jsonl").touch()
    assert showcase.main([str(tmp_path), "--model", SMALL, "--page"]) == 2
    assert "holds no run yet" in capsys.readouterr().err


def test_every_table_of_the_showcase_exists() -> None:
    assert all(name in TABLES for name in plan.PAPERS)
