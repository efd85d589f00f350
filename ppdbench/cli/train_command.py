"""`ppdbench train`: a command for each registered plan, made of its fields and its docstring."""

from __future__ import annotations

import inspect
from dataclasses import Field, fields
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import click

from ppdbench import methods as methods  # registers the plans of methods
from ppdbench.cli.common import model_spec, notice, parse_numbers, stand_in_note
from ppdbench.cli.help import AT_MOST, Command
from ppdbench.cli.options import model_options, stack
from ppdbench.cli.scoring import Scoring, scoring_options
from ppdbench.cli.training import (
    FIRST,
    carry_out,
    fill_in,
    job_of,
    print_forecast,
    save_dtype_option,
    states_option,
    training_options,
)
from ppdbench.engine.shapes import parse
from ppdbench.errors import ConfigError
from ppdbench.registry import option_types
from ppdbench.training.plans import TRAINABLES, Trainable, TrainingPlan, WholePlan

if TYPE_CHECKING:
    from ppdbench.training.run import Job, Training

whole_options = stack(
    click.option(
        "--save-dtype", default="float32", show_default=True, help="Type of the saved weights."
    ),
    scoring_options,
)


def _train(trainable: Trainable, options: dict[str, Any]) -> int:
    """Carry out a command: from its options to a plan, a job and a training."""
    from ppdbench.training.run import saved_dtype

    dtype = saved_dtype(options.pop("save_dtype", None))
    plan = trainable.plan(**{f.name: options.pop(f.name) for f in _fields(trainable)})
    scoring = None
    if isinstance(plan, WholePlan):
        scoring = Scoring.asked(options, plan.shape or options["model"])
    fill_in(options, plan.usual())
    job, resume, dry = job_of(options)
    if scoring is not None:
        scoring.check(job.out)
    training = _training(trainable.name, plan, options, job)
    for note in plan.notes(training.objective):
        notice(note)
    if dry:
        return print_forecast(training)
    carry_out(training, resume, dtype)
    if isinstance(plan, WholePlan) and scoring is not None and training.is_main:
        scoring.carry_out(job.out, plan.scored_with(training.n_layers))
    return 0


def _training(name: str, plan: TrainingPlan, options: dict[str, Any], job: Job) -> Training:
    from ppdbench.training import prepare

    asked = options["model"]
    if isinstance(plan, WholePlan) and plan.shape is not None:
        if asked:
            raise ConfigError("--shape trains from scratch, --model goes on; give one of them")
        return prepare.training_from_scratch(name, plan, parse(plan.shape), options["device"], job)
    made = prepare.training_of_whole if isinstance(plan, WholePlan) else prepare.training_beside
    training = made(name, plan, model_spec(options), job)
    stand_in_note(asked)
    return training


def _command(trainable: Trainable) -> click.Command:
    """The command that trains by a plan."""

    def callback(**options: Any) -> int:
        return _train(trainable, options)

    types = option_types(trainable.plan)
    own = [_option(field, types[field.name]) for field in _fields(trainable)]
    saving = [save_dtype_option] if trainable.save_dtype else []
    keeping = [states_option] if trainable.of_states else []
    decorate = stack(
        *own,
        *([whole_options] if trainable.whole else saving),
        training_options,
        *keeping,
        model_options,
    )
    first = [field.name for field in _fields(trainable) if field.metadata.get("first")]
    named = click.command(
        trainable.name,
        cls=Command,
        first=[*first, *FIRST][:AT_MOST],
        help=trainable.plan.__doc__,
        context_settings={"default_map": dict(trainable.usual)},
    )
    return named(decorate(callback))


def _fields(trainable: Trainable) -> tuple[Field[Any], ...]:
    return fields(trainable.plan)  # type: ignore[arg-type]


def _option(field: Field[Any], kind: Any) -> Any:
    """A field as an option: a flag, a word, a number, or several numbers with commas between."""
    name = field.name.replace("_", "-")
    several = get_origin(kind) in (Union, UnionType)
    kinds = [one for one in (get_args(kind) if several else [kind]) if one is not type(None)]
    about = {"help": field.metadata["help"], "metavar": field.metadata["metavar"]}
    if kinds == [bool]:
        if field.default is None:
            return click.option(f"--{name}/--no-{name}", default=None, help=about["help"])
        return click.option(f"--{name}", is_flag=True, help=about["help"])
    if kinds[0] in (int, float, str):
        shown = field.metadata["shown"] and field.default is not None
        return click.option(
            f"--{name}", type=kinds[0], default=field.default, show_default=shown, **about
        )
    words = [word for one in kinds for word in get_args(one) if isinstance(word, str)]

    def listed(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
        if text is None or text in words:
            return field.default if text is None else text
        return parse_numbers(f"--{name}", text, as_given=True)

    return click.option(f"--{name}", callback=listed, **about)


class Trainings(click.Group):
    """A command for each plan there is, made when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(TRAINABLES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _command(TRAINABLES.get(name))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.help = f"Train what the papers learn.\n\n\b\n{_examples()}"
        super().format_help_text(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = sorted(TRAINABLES)
        room = formatter.width - 6 - max(map(len, names))
        bare = (click.Command(name, help=_told(name)) for name in names)
        with formatter.section("Commands"):
            told = [command.get_short_help_str(room) for command in bare]
            formatter.write_dl(list(zip(names, told, strict=True)))


def _told(name: str) -> str:
    """The words of a plan on itself."""
    return inspect.cleandoc(TRAINABLES.get(name).plan.__doc__ or "")


def _examples() -> str:
    """The first example of each command."""
    texts = [_told(name).splitlines() for name in TRAINABLES]
    lines = [[line for line in text if line.startswith("ppdbench ")] for text in texts]
    return "\n".join(each[0] for each in lines if each)


command = Trainings("train")
