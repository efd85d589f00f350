"""`ppdbench tree`: which guesses to verify, and how large a tree pays on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ppdbench import methods as methods  # tells how their guesses come
from ppdbench.cli.common import (
    check_pictures,
    draw,
    model_spec,
    notice,
    parse_numbers,
    stand_in_note,
)
from ppdbench.cli.help import Command
from ppdbench.cli.options import format_option, model_options
from ppdbench.errors import ConfigError
from ppdbench.files.paths import check_path
from ppdbench.report.progress import progress
from ppdbench.trees.guessing import guessers, guessing_of

if TYPE_CHECKING:
    from ppdbench.trees.build import BuildConfig, Built

# What says how passes are to be timed.
MEASURING = (
    *("model", "gguf", "as_stored", "revision", "adapter", "dtype", "quantize"),
    *("device", "device_map", "max_memory", "threads", "context", "rounds"),
)
UNSTEADY = 1.5  # from a pass's lower quartile to its upper one


@click.group("tree")
def command() -> None:
    """Sparse trees of guesses: build one for this machine, or show one.

    A tree says which combinations of a method's guesses are verified in one pass. It is grown
    from how often the guesses are right and judged by where they are, which `ppdbench probe
    --what drafts --calibration FILE` measures, and kept in a file that --set tree=FILE hands to
    the method.

    \b
    ppdbench tree build --calibration medusa.json --out tree.json
    ppdbench tree show tree.json --calibration medusa.json
    """


@command.command(
    "build",
    cls=Command,
    first=("calibration", "out", "model", "kind", "size", "depth", "latency", "plot", "form"),
)
@click.option(
    "--calibration",
    required=True,
    metavar="FILE",
    help="Where guesses are right, from `probe --what drafts --calibration FILE`.",
)
@click.option("--method", "kind", help="dynamic (prompt-tokens' default), static or random.")
@click.option(
    "--size",
    default="auto",
    show_default=True,
    metavar="N|auto",
    help="Rows of a pass; auto: best.",
)
@click.option("--sizes", help="Sizes to compare, as 4,8,16 (1 to 64, or those of --latency).")
@click.option("--depth", type=int, help="Deepest node (as far as guesses were calibrated).")
@click.option(
    "--rows-per-guess",
    type=float,
    metavar="X",
    help="Rows that a guess takes besides the node: embeddings of a prompt token, or the share of "
    "layers above a hidden transfer (1 for these two methods, else 0).",
)
@click.option("--seed", default=0, show_default=True, help="Seed of random trees.")
@click.option("--out", required=True, metavar="FILE", help="File that the tree is written to.")
@click.option("--plot", metavar="FILE", help="Draw the curve as .png, .svg or .pdf.")
@click.option(
    "--latency",
    metavar="FILE",
    help="Times of passes: read where the file exists, else measured and kept there.",
)
@click.option("--context", type=int, default=256, show_default=True, help="Tokens before a pass.")
@click.option("--rounds", type=int, default=48, show_default=True, help="Passes of each size.")
@model_options
@format_option
@click.pass_context
def build_command(
    ctx: click.Context, /, out: str, plot: str | None, form: str, **options: Any
) -> int:
    """The tree that promises the largest speedup on this machine.

    A size counts the rows of a pass: the newest token, the nodes, and what is inserted to
    guess with. tau(n) is how many tokens a step with the best tree of size n gives, found by
    playing decoding over the outputs calibrated on; L_fp(n) is how long its pass takes. The
    tree with the largest tau(n) / L_fp(n) is written. With --size N that size is, and passes
    are timed only if an option says how.

    \b
    ppdbench tree build --calibration medusa.json --out tree.json
    ppdbench tree build --calibration ppt.json --model ./my-model --sizes 8,16 --out tree.json
    ppdbench tree build --calibration ppt.json --latency here.json --plot p.png --out tree.json
    ppdbench tree build --calibration ppt.json --method static --size 32 --out tree.json
    """
    from ppdbench.report import tree_tables
    from ppdbench.report.export import emit
    from ppdbench.trees.build import build_tree

    check_path(out, (".json",), "tree")
    check_pictures(plot)
    asked = options["model"]
    config = _config(ctx, options)
    with progress() as report:
        built = build_tree(config, report)
    built.chosen.tree.save(out)
    emit([tree_tables.curve_sheet(built)], tree_tables.curve_json(built), form)
    if plot is not None:
        _draw_curve(built, plot)
    _closing_notes(built, config)
    if built.latency is not None and built.latency.model == config.model.name:
        stand_in_note(asked)
    notice(f"written: {out}")
    return 0


def _config(ctx: click.Context, options: dict[str, Any]) -> BuildConfig:
    from ppdbench.trees.build import BuildConfig

    given = ParameterSource.COMMANDLINE
    measuring = {n: options[n] for n in MEASURING if ctx.get_parameter_source(n) == given}
    size, sizes = options.pop("size"), options.pop("sizes")
    if size != "auto" and not size.isdecimal():
        raise ConfigError(f"--size {size}: use auto, or a number of rows")
    latency = options.pop("latency")
    return BuildConfig(
        calibration=Path(options.pop("calibration")),
        size=None if size == "auto" else int(size),
        sizes=() if sizes is None else parse_numbers("--sizes", sizes),
        latency=None if latency is None else Path(latency),
        model=model_spec(options),
        measuring=measuring,
        **options,
    )


def _draw_curve(built: Built, path: str) -> None:
    from ppdbench.report.pictures.trees import speedup_curve

    label = built.plan.accuracies.method
    if built.latency is not None:
        label = f"{label}, {built.latency.label}"
    draw(speedup_curve(built, label), path)


def _closing_notes(built: Built, config: BuildConfig) -> None:
    """Say what to know of the numbers before anything is built on them."""
    doubt = built.plan.accuracies.doubt()
    if doubt:
        notice(f"warning: {doubt}")
    if config.size is not None and built.chosen.rows < config.size:
        notice(f"note: the largest tree of up to {config.size} rows has {built.chosen.rows}")
    if built.latency is None:
        return
    worst = max(built.latency.passes, key=lambda each: each.high / each.low)
    if worst.high > UNSTEADY * worst.low:
        notice(
            f"warning: a pass of {worst.rows} rows took {1e3 * worst.low:.1f} to "
            f"{1e3 * worst.high:.1f} ms (middle half); end other programs or raise --rounds"
        )
    if (built.chosen.speedup or 0) <= 1:
        notice("note: no tree promises to beat greedy decoding here; this is the best")


@command.command("show")
@click.argument("file")
@click.option("--calibration", metavar="FILE", help="For the chances of each node.")
@click.option("--plot", metavar="FILE", help="Draw it as .png, .svg or .pdf.")
@format_option
def show_command(file: str, calibration: str | None, plot: str | None, form: str) -> int:
    """Draw a tree: ranks of guesses, from the newest token on.

    Rank 0 is the likeliest guess. With a calibration each node says how often it is accepted,
    and the title how many tokens a step is expected to give; a dynamic tree has a drawing for
    each state, and says how many prompt tokens follow a node.

    \b
    ppdbench tree show tree.json
    ppdbench tree show tree.json --calibration medusa.json --plot tree.png
    ppdbench tree show tree.json --format csv
    """
    from ppdbench.report import tree_tables
    from ppdbench.report.export import emit
    from ppdbench.trees.calibration import Accuracies
    from ppdbench.trees.dynamic import DynamicTree, load_tree

    check_pictures(plot)
    tree = load_tree(file)
    accuracies = None if calibration is None else Accuracies.load(calibration)
    if accuracies is not None and isinstance(tree, DynamicTree):
        _check_dynamic(file, accuracies.method)
    shown = tree_tables.show(tree, accuracies)
    if form == "table":
        tree_tables.print_shown(shown)
    else:
        emit([tree_tables.nodes_sheet(shown)], tree_tables.shown_json(shown), form)
    if plot is not None:
        from ppdbench.report.pictures.trees import tree_picture

        draw(tree_picture(shown, shown.title), plot)
    if accuracies is not None and accuracies.doubt():
        notice(f"warning: {accuracies.doubt()}")
    return 0


def _check_dynamic(file: str, method: str) -> None:
    """Refuse the accuracies of a method that has no trees like a dynamic one."""
    if not guessing_of(method).dynamic_trees:
        able = " and ".join(guessers("dynamic_trees"))
        raise ConfigError(
            f"{file} is a dynamic tree, for {able}, and these are the accuracies of {method}; "
            "give --calibration of the same method"
        )
