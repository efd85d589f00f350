"""`ppdbench train`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppdbench.cli.common import model_spec, notice, numbers, progress, stand_in_note
from ppdbench.cli.options import model_options, stack

if TYPE_CHECKING:
    from ppdbench.training.recipe import Recipe
    from ppdbench.training.run import Job, Training

training_options = stack(
    click.option(
        "--text",
        multiple=True,
        required=True,
        help="File, folder of .txt and .jsonl, or hub:ID[:CONFIG[:SPLIT]]; may be repeated.",
    ),
    click.option("--held-out", multiple=True, help="Text to measure the result on."),
    click.option(
        "--split-by", default="blank-line", show_default=True, help="Documents: blank-line or file."
    ),
    click.option("--column", default="text", show_default=True, help="Column of .jsonl and hub."),
    click.option("--max-documents", type=int, help="Use the first N documents (all)."),
    click.option("--out", required=True, metavar="DIR", help="Folder for everything written."),
    click.option("--resume", is_flag=True, help="Continue from the newest checkpoint in --out."),
    click.option("--steps", type=int, help="Optimizer steps; instead of --epochs."),
    click.option("--epochs", type=float, help="Passes over the text (3)."),
    click.option(
        "--batch-size", type=int, default=128, show_default=True, help="Sequences per step."
    ),
    click.option("--micro-batch", type=int, help="Sequences at once on a device (all of them)."),
    click.option(
        "--sequence", type=int, default=2048, show_default=True, help="Tokens per sequence."
    ),
    click.option("--learning-rate", type=float, help="Peak learning rate (the preset's)."),
    click.option("--schedule", default="cosine", show_default=True, help="cosine or constant."),
    click.option("--warmup-ratio", type=float, default=0.04, show_default=True),
    click.option("--weight-decay", type=float, default=0.0, show_default=True),
    click.option("--beta2", type=float, default=0.999, show_default=True, help="Of AdamW."),
    click.option("--clip", type=float, help="Largest gradient norm (no limit)."),
    click.option("--precision", default="no", show_default=True, help="no, bf16 or fp16."),
    click.option("--compile", is_flag=True, help="Compile the model: a slow start, faster steps."),
    click.option("--checkpoint-every", type=int, default=200, show_default=True, help="Steps."),
    click.option("--seed", type=int, default=0, show_default=True),
    click.option("--dry-run", is_flag=True, help="Only say what it would do, need and take."),
)


save_dtype_option = click.option("--save-dtype", help="Type of the saved weights (the model's).")


@click.group("train")
def command() -> None:
    """Train what the papers learn.

    \b
    ppdbench train heads --model ./my-model --text ./corpus.txt --out ./heads --steps 100
    ppdbench train layerskip --model ./my-model --text ./corpus.txt --out ./skipping --steps 100
    ppdbench train medusa --model ./my-model --text ./corpus.txt --out ./medusa --steps 100
    ppdbench train hidden-transfer --model ./my-model --text ./corpus.txt --out ./ht --steps 100
    ppdbench train prompt-tokens --model ./my-model --text ./corpus.txt --out ./prompts --steps 100
    ppdbench train eagle --model ./my-model --text ./corpus.txt --out ./eagle --steps 100
    """


@command.command("heads")
@click.option("--layers", help="Layers run: 4,8,12; all but the last by default.")
@click.option("--loss", default="ce", show_default=True, help="ce: the text; kl: the model itself.")
@click.option(
    "--rank", type=int, help="Low-rank change of the model's head instead of a whole one."
)
@training_options
@model_options
def heads_command(layers: str | None, loss: str, rank: int | None, **options: Any) -> int:
    """A head for each exit layer, everything else frozen.

    Defaults are those of Predictive Pipelined Decoding, Table 4.

    \b
    ppdbench train heads --model ./my-model --text ./corpus.txt --out ./heads --steps 100
    ppdbench train heads --text ./corpus.txt --out ./heads --rank 64 --loss kl --dry-run
    """
    from ppdbench.training import run

    job, resume, dry = _job(options, learning_rate=2e-5)
    chosen = numbers("--layers", layers) if layers else ()
    asked = options["model"]
    training = run.heads(model_spec(options), chosen, job, loss=loss, rank=rank)
    stand_in_note(asked)
    if dry:
        return _print_plan(training)
    return _carry_out(training, resume, lambda trained: trained.save(job.out))


@command.command("medusa")
@click.option("--heads", type=int, default=5, show_default=True, help="Tokens guessed ahead.")
@click.option("--layers", type=int, default=1, show_default=True, help="Residual blocks per head.")
@click.option(
    "--after",
    type=int,
    default=0,
    help="Layers run before the state that heads read (all); fewer: early exits, to compare with.",
)
@click.option(
    "--rank",
    type=int,
    help="Low-rank change of the model's head instead of a matrix per head; 0: that head as it is.",
)
@click.option("--loss", default="kl", show_default=True, help="kl: the model itself; ce: the text.")
@click.option(
    "--decay", type=float, default=0.8, show_default=True, help="Of the weight, head by head."
)
@save_dtype_option
@training_options
@model_options
def medusa_command(
    heads: int,
    layers: int,
    after: int,
    rank: int | None,
    loss: str,
    decay: float,
    save_dtype: str | None,
    **options: Any,
) -> int:
    """Heads that guess the tokens after the next one, everything else frozen.

    Afterwards the guesses are measured on --held-out text, by distance.

    \b
    ppdbench train medusa --model ./my-model --text ./corpus.txt --out ./medusa --steps 100
    ppdbench train medusa --text ./corpus.txt --out ./medusa --heads 4 --rank 32 --dry-run
    """
    from ppdbench.training import run
    from ppdbench.training.medusa import MedusaPlan

    dtype = None if save_dtype is None else run.saved_dtype(save_dtype)
    plan = MedusaPlan(heads=heads, layers=layers, after=after, rank=rank, loss=loss, decay=decay)
    job, resume, dry = _job(options, learning_rate=1e-3)
    asked = options["model"]
    training = run.medusa(model_spec(options), plan, job)
    stand_in_note(asked)
    if dry:
        return _print_plan(training)
    return _carry_out(
        training, resume, lambda trained: trained.save(job.out, training.tokenizer, dtype)
    )


@command.command("eagle")
@click.option(
    "--version", type=int, default=3, show_default=True, help="1 (also for EAGLE-2's trees) or 3."
)
@click.option(
    "--passes", type=int, help="How far it reads its own guesses in training (1: 1, 3: 5)."
)
@click.option(
    "--draft-vocab",
    type=int,
    default=0,
    show_default=True,
    help="Version 3: a head over so many of the commonest tokens; 0: the model's head.",
)
@click.option(
    "--rank",
    type=int,
    default=0,
    show_default=True,
    help="Version 3: low-rank change of the model's head; 0: that head as it is.",
)
@click.option("--ffn", type=int, default=0, show_default=True, help="Width of its MLP; 0: as wide.")
@click.option(
    "--loss",
    default="kl",
    show_default=True,
    help="kl: the model's own distribution; ce: its likeliest token.",
)
@click.option(
    "--decay", type=float, default=0.8, show_default=True, help="Of the weight, pass by pass."
)
@click.option("--noise", type=float, help="Half the width of the noise on features (1: 0.1, 3: 0).")
@save_dtype_option
@training_options
@model_options
def eagle_command(save_dtype: str | None, **options: Any) -> int:
    """A network of one layer that continues the model's features, everything else frozen.

    Afterwards its guesses are measured on --held-out text, by distance.

    \b
    ppdbench train eagle --model ./my-model --text ./corpus.txt --out ./eagle --steps 100
    ppdbench train eagle --text ./corpus.txt --out ./eagle --version 1 --ffn 512 --dry-run
    """
    from ppdbench.training import run
    from ppdbench.training.eagle import EaglePlan

    dtype = None if save_dtype is None else run.saved_dtype(save_dtype)
    plan = EaglePlan(**{f.name: options.pop(f.name) for f in fields(EaglePlan)})
    job, resume, dry = _job(options, learning_rate=3e-5)
    asked = options["model"]
    training = run.eagle(model_spec(options), plan, job)
    stand_in_note(asked)
    if dry:
        return _print_plan(training)
    return _carry_out(
        training, resume, lambda trained: trained.save(job.out, training.tokenizer, dtype)
    )


@command.command("hidden-transfer")
@click.option("--layers", help="Layers run before each step: 4,5,6 (about 1/2, 5/8 and 3/4).")
@click.option(
    "--compare", metavar="LAYERS", help="Train the step after these once after each layer: 3,4,5."
)
@click.option(
    "--mask",
    default="teacher-forced",
    show_default=True,
    help="What a pseudo state sees of what lies between: teacher-forced, chained or masked.",
)
@click.option("--loss", default="kl", show_default=True, help="kl or reverse-kl: the model itself.")
@save_dtype_option
@training_options
@model_options
def hidden_transfer_command(
    layers: str | None, compare: str | None, save_dtype: str | None, **options: Any
) -> int:
    """Matrices that put states of tokens ahead, everything else frozen.

    They are trained one after another, each for --steps or --epochs. Afterwards the guesses are
    measured on --held-out text, by distance. With --compare each candidate is written to a folder
    layer-N in --out, to be measured like any other.

    \b
    ppdbench train hidden-transfer --model ./my-model --text ./corpus.txt --out ./ht --steps 100
    ppdbench train hidden-transfer --text ./corpus.txt --out ./first --compare 2,3,4,5,6
    ppdbench train hidden-transfer --text ./corpus.txt --out ./second --layers 4 --compare 4,5,6
    """
    from ppdbench.training import run
    from ppdbench.training.hidden_transfer import TransferPlan

    dtype = None if save_dtype is None else run.saved_dtype(save_dtype)
    plan = TransferPlan(
        layers=numbers("--layers", layers, as_given=True) if layers else (),
        compare=numbers("--compare", compare, as_given=True) if compare else (),
        mask=options.pop("mask"),
        loss=options.pop("loss"),
    )
    job, resume, dry = _job(options, learning_rate=1e-3)
    asked = options["model"]
    training = run.hidden_transfer(model_spec(options), plan, job)
    stand_in_note(asked)
    if dry:
        return _print_plan(training)
    return _carry_out(
        training, resume, lambda trained: trained.save(job.out, training.tokenizer, dtype)
    )


# What the paper trains prompt tokens with.
PROMPT_DEFAULTS = {"batch_size": 4, "sequence": 1024, "warmup_ratio": 0.0}


@command.command("prompt-tokens", context_settings={"default_map": PROMPT_DEFAULTS})
@click.option("--prompts", type=int, default=3, show_default=True, help="Tokens guessed ahead.")
@click.option("--epts", type=int, default=1, show_default=True, help="Embeddings per prompt token.")
@click.option(
    "--mask",
    default="ensemble",
    show_default=True,
    help="What an embedding sees of the others: ensemble, decoder or encoder.",
)
@click.option(
    "--aggregation", default="mean", show_default=True, help="Of an ensemble: mean or learned."
)
@click.option("--exits", type=int, default=1, show_default=True, help="Last layers averaged.")
@click.option(
    "--prefix", type=int, default=0, show_default=True, help="Trained keys per prompt token."
)
@click.option("--custom-head", is_flag=True, help="A head of their own too; see --start.")
@click.option(
    "--rank", type=int, default=0, show_default=True, help="Of that head; 0: a whole matrix."
)
@click.option(
    "--loss", default="kl", show_default=True, help="kl or reverse-kl: the model; ce: the text."
)
@click.option(
    "--decay", type=float, default=0.8, show_default=True, help="Of the weight, token by token."
)
@click.option(
    "--insertions", type=int, default=16, show_default=True, help="Places per sequence and step."
)
@click.option(
    "--start", metavar="DIR", help="Go on from these; with --custom-head the second stage."
)
@save_dtype_option
@training_options
@model_options
def prompt_tokens_command(start: str | None, save_dtype: str | None, **options: Any) -> int:
    """Rows that guess what follows a token, everything else frozen.

    Defaults are those of the paper on parallel prompt decoding. Afterwards the guesses are
    measured on --held-out text, by distance.

    \b
    ppdbench train prompt-tokens --model ./my-model --text ./corpus.txt --out ./prompts --steps 100
    ppdbench train prompt-tokens --text ./corpus.txt --out ./eight --epts 8 --mask decoder
    ppdbench train prompt-tokens --text ./corpus.txt --out ./second --start ./prompts --custom-head
    """
    from ppdbench.training import run
    from ppdbench.training.prompt_tokens import PromptPlan

    dtype = None if save_dtype is None else run.saved_dtype(save_dtype)
    plan = PromptPlan(**{field.name: options.pop(field.name) for field in fields(PromptPlan)})
    job, resume, dry = _job(options, learning_rate=1e-2)
    asked = options["model"]
    training = run.prompt_tokens(model_spec(options), plan, job, start)
    stand_in_note(asked)
    if dry:
        return _print_plan(training)
    return _carry_out(
        training, resume, lambda trained: trained.save(job.out, training.tokenizer, dtype)
    )


@command.command("layerskip")
@click.option("--preset", help="A setting of the paper, such as continual-7b or scratch-1.5b.")
@click.option(
    "--shape", metavar="SPEC", help="Train from scratch: layers=8,hidden=256,vocab=4096,..."
)
@click.option("--p-max", type=float, help="Layer dropout of the last layer; 0 leaves it out.")
@click.option("--e-scale", type=float, help="Weight of early exits.")
@click.option("--no-early-exit-loss", is_flag=True, help="Only the last layer's loss.")
@click.option("--curriculum", help="rotational, gradual or none.")
@click.option("--rotation", type=int, help="Period R of the rotational curriculum.")
@click.option("--ramp/--no-ramp", default=None, help="Let dropout grow over the run.")
@click.option(
    "--save-dtype", default="float32", show_default=True, help="Type of the saved weights."
)
@click.option("--task", "tasks", multiple=True, help="Task to score every exit on afterwards.")
@click.option("--data", default="hub", show_default=True, help="Data of the tasks, as in decode.")
@click.option("--limit", type=int, help="Use the first N examples of each task (all).")
@training_options
@model_options
def layerskip_command(
    preset: str | None, shape: str | None, save_dtype: str, **options: Any
) -> int:
    """Train a model whose early layers can already read out.

    Afterwards every exit is measured on --held-out text and on each --task.

    \b
    ppdbench train layerskip --model ./my-model --text ./corpus.txt --out ./skipping --steps 100
    ppdbench train layerskip --shape layers=8,hidden=256,vocab=4096 --text ./corpus --out ./new
    """
    from ppdbench.training import run

    dtype = run.saved_dtype(save_dtype)
    recipe, rate = _recipe(preset, scratch=shape is not None, options=options)
    tasks, data, limit = (options.pop(name) for name in ("tasks", "data", "limit"))
    job, resume, dry = _job(options, learning_rate=rate)
    if shape is None:
        asked = options["model"]
        training = run.layerskip(model_spec(options), recipe, job)
        stand_in_note(asked)
    else:
        from ppdbench.engine.shapes import parse
        from ppdbench.errors import ConfigError

        if options["model"]:
            raise ConfigError("--shape trains from scratch, --model goes on; give one of them")
        training = run.layerskip_from_scratch(parse(shape), options["device"], recipe, job)
    if dry:
        return _print_plan(training)
    _carry_out(
        training,
        resume,
        lambda trained: run.save_model(trained, training.tokenizer, job.out, dtype),
    )
    if tasks and training.is_main:
        _score_exits(job.out, tasks, data, limit, options["device"])
    return 0


def _score_exits(
    model: Path, tasks: tuple[str, ...], data: str, limit: int | None, device: str
) -> None:
    """The quality of outputs read out after each layer, as a run folder beside the model."""
    from ppdbench.bench.runner import Choice, DecodeConfig, run_decode
    from ppdbench.bench.summary import summarize
    from ppdbench.engine.loading import ModelSpec
    from ppdbench.report import decode_tables
    from ppdbench.report.export import emit

    layers = json.loads((model / "config.json").read_text("utf-8"))["num_hidden_layers"]
    exits = [Choice(name="early-exit", options={"exit_layer": str(n)}) for n in range(1, layers)]
    config = DecodeConfig(
        model=ModelSpec(name=str(model.absolute()), device=device),
        tasks=tasks,
        data=data,
        limit=limit,
        methods=(*exits, Choice(name="greedy")),
        warmup=0,
    )
    with progress() as report:
        scored = run_decode(config, model / "exits", kind="bench", resume=False, report=report)
    emit([decode_tables.quality(summarize(scored.header, scored.samples))], None, "table")
    notice(f"run: {scored.path}")


def _recipe(preset: str | None, *, scratch: bool, options: dict[str, Any]) -> tuple[Recipe, float]:
    """The preset's recipe with what was asked for otherwise, and its learning rate."""
    from ppdbench.errors import UnknownName
    from ppdbench.training.recipe import PRESETS

    name = preset or ("scratch-1.5b" if scratch else "continual-7b")
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    changes = {
        option: value
        for option in ("p_max", "e_scale", "curriculum", "rotation", "ramp")
        if (value := options.pop(option)) is not None
    }
    if options.pop("no_early_exit_loss"):
        changes["e_scale"] = None
    return replace(PRESETS[name].recipe, **changes), PRESETS[name].learning_rate


