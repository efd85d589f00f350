"""`ppdbench env`: what a measurement would run on, and how good its baseline is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ppdbench.cli.common import (
    check_pictures,
    compilation_note,
    draw,
    model_spec,
    notice,
    parse_numbers,
    stand_in_note,
)
from ppdbench.cli.help import Command
from ppdbench.cli.options import compile_option, format_option, methods_option, model_options
from ppdbench.engine.quiet import quiet
from ppdbench.machine.garbage import import_for_good
from ppdbench.report.progress import progress
from ppdbench.report.sheet import Sheet, joined

if TYPE_CHECKING:
    import torch

    from ppdbench.bench.baseline import BaselineReport
    from ppdbench.bench.runner import Choice
    from ppdbench.engine.loading import ModelSpec

# Long enough for a median that holds still, short enough not to be noticed.
BANDWIDTH_SECONDS = 1.0
PROMPTS = 2

# Ratios of rounds spread by less than this factor on a machine left alone.
STEADY = 1.3

# What the options below say is used with a model, or with one of the measurements alone.
OF_MODELS = (
    *("gguf", "as_stored", "revision", "adapter", "dtype", "quantize", "device_map"),
    *("max_memory", "offline", "trust_remote_code", "no_family_check"),
)
OF_MEMORY = ("methods", "prompt_tokens", "new_tokens")
BASELINE_ONLY = ("compile",)
CURVE_ONLY = ("rows", "context", "plot")


@click.command(
    "env",
    cls=Command,
    first=("baseline", "curve", "model", "methods", "dtype", "threads", "form"),
)
@click.option("--baseline", is_flag=True, help="Time our greedy against transformers' generate().")
@click.option("--curve", is_flag=True, help="Time passes by their rows, ours and transformers'.")
@methods_option("With --model: a method whose draft model or files to count; may be repeated.")
@model_options
@click.option("--prompt-tokens", type=int, default=64, show_default=True, help="Prompt length.")
@click.option("--new-tokens", type=int, default=128, show_default=True, help="Tokens to generate.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Passes of both, in turns.")
@click.option(
    "--rows",
    default="1,2,3,5,9,16,32",
    show_default=True,
    help="With --curve: rows of passes; 1 is always among them.",
)
@click.option(
    "--context",
    type=int,
    default=128,
    show_default=True,
    help="With --curve: tokens before a pass.",
)
@click.option("--plot", metavar="FILE", help="Draw the curve as .png, .svg or .pdf.")
@compile_option
@format_option
@click.pass_context
def command(ctx: click.Context, /, baseline: bool, curve: bool, form: str, **options: Any) -> None:
    """Versions, devices, settings and memory bandwidth; warnings on stderr.

    With --model how much memory it needs, for sequences of --prompt-tokens and --new-tokens,
    and where its layers would go: worked out without loading it.

    With --baseline also how fast greedy decoding runs here: ours, which every speedup is
    measured against, and generate() of transformers on the same weights and prompts.

    With --curve how long passes take by their rows: ours, those of transformers, and reading the
    weights once. Speculation pays where many rows cost little more than one.

    \b
    ppdbench env
    ppdbench env --format json
    ppdbench env --model synthetic:llama-13b --dtype bfloat16 --prompt-tokens 4000
    ppdbench env --baseline --model synthetic:llama-20m --dtype bfloat16
    ppdbench env --curve --model synthetic:llama-20m --rows 1,9,16 --plot curve.png
    """
    if baseline and curve:
        raise click.UsageError("--baseline and --curve are measured one at a time; give one")
    for name in ("prompt_tokens", "new_tokens", "rounds", "context"):
        if options[name] < 1:
            raise click.UsageError(f"--{name.replace('_', '-')} {options[name]}: use 1 or more")
    options["rows"] = _rows_of_passes(options["rows"])
    check_pictures(options["plot"])
    import_for_good("torch")
    from ppdbench.bench.compiling import check_mode
    from ppdbench.bench.runner import Choice, built_for
    from ppdbench.engine.loading import resolve_device
    from ppdbench.machine import environment
    from ppdbench.report.export import PrintedOutput

    asked, device = options["model"], resolve_device(options["device"])
    environment.set_threads(options.pop("threads"))
    check_mode(options["compile"])
    choices = [Choice.parse(text) for text in options.pop("methods")]
    spec = model_spec(options) if baseline or curve or asked is not None else None
    needs = None
    if spec is not None:
        built_for(spec, choices)
        if not (baseline or curve):  # what cannot be is told before anything is measured
            needs = _needs(spec, choices, options)
    description = environment.describe()
    warned = environment.warnings(description)
    for warning in warned:
        notice(f"warning: {warning}")
    _say_what_is_unused(ctx, asked)
    if spec is not None and (baseline or curve):
        found = (_curve if curve else _baseline)(spec, options)
        stand_in_note(asked)
    else:
        found = _machine(device, needs)
    if found.unsteady is not None:
        warned.append(f"{found.unsteady}; end other programs or raise --rounds")
        notice(f"warning: {warned[-1]}")
    sheets = [Sheet("Environment", ("what", "value"), tuple(_rows(description))), *found.sheets]
    # Beside the numbers of a measurement, facts of the machine would be rows without any.
    long = joined(found.sheets if baseline or curve else sheets)
    content = {"environment": description, "warnings": warned, **found.content}
    PrintedOutput(sheets, long, content).emit(form)


@dataclass(frozen=True, slots=True)
class MeasuredHere:
    """The tables below that of the environment, and why times in them may not be trusted."""

    sheets: list[Sheet]
    content: dict[str, Any]
    unsteady: str | None = None


def _machine(device: torch.device, needs: dict[str, Any] | None) -> MeasuredHere:
    """The bandwidth of memory, and where a model's layers would go."""
    from ppdbench.machine.bandwidth import measure_bandwidth
    from ppdbench.report.memory_tables import memory_sheets

    speed = measure_bandwidth(device, seconds=BANDWIDTH_SECONDS)
    sheets = [_bandwidth_sheet(str(device), speed)]
    content = {"device": str(device), "bandwidth_bytes_per_s": speed}
    if needs is None:
        return MeasuredHere(sheets, content)
    return MeasuredHere([*sheets, *memory_sheets(needs)], {**content, "memory": needs})


