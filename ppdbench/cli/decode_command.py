"""`ppdbench decode`: one method on tasks. `bench` runs by the same functions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ppdbench.cli import completion
from ppdbench.cli.common import (
    RunCommand,
    check_exports,
    check_pictures,
    chosen_batches,
    draw,
    notice,
    show_examples,
    what_is_decoded,
    write_exports,
)
from ppdbench.cli.help import Command
from ppdbench.cli.options import settings_option, show_option, tasks_option, whole_run_options
from ppdbench.errors import ConfigError
from ppdbench.machine.garbage import import_for_good
from ppdbench.runs.shards import ALONE

if TYPE_CHECKING:
    from ppdbench.bench.runner import Choice
    from ppdbench.report.page.runs import Run
    from ppdbench.runs.records import Sample
    from ppdbench.runs.shards import Shard
    from ppdbench.runs.store import StoredRun
    from ppdbench.runs.workload import FinishedRun


def _the_one(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> str:
    """The method that was asked for; of several, click by itself would take the last."""
    if len(given) > 1 or "all" in given:
        raise click.BadParameter(
            "decode runs one method; `ppdbench bench` runs several, and `bench --methods all` "
            "all of them",
            context,
            option,
        )
    return given[0]


@click.command(
    "decode",
    cls=Command,
    first=(
        *("method", "pairs", "tasks", "model", "data"),
        *("limit", "max_new_tokens", "show", "out", "form"),
    ),
)
@click.option(
    "--method",
    multiple=True,
    default=("greedy",),
    show_default=True,
    callback=_the_one,
    metavar="NAME[:KEY=VALUE,...]",
    shell_complete=completion.complete_methods,
    help="A method, and its options as in bench; see `list methods`.",
)
@tasks_option
@show_option
@settings_option("An option of the method.")
@click.option("--timeline", metavar="FILE", help="Picture of what each unit of ppd did when.")
@whole_run_options
def command(
    method: str, pairs: tuple[str, ...], timeline: str | None, form: str, **options: Any
) -> int:
    """One strategy on one task: tokens, time, acceptance, identity, quality.

    \b
    ppdbench decode --method greedy --task squad --limit 8
    ppdbench decode --method prompt-lookup --set max_draft=4 --task xsum --strict
    ppdbench decode --method layerskip:exit_layer=2,draft_length=4 --task xsum --limit 4
    ppdbench decode --method greedy --model ./my-model --task gsm8k --data ./test.jsonl
    ppdbench decode --task humaneval --limit 8 --allow-code-execution
    """
    import_for_good("torch")
    from ppdbench.bench.runner import Choice

    choice = Choice.parse(method, pairs)
    if timeline is not None and choice.name != "ppd":
        raise ConfigError(f"--timeline is for --method ppd; {choice.name} has no units")
    check_pictures(timeline)
    return run_methods(choice, form=form, timeline=timeline, **options)


def run_methods(*choices: Choice, **options: Any) -> int:
    """Run methods on tasks, print what they did and return the exit code.

    Several processes that torchrun started share the examples; unless a method needs them as its
    compute units, which all but the first then become.
    """
    from ppdbench.methods.ppd import ranks

    if ranks.world() == 1 or not any(ranks.wanted(c.name, c.options) for c in choices):
        return _decode(*choices, **options)
    if ranks.rank() > 0:
        ranks.serve()
        return 0
    with ranks.led():
        return _decode(*choices, launched=ALONE, **options)


def _decode(
    *choices: Choice,
    form: str,
    kind: str = "decode",
    timeline: str | None = None,
    plot: str | None = None,
    launched: Shard | None = None,
    optional: Sequence[Choice] = (),
    **options: Any,
) -> int:
    from ppdbench.bench.runner import DecodeConfig, run_decode
    from ppdbench.report.answers import check_answers
    from ppdbench.report.result import Result

    batches = chosen_batches(options)
    check_pictures(plot)
    if plot is not None and max(batches["batch"] or (1,)) < 2:
        raise ConfigError("--plot draws speeds by batch; give --batch 1,2,4 or leave it out")
    command = RunCommand.begin(options, launched)
    if options.pop("pin"):
        _pin(choices, command.shard)
    asked, draws = options.pop("verify_distribution", False), options.pop("draws", None)
    if asked or draws is not None:
        if batches["batch"] is not None:
            raise ConfigError("--batch is not for --verify-distribution; leave it out")
        from ppdbench.cli.faithful import verify_distribution

        options["timeline"] = timeline
        return verify_distribution(choices, command, form, options, draws, asked=asked)
    exports, answers, show = (options.pop(name) for name in ("exports", "answers", "show"))
    check_exports(exports)
    decoded = what_is_decoded(options)
    if answers is not None:
        check_answers(answers, decoded["tasks"])
    config = DecodeConfig(methods=choices, **decoded, **batches, **options)
    what = choices[0].name if kind == "decode" else f"{len(choices)}-methods"
    make = partial(run_decode, config, kind=kind, optional=optional)
    run = command.run(make, kind, what, "+".join(config.tasks), config.model.name)
    if run is None:
        return 0
    result = Result.of(run)
    output = result.output
    with command.showing(run):
        output.emit(form)
        show_examples(run, show, form)
    write_exports(output, exports)
    if timeline is not None:
        _draw_timeline(run, timeline)
    if plot is not None:
        _draw_batches(result.run, plot)
    if answers is not None:
        _write_answers(run, answers)
    _execution_note(run)
    left = command.end(run)
    return exit_code(run) or left


def _pin(choices: Sequence[Choice], shard: Shard) -> None:
    from ppdbench.machine import cores
    from ppdbench.methods.ppd import ranks

    if (shard.on_machine or 1) > 1:
        raise ConfigError("--pin: several processes share this machine's cores; leave it out")
    if any(ranks.wanted(choice.name, choice.options) for choice in choices):
        raise ConfigError("--pin: the units of ppd have cores of their own already; leave it out")
    cores.pin()


def _draw_timeline(run: FinishedRun, path: str) -> None:
    from ppdbench.report.pictures.timeline import timeline
    from ppdbench.runs.records import DecodedSample

    decoded = (s for s in run.samples if isinstance(s, DecodedSample))
    events = next((s.events for s in decoded if s.events), ())
    facts = next(iter(run.header.facts.values()))
    model = run.header.model
    words = f"{facts['form']}, k = {facts['k']}, exit after {facts['exit_after']} layers"
    draw(timeline(events, f"ppd ({words}) on {model.name}, {model.dtype}"), path)


def _draw_batches(run: Run, path: str) -> None:
    from ppdbench.report.pictures.batches import batch_picture

    model = run.header.model
    drawing = batch_picture("batches", run.overall, f"{model.name}, {model.dtype}")
    if drawing is None:
        notice("note: no picture: nothing was timed")
    else:
        draw(drawing, path)


def _write_answers(run: FinishedRun, path: str) -> None:
    from ppdbench.report.answers import write_fastchat_answers

    for place, lacking in write_fastchat_answers(path, run.header, run.samples).items():
        notice(f"answers: {place}")
        if lacking:
            notice(f"note: {lacking} questions are not in it: a turn failed or is not done yet")


def exit_code(run: FinishedRun | StoredRun, samples: Sequence[Sample] | None = None) -> int:
    """The exit code, and a line on stderr for each reason it is not 0.

    `samples` are those of the run where somebody has read them already.
    """

    from ppdbench.report.result import problems

    for why in (run.header.left_out or {}).values():
        notice(f"left out: {why}")
    found = problems(run.header, run.samples if samples is None else samples)
    for problem in found:
        notice(f"ppdbench: {problem.text}")
    return min((problem.code for problem in found), default=0)


def _execution_note(run: FinishedRun) -> None:
    """Say what ran generated code, or that nothing did and a score is missing."""
    from ppdbench.runs.records import DecodedSample, decoding
    from ppdbench.scoring import NEEDS_EXECUTION

    asked = {metric for source in run.header.data.values() for metric in source.metrics}
    if run.header.model.synthetic or not asked & NEEDS_EXECUTION:
        return
    names = ", ".join(sorted(asked & NEEDS_EXECUTION))
    if not decoding(run.header).config.allow_code_execution:
        notice(f"note: {names} needs generated code to run; --allow-code-execution does that")
        return
    decoded = [sample for sample in run.samples if isinstance(sample, DecodedSample)]
    held = {tuple(sample.protection) for sample in decoded if sample.protection is not None}
    for layers in sorted(held):
        notice(f"note: generated code ran within {', '.join(layers)}")
    unjudged = sum(sample.execution == "not judged" for sample in decoded)
    if unjudged:
        notice(
            f"note: {unjudged} programs could not be judged and count as failed: their tests "
            "exchange with them what is no plain data"
        )