def _job(options: dict[str, Any], *, learning_rate: float) -> tuple[Job, bool, bool]:
    """The options that every kind of training shares, taken out of `options`."""
    from ppdbench.bench.environment import set_threads
    from ppdbench.engine.quiet import quiet
    from ppdbench.errors import ConfigError
    from ppdbench.training.run import Job
    from ppdbench.training.text import TextSpec
    from ppdbench.training.trainer import TrainConfig

    quiet()
    set_threads(options["threads"])
    take = options.pop
    steps, epochs = take("steps"), take("epochs")
    if steps is not None and epochs is not None:
        raise ConfigError("--steps and --epochs exclude each other")
    if epochs is not None and not epochs > 0:
        raise ConfigError(f"--epochs {epochs}: use a value above 0")
    text = {
        "split": take("split_by"),
        "column": take("column"),
        "max_documents": take("max_documents"),
        "offline": options["offline"],
    }
    held_out = take("held_out")
    names: list[str] = ["batch_size", "micro_batch", "sequence", "schedule", "warmup_ratio"]
    names += ["weight_decay", "beta2", "clip", "seed", "precision", "compile"]
    names += ["checkpoint_every"]
    rate = take("learning_rate")
    config = TrainConfig(
        steps=1 if steps is None else steps,
        learning_rate=learning_rate if rate is None else rate,
        **{name: take(name) for name in names},
    )
    job = Job(
        text=TextSpec(sources=take("text"), **text),
        held_out=TextSpec(sources=held_out, **text) if held_out else None,
        config=config,
        epochs=None if steps is not None else epochs or 3,
        out=Path(take("out")),
    )
    return job, take("resume"), take("dry_run")


def _print_plan(training: Training) -> int:
    from ppdbench.report.export import emit
    from ppdbench.report.training_tables import plan_sheet

    plan = training.plan()
    emit([plan_sheet(plan)], asdict(plan), "table")
    return 0


def _carry_out(training: Training, resume: bool, save: Callable[[Any], None]) -> int:
    from ppdbench.report.export import emit
    from ppdbench.report.plots import save as save_picture
    from ppdbench.report.plots import training_curves
    from ppdbench.report.training_tables import quality_sheet
    from ppdbench.training.trainer import LOG

    out = training.job.out
    with progress() as report:
        trained = training.carry_out(resume=resume, watch=report)
    if training.is_main:
        save(trained)  # before anything that takes long or may fail
    quality = training.quality()
    if not training.is_main:
        return 0
    lines = [json.loads(line) for line in (out / LOG).read_text("utf-8").splitlines()]
    save_picture(training_curves(lines), out / "loss.png")
    if quality:
        (out / "quality.json").write_text(
            json.dumps([asdict(measured) for measured in quality], indent=2) + "\n", "utf-8"
        )
        emit([quality_sheet(quality)], None, "table")
    notice(f"picture: {out / 'loss.png'}")
    notice(f"written: {out}")
    return 0