def _rows_of_passes(text: str) -> tuple[int, ...]:
    rows = parse_numbers("--rows", text)
    if rows[0] < 1:
        raise click.UsageError(f"--rows {text}: use 1 or more")
    return rows


def _say_what_is_unused(ctx: click.Context, model: str | None) -> None:
    """Tell the user what was asked for and is not used, so that nothing is ignored in silence."""
    given = click.core.ParameterSource.COMMANDLINE
    baseline, curve = ctx.params["baseline"], ctx.params["curve"]
    without: dict[str, str] = {}
    if not baseline:
        without |= dict.fromkeys(BASELINE_ONLY, "without --baseline")
    if not curve:
        without |= dict.fromkeys(CURVE_ONLY, "without --curve")
    if not (baseline or curve):
        without["rounds"] = "without --baseline or --curve"
        if model is None:
            without |= dict.fromkeys(OF_MODELS, "without --model or --baseline or --curve")
            without |= dict.fromkeys(OF_MEMORY, "without --model or --baseline")
    if curve:
        without |= dict.fromkeys(OF_MEMORY, "with --curve")
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if name in without and ctx.get_parameter_source(name) == given:
            notice(f"note: {parameter.opts[0]} means nothing {without[name]}")


def _curve(spec: ModelSpec, options: dict[str, Any]) -> MeasuredHere:
    """The times of passes by their rows."""
    from ppdbench.bench.pass_curve import measure_curve
    from ppdbench.report.curve_tables import pass_curve_sheet

    quiet()
    with progress() as report:
        found = measure_curve(
            spec,
            rows=options["rows"],
            context=options["context"],
            rounds=options["rounds"],
            progress=report,
        )
    if (plot := options["plot"]) is not None:
        from ppdbench.report.pictures.passes import curve_picture

        draw(curve_picture([found]), plot)
    unsteady = None
    if (point := found.unsteady) is not None:
        unsteady = f"passes of {point.rows} rows took times that differ widely"
    return MeasuredHere([pass_curve_sheet(found)], found.to_dict(), unsteady)


