"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from ppdbench.cli import completion
from ppdbench.machine.garbage import no_collection
from ppdbench.report import FORMATS

F = TypeVar("F", bound=Callable[..., Any])


def stack(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, shown in the order they are given."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


format_option = click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="How to write the result on stdout.",
)

model_options = stack(
    click.option(
        "--model",
        metavar="NAME",
        shell_complete=completion.complete_models,
        help="Hub id, local folder, file.gguf, `smollm2`, `reference` (the default) or "
        "synthetic:SPEC.",
    ),
    click.option("--gguf", metavar="FILE", help="The GGUF file of a hub model or a folder."),
    click.option(
        "--as-stored",
        is_flag=True,
        help="Multiply by a GGUF file's own 4 and 8 bits: the same numbers of fewer bytes.",
    ),
    click.option("--revision", help="Revision of a hub model."),
    click.option(
        "--adapter", metavar="DIR", help="LoRA adapter of PEFT to merge into the model's weights."
    ),
    click.option(
        "--dtype", default="auto", show_default=True, help="auto, float32, bfloat16, float16."
    ),
    click.option(
        "--quantize",
        metavar="SCHEME",
        help="Hold the layers' weights in 8 or 4 bits: int8, nf4, fp4.",
    ),
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
    click.option(
        "--device-map",
        metavar="MAP",
        help="Layers over several devices and the disk: auto, balanced, sequential or a .json.",
    ),
    click.option(
        "--max-memory",
        metavar="LIMITS",
        help="Memory that --device-map may fill, as cuda:0=20GB,cpu=64GB (what is free).",
    ),
    click.option("--threads", type=int, help="CPU threads for the model (all cores)."),
    click.option("--offline", is_flag=True, help="Never ask the hub."),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a hub model."),
    click.option(
        "--no-family-check",
        is_flag=True,
        help="Do not hold what was read of a model against transformers when it is loaded.",
    ),
)

tasks_option = click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="NAME|FILE",
    shell_complete=completion.complete_tasks,
    help="Task or task file; may be repeated (gsm8k).",
)

data_option = click.option(
    "--data",
    metavar="hub|builtin|PATH",
    shell_complete=completion.complete_data,
    help="The data set of the hub, the package's own examples, or a file or folder with the data "
    "set's columns (builtin with the embedded model, hub with any other).",
)

chat_options = stack(
    click.option(
        "--chat",
        default="auto",
        show_default=True,
        help="Prompts as messages through the tokenizer's chat template: on, off, or auto: where "
        "it has one.",
    ),
    click.option("--system", metavar="TEXT", help="System text before them (the template's own)."),
    click.option(
        "--chat-set",
        "chat_pairs",
        multiple=True,
        metavar="KEY=VALUE",
        help="What the template reads besides, as enable_thinking=false; may be repeated.",
    ),
)

text_options = stack(
    click.option(
        "--text",
        multiple=True,
        required=True,
        help="File, folder of .txt and .jsonl, or hub:ID[:CONFIG[:SPLIT]]; may be repeated.",
    ),
    click.option(
        "--split-by", default="blank-line", show_default=True, help="Documents: blank-line or file."
    ),
    click.option("--column", default="text", show_default=True, help="Column of .jsonl and hub."),
    click.option("--max-documents", type=int, help="Use the first N documents (all)."),
)

task_options = stack(
    data_option,
    click.option("--split", help="Split of the data set (the task's own)."),
    click.option("--limit", type=int, help="Use the first N examples (all)."),
    click.option(
        "--shots", type=int, default=0, show_default=True, help="Worked examples before each."
    ),
    click.option("--max-new-tokens", type=int, help="Tokens to generate (the task's own)."),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Seed of everything drawn."
    ),
    chat_options,
)

drawing_options = stack(
    click.option("--top-k", type=int, help="k of the top-k target (3)."),
    click.option("--top-p", type=float, help="p of the top-p target (0.95)."),
    click.option("--min-p", type=float, help="p of the min-p target (0.05)."),
    click.option("--temperature", type=float, help="Temperature of all three (1)."),
)

steering_options = stack(
    click.option(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="Make tokens of the text so far less likely where tokens are drawn (1: none).",
    ),
    click.option(
        "--logit-bias",
        multiple=True,
        metavar="ID=X",
        help="Add X to the logit of a token where tokens are drawn; may be repeated.",
    ),
)

export_option = click.option(
    "--export",
    "exports",
    multiple=True,
    metavar="FILE",
    help="Write the result to .json, .csv, .md or .tex too; may be repeated.",
)

