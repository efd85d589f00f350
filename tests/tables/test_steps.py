"""What `table --run` runs, what it keeps, and what it refuses to mix."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from ppdbench.errors import ConfigError, Interrupted
from ppdbench.tables import steps
from ppdbench.tables.recipe import RecipeStep
from ppdbench.tables.steps import RunScale, StepFailed, methods_left, run_missing
from tests.tables.made import probed, write_run

FIRST = RecipeStep("first", "probe --task squad --layers {1/2} --limit 100")
SECOND = RecipeStep("second", "bench --task squad --method medusa:addon={trained}")
OTHER = RecipeStep("other", "decode --task squad")
TRAINED = RecipeStep("trained", "train medusa --text {text}")


class Recorder:
    """Stands in for the processes: keeps their command lines, leaves what each would."""

    def __init__(self, *codes: int) -> None:
        self.lines: list[str] = []
        self.codes = list(codes)

    def __call__(self, words: Sequence[str]) -> int:
        self.lines.append(" ".join(words))
        place = Path(words[list(words).index("--out") + 1])
        if not place.is_dir() and words[0] != "train":
            write_run(place, words[0], [probed("squad", 0, {4: [0]})])
        elif words[0] == "train":
            place.mkdir()
            (place / "training.json").write_text("{}", "utf-8")
        return self.codes.pop(0) if self.codes else 0


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorder]:
    def record(*codes: int) -> Recorder:
        made = Recorder(*codes)
        monkeypatch.setattr(steps, "_run", made)
        return made

    return record


def make(folder: Path, *recipe: RecipeStep, **scale: object) -> None:
    run_missing(recipe, folder, RunScale(**scale), depth=lambda: 8, report=print)  # type: ignore[arg-type]


def test_steps_run_with_the_models_layers_and_what_the_user_adds(
    tmp_path: Path, recorder: Callable[..., Recorder]
) -> None:
    ran = recorder()
    make(
        tmp_path,
        *(FIRST, TRAINED, SECOND),
        model=("--model", "m"),
        work=("--limit", "4"),
        passing=("--offline",),
        text="texts/t.txt",
    )
    assert ran.lines == [
        f"probe --task squad --layers 4 --model m --limit 4 --offline --out {tmp_path}/first",
        f"train medusa --text texts/t.txt --model m --offline --out {tmp_path}/trained",
        f"bench --task squad --method medusa:addon={tmp_path}/trained --model m --limit 4 "
        f"--offline --out {tmp_path}/second",
    ]


def test_what_is_finished_is_not_run_again_nor_the_models_depth_asked(
    tmp_path: Path, recorder: Callable[..., Recorder]
) -> None:
    recorder()
    make(tmp_path, FIRST)
    ran = recorder()

    def depth() -> int:
        raise AssertionError

    run_missing((FIRST,), tmp_path, RunScale(passing=("--offline",)), depth=depth, report=print)
    assert ran.lines == []


def test_a_step_that_was_cut_off_goes_on_where_it_stopped(
    tmp_path: Path, recorder: Callable[..., Recorder]
) -> None:
    recorder(-signal.SIGKILL)
    with pytest.raises(StepFailed, match="step first ended with exit code -9"):
        make(tmp_path, FIRST)
    ran = recorder()
    make(tmp_path, FIRST, OTHER)
    assert ran.lines[0].endswith("--resume")
    assert not ran.lines[1].endswith("--resume")


def test_failed_examples_and_mismatches_do_not_stop_the_table_but_failures_are_tried_again(
    tmp_path: Path, recorder: Callable[..., Recorder]
) -> None:
    ran = recorder(3, 1)
    make(tmp_path, FIRST, OTHER)
    assert len(ran.lines) == 2
    ran = recorder()
    make(tmp_path, FIRST, OTHER)
    (again,) = ran.lines
    assert again.startswith("probe")


def test_a_folder_of_other_options_or_another_recipe_is_not_mixed_in(
    tmp_path: Path, recorder: Callable[..., Recorder]
) -> None:
    recorder()
    make(tmp_path, FIRST, work=("--limit", "4"))
    with pytest.raises(ConfigError, match="was run with --limit 4, now it is no options"):
        make(tmp_path, FIRST)
    with pytest.raises(ConfigError, match="made by another recipe"):
        make(tmp_path, RecipeStep("first", "probe --task xsum"), work=("--limit", "4"))


def test_a_bench_that_is_done_goes_on_with_methods_that_came_to_its_step(
    tmp_path: Path, recorder: Callable[..., Recorder]
) -> None:
    words = "bench --task squad --method greedy --method lookahead"
    begun, more, fewer, other = (
        RecipeStep("both", command)
        for command in (
            words,
            "bench --task squad --method greedy --method hybrid:of=eagle --method lookahead",
            "bench --task squad --method hybrid --method greedy",
            f"{words} --method hybrid --seed 1",
        )
    )
    recorder()
    make(tmp_path, begun)
    assert methods_left(begun, tmp_path) == []
    assert methods_left(more, tmp_path) == ["hybrid:of=eagle"]
    for step in (fewer, other):
        with pytest.raises(ConfigError, match="made by another recipe"):
            make(tmp_path, step)
    for code in (-signal.SIGKILL, 0):  # until it ended well it is not done
        ran = recorder(code)
        with suppress(StepFailed):
            make(tmp_path, more)
        assert ran.lines == [f"{more.command} --out {tmp_path}/both --resume"]
    ran = recorder()
    make(tmp_path, more)
    assert ran.lines == []
    with pytest.raises(ConfigError, match="made by another recipe"):
        make(tmp_path, begun)


def test_a_table_that_trains_asks_for_a_text_before_anything_runs(
    tmp_path: Path, recorder: Callable[..., Recorder]
) -> None:
    ran = recorder()
    with pytest.raises(ConfigError, match="--text FILE"):
        make(tmp_path, FIRST, TRAINED)
    assert ran.lines == []


def test_an_interrupted_step_ends_the_command_with_its_exit_code(
    tmp_path: Path, recorder: Callable[..., Recorder]
) -> None:
    recorder(130)
    with pytest.raises(Interrupted, match="step first") as caught:
        make(tmp_path, FIRST)
    assert caught.value.exit_code == 130


def test_the_mark_says_which_text_but_not_where_it_lay(
    tmp_path: Path, recorder: Callable[..., Recorder]
) -> None:
    recorder()
    make(tmp_path, TRAINED, text="texts/t.txt")
    mark = json.loads((tmp_path / "trained" / "step.json").read_text("utf-8"))
    assert (mark["command"], mark["options"]) == (TRAINED.command, ["--text", "t.txt"])
    ran = recorder()
    make(tmp_path, TRAINED, text="elsewhere/t.txt")
    assert ran.lines == []
    assert steps.missing_steps((TRAINED, FIRST), tmp_path) == [FIRST]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"comand": "train"}, "unknown key comand: did you mean command"),
        ({"command": 7}, "command must be text, not the number 7"),
        ({"options": None}, "options must be a list of texts, not null"),
    ],
)
def test_a_damaged_mark_is_named(
    change: dict[str, object], words: str, tmp_path: Path, recorder: Callable[..., Recorder]
) -> None:
    recorder()
    make(tmp_path, TRAINED, text="t.txt")
    path = tmp_path / "trained" / "step.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(ConfigError, match=f"mark of a step .*step.json: {words}"):
        make(tmp_path, TRAINED, text="t.txt")