def _needs(spec: ModelSpec, choices: list[Choice], options: dict[str, Any]) -> dict[str, Any]:
    from ppdbench.bench.needs import reckon_needs

    quiet()
    context = options["prompt_tokens"] + options["new_tokens"]
    return reckon_needs(spec, context, choices).to_dict()


def _baseline(spec: ModelSpec, options: dict[str, Any]) -> MeasuredHere:
    """The speed of greedy decoding beside that of transformers."""
    from ppdbench.bench.baseline import compare_with_generate
    from ppdbench.tasks.passages import pseudo_prompts

    quiet()
    length = options["prompt_tokens"]
    with progress() as report:
        found = compare_with_generate(
            spec,
            prompts=lambda tokenizer: pseudo_prompts(tokenizer, PROMPTS, length),
            new_tokens=options["new_tokens"],
            rounds=options["rounds"],
            compile=options["compile"],
            progress=report,
        )
    compilation_note(found.compilation)
    low, high = found.ratio_range
    told = f"rounds differ widely: ratios {low:.2f} to {high:.2f}"
    unsteady = told if high > STEADY * low else None
    return MeasuredHere([_baseline_sheet(found)], found.to_dict(), unsteady)


def _rows(value: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts, one per line; what is unknown or empty is left out."""
    rows: list[tuple[str, str]] = []
    for key, held in value.items():
        name = f"{prefix}{key}".replace("_", " ") if key.islower() else f"{prefix}{key}"
        if isinstance(held, dict):
            rows += _rows(held, f"{name} ")
        elif isinstance(held, list) and held and isinstance(held[0], dict):
            for index, item in enumerate(held):
                rows += _rows(item, f"{name} {index} ")
        elif held is not None and held != []:
            rows.append(_row(name, held))
    return rows


def _row(name: str, held: Any) -> tuple[str, str]:
    if isinstance(held, bool):
        return name, "yes" if held else "no"
    if name.endswith(" bytes"):
        return name.removesuffix(" bytes"), f"{held / (1 << 30):.1f} GiB"
    if isinstance(held, list):
        return name, " ".join(str(item) for item in held)
    return name, str(held)


def _bandwidth_sheet(device: str, speed: float) -> Sheet:
    header = ("device", "read bandwidth GB/s")
    return Sheet("Memory", header, ((device, speed / 1e9),), digits={header[1]: 1})


def _baseline_sheet(report: BaselineReport) -> Sheet:
    low, high = report.ratio_range
    header = ("decoding", "tokens/s", "after prefill", "ratio", "min", "max", "bandwidth used")
    ours = (
        *("greedy (ours)", report.greedy_tokens_per_s, report.decode_tokens_per_s),
        *(report.ratio, low, high, report.bandwidth_utilisation),
    )
    theirs = (
        *("generate()", report.generate_tokens_per_s, report.generate_decode_tokens_per_s),
        *(None, None, None, None),
    )
    label = f"{report.model}{' (synthetic weights)' if report.is_synthetic else ''}"
    return Sheet(
        f"Baseline: {label}, {report.dtype} on {report.device}, {report.threads} threads",
        header,
        (ours, theirs),
        notes=(_same_tokens(report), _what_was_read(report)),
        digits={"tokens/s": 1, "after prefill": 1, "ratio": 2, "min": 2, "max": 2},
        percent=frozenset({"bandwidth used"}),
    )


def _same_tokens(report: BaselineReport) -> str:
    said = (
        f"{report.rounds_run} rounds of {report.prompts} prompts, {report.prompt_tokens[0]} + "
        f"{report.new_tokens} tokens; same tokens for {report.identical} of {report.prompts}"
    )
    parted = [str(p) for p in report.first_differences if p is not None]
    if parted:
        said += f", others part at output position {', '.join(parted)} (rounding decides near-ties)"
    return said


def _what_was_read(report: BaselineReport) -> str:
    passes = "captured" if report.captured else report.path.words
    return (
        f"our passes: {passes}; a step reads {report.bytes_per_token / 1e6:.1f} MB, and memory "
        f"delivers {report.bandwidth_bytes_per_s / 1e9:.1f} GB/s"
    )