show_option = click.option(
    "--show",
    type=click.IntRange(min=1),
    metavar="N",
    help="Print prompt and output of the first N examples of each task.",
)


def methods_option(help: str, *names: str) -> Callable[[F], F]:
    """Methods by name, each with its options, under `--method` and other names."""
    return click.option(
        "--method",
        *names,
        "methods",
        multiple=True,
        metavar="NAME[:KEY=VALUE,...]",
        shell_complete=completion.complete_methods,
        help=help,
    )


def settings_option(help: str) -> Callable[[F], F]:
    """Options of a method, one at a time."""
    return click.option(
        "--set",
        "pairs",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=completion.complete_settings,
        help=help,
    )


decoding_options = stack(
    click.option("--target", help="How tokens are picked: greedy (default), top-k, top-p, min-p."),
    drawing_options,
    steering_options,
    click.option(
        "--strict",
        is_flag=True,
        help="No ties from rounding: passes in one fixed shape, where they are not flat.",
    ),
    click.option("--warmup", default=2, show_default=True, help="Untimed runs before the first."),
    export_option,
)

faithful_options = stack(
    click.option(
        "--verify-distribution",
        is_flag=True,
        help="Test if drawn outputs follow the model's own probabilities; exit code 1 if not.",
    ),
    click.option("--draws", type=int, help="Outputs that this test draws in all (3000)."),
)

compile_option = click.option(
    "--compile",
    default="auto",
    show_default=True,
    help="Capture passes as CUDA graphs on a GPU: on, off, or auto (off).",
)

batch_options = stack(
    click.option(
        "--batch",
        metavar="N[,N...]",
        help="Decode N sequences together, each compared with greedy decoding of it alone (1).",
    ),
    click.option(
        "--prefill",
        default="apart",
        show_default=True,
        metavar="apart|ROWS",
        help="Prompts that join a batch: in a pass apart, or so many rows at a time beside the "
        "steps of others.",
    ),
)

speed_options = stack(
    compile_option,
    click.option("--pin", is_flag=True, help="Each CPU thread on a core of its own (Linux)."),
    click.option(
        "--profile", is_flag=True, help="Say where steps spend their time, and how fast they read."
    ),
)

SANDBOXED, UNPROTECTED = "sandboxed", "unprotected"


def _how_code_runs(
    context: click.Context, parameter: click.Parameter, given: str | None
) -> bool | str:
    return given if given == UNPROTECTED else given is not None


quality_options = stack(
    click.option(
        "--allow-code-execution",
        is_flag=False,
        flag_value=SANDBOXED,
        type=click.Choice([SANDBOXED, UNPROTECTED]),
        callback=_how_code_runs,
        metavar="[unprotected]",
        help="Run generated programs, in a sandbox, for HumanEval's pass@1; =unprotected also "
        "where this machine cannot hold them.",
    ),
    click.option(
        "--answers", metavar="FILE", help="Write MT-Bench answers in FastChat's format (.jsonl)."
    ),
)

salvage_option = click.option(
    "--salvage",
    is_flag=True,
    help="First drop damaged lines of stored samples; the file as it was stays beside it.",
)


def salvaging(*names: str) -> Callable[[F], F]:
    """Add --salvage to a command that reads the stored runs which these parameters name.

    It holds their samples as long as it lives, so that no search for cycles frees any.
    """

    def decorate(function: F) -> F:
        @salvage_option
        @functools.wraps(function)
        def salvaged(*arguments: Any, salvage: bool, **options: Any) -> Any:
            if salvage:
                from ppdbench.cli.common import repair

                for name in names:
                    given = options[name] or ()
                    repair(*([given] if isinstance(given, str) else given))

            with no_collection():
                return function(*arguments, **options)

        return cast(F, salvaged)

    return decorate


run_options = stack(
    click.option("--out", metavar="DIR", help="Folder of the run (results/WHAT-TASK-MODEL-TIME)."),
    click.option("--resume", is_flag=True, help="Continue the run in --out."),
    click.option(
        "--shard",
        metavar="I/N",
        help="Do the Ith of N parts of the examples, into the --out that all parts share.",
    ),
    salvage_option,
)

# All that `decode` and `bench` have in common behind what to decode.
whole_run_options = stack(
    decoding_options,
    batch_options,
    faithful_options,
    speed_options,
    quality_options,
    task_options,
    model_options,
    run_options,
    format_option,
)
