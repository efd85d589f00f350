"""Work that several commands do before and after their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import click
from click.core import ParameterSource

from ppdbench.engine.gguf.source import SMOLLM2
from ppdbench.engine.quiet import quiet
from ppdbench.errors import ConfigError, counted
from ppdbench.files import resources
from ppdbench.files.clean import clean
from ppdbench.report.progress import progress
from ppdbench.runs.shards import Shard

if TYPE_CHECKING:
    from ppdbench.decoding.sampling import Target
    from ppdbench.engine.loading import ModelSpec
    from ppdbench.report.export import PrintedOutput
    from ppdbench.report.pictures.drawing import Drawing
    from ppdbench.runs.records import Compilation
    from ppdbench.runs.running import Destination
    from ppdbench.runs.store import StoredRun
    from ppdbench.runs.workload import FinishedRun
    from ppdbench.tasks import ChatOptions
    from ppdbench.training.text import TextSpec


NEARLY = 0.8  # alike, of 1


def notice(text: str) -> None:
    """One line for people, out of the way of results."""
    click.echo(clean(text, "line"), err=True)


def say(text: str) -> None:
    """One line that is the result itself."""
    click.echo(clean(text, "line"))


def chosen_model(name: str | None) -> str:
    """The model asked for, or the embedded one, or what stands in for that."""
    from ppdbench.engine.loading import EMBEDDED, REFERENCE, STAND_IN

    if name is not None:
        _refuse_misspelt(name, (*EMBEDDED, SMOLLM2))
        return name
    return REFERENCE if resources.reference_is_there() else STAND_IN


def _refuse_misspelt(name: str, own: Sequence[str]) -> None:
    """Refuse what is nearly a name of our own, before the hub is asked for it, or for its data."""
    if name in own or "/" in name or Path(name).expanduser().exists():
        return
    if near := get_close_matches(name, own, n=1, cutoff=NEARLY):
        raise ConfigError(
            f"unknown model {name!r}: did you mean {near[0]}? a model of the hub is OWNER/NAME, "
            "one of your own the path of its folder"
        )


def stand_in_note(asked: str | None) -> None:
    """Say so where no model was asked for and another had to stand in; not before errors."""
    from ppdbench.engine.loading import STAND_IN

    if asked is None and not resources.reference_is_there():
        notice(
            "note: no --model given and no trained reference model in this version; "
            f"used {STAND_IN} (random weights)"
        )


def model_spec(options: dict[str, Any]) -> ModelSpec:
    """The shared model options as one object; takes them out of `options`.

    Whatever can be known to be wrong with the model without loading it is told here.
    """
    from ppdbench.engine.loading import ModelSpec, check_there

    spec = ModelSpec(
        name=chosen_model(options.pop("model")),
        revision=options.pop("revision"),
        dtype=options.pop("dtype"),
        quantize=options.pop("quantize"),
        device=options.pop("device"),
        device_map=options.pop("device_map"),
        max_memory=options.pop("max_memory"),
        offline=options.pop("offline"),
        trust_remote_code=options.pop("trust_remote_code"),
        gguf=options.pop("gguf"),
        as_stored=options.pop("as_stored"),
        adapter=options.pop("adapter"),
        family_check=not options.pop("no_family_check"),
    )
    check_there(spec)
    return spec


# Which targets an option of drawing serves.
DRAWN = {"top-k", "top-p", "min-p"}
DRAWN_BY = {
    "top_k": {"top-k"},
    "top_p": {"top-p"},
    "min_p": {"min-p"},
    "temperature": DRAWN,
    "repetition_penalty": DRAWN,
    "logit_bias": DRAWN,
}


def chosen_targets(kinds: Sequence[str], options: dict[str, Any]) -> tuple[Target, ...]:
    """The targets of these kinds; takes the options of drawing out of `options`."""
    from ppdbench.decoding.sampling import Target

    drawing = {name: options.pop(name, None) for name in DRAWN_BY}
    drawing = {name: value for name, value in drawing.items() if value not in (None, ())}
    if "logit_bias" in drawing:
        drawing["logit_bias"] = tuple(map(_bias, drawing["logit_bias"]))
    for name, served in DRAWN_BY.items():
        if name in drawing and not served & set(kinds):
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} needs --target {' or '.join(sorted(served))}")
    return tuple(Target(kind=kind, **drawing) for kind in kinds)


def _bias(text: str) -> tuple[int, float]:
    """`42=-1.5` to a token and its bias."""
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise ConfigError(
            f"--logit-bias {text!r}: use a token id and a number, such as 42=-1.5"
        ) from None


def chosen_chat(options: dict[str, Any]) -> ChatOptions:
    """The options of chat templates as one object; takes them out of `options`."""
    from ppdbench.tasks.chat_options import ChatOptions, read_settings

    return ChatOptions(
        mode=options.pop("chat"),
        system=options.pop("system"),
        settings=read_settings(options.pop("chat_pairs")),
    )


def chosen_text(options: Mapping[str, Any]) -> TextSpec:
    """The options of a text as one object."""
    from ppdbench.training.text import TextSpec

    return TextSpec(
        sources=options["text"],
        split=options["split_by"],
        column=options["column"],
        max_documents=options["max_documents"],
        offline=options["offline"],
    )


class AskedOptions(TypedDict):
    """The part of a run's options that is more than what was typed."""

    data: str
    tasks: tuple[str, ...]
    chat: ChatOptions
    model: ModelSpec


class DecodedOptions(AskedOptions):
    """The same of a run that decodes."""

    target: Target


def what_is_asked(options: dict[str, Any]) -> AskedOptions:
    """The model and what it is to run on, taken out of `options`."""
    from ppdbench.runs.workload import usual_data

    return {
        "data": usual_data(options.pop("data"), options["model"]),
        "tasks": options.pop("tasks") or ("gsm8k",),
        "chat": chosen_chat(options),
        "model": model_spec(options),
    }


def what_is_decoded(options: dict[str, Any]) -> DecodedOptions:
    """The same and the target of a run that decodes."""
    kind = options.pop("target")
    (target,) = chosen_targets(["greedy" if kind is None else kind], options)
    return {**what_is_asked(options), "target": target}


class BatchOptions(TypedDict):
    """The sizes of batches, and how prompts join them."""

    batch: tuple[int, ...] | None
    prefill: int | None


def chosen_batches(options: dict[str, Any]) -> BatchOptions:
    """The options of batches, taken out of `options`."""
    from ppdbench.bench.batch_sizes import parse_prefill

    text, prefill = options.pop("batch"), options.pop("prefill")
    sizes = None if text is None else parse_numbers("--batch", text)
    found = parse_prefill(prefill)
    if found is not None and (sizes is None or max(sizes) < 2):
        raise ConfigError("--prefill is about batches; give --batch 2 or more, or leave it out")
    return {"batch": sizes, "prefill": found}


def parse_numbers(option: str, text: str, *, as_given: bool = False) -> tuple[int, ...]:
    """`1,3,5` to numbers, each once, smallest first, unless they are to stay as given."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text!r}: use numbers such as 1,3,5") from None
    return tuple(found if as_given else sorted(set(found)))


def our_shard(
    options: dict[str, Any], out: str | None, resume: bool, launched: Shard | None = None
) -> Shard:
    """Return the part of the run that this process does, in a folder that is ready for it.

    Takes --shard and --salvage out of `options`. `launched` is for commands that have another
    use for the processes which torchrun started.
    """
    part, salvage = options.pop("shard"), options.pop("salvage")
    shard = Shard.launched() if launched is None else launched
    if part is not None:
        if Shard.launched().count > 1:
            raise ConfigError("--shard is for jobs of their own; torchrun's need no number")
        shard = Shard.job(part)
        if out is None:
            raise ConfigError("--shard needs --out: the folder that all jobs write to")
    if salvage and not (out and resume):
        raise ConfigError("--salvage needs --resume and --out: it repairs a run to continue it")
    if salvage and out and not shard.follows:
        repair(out)
    return shard


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command that makes a run: its model and its folder as they were typed, and our part."""

    model: str | None
    out: str | None
    resume: bool
    shard: Shard

    @classmethod
    def begin(cls, options: dict[str, Any], launched: Shard | None = None) -> RunCommand:
        """Take out of `options` where the run goes, and set the machine up for it."""
        from ppdbench.machine.environment import set_threads

        quiet()
        out, resume = options.pop("out"), options.pop("resume")
        shard = our_shard(options, out, resume, launched)
        set_threads(options["threads"], shard.on_machine)
        return cls(options["model"], out, resume, shard)

    def run(self, make: Callable[[Destination], FinishedRun], *names: str) -> FinishedRun | None:
        """Make the run, in a folder of these names; None where others print what it found."""
        from ppdbench.runs.running import Destination, run_folder

        out = run_folder(self.out, self.resume, *names)
        with progress() as report:
            to = Destination(
                out=out, resume=self.resume, shard=self.shard, report=report, warn=warn
            )
            run = make(to)
        return None if told_elsewhere(run) else run

    @contextmanager
    def showing(self, run: FinishedRun) -> Iterator[None]:
        """Say where the run lies even if what it found cannot be written."""
        try:
            yield
        except OSError:
            _say_where(run)
            raise

    def end(self, run: FinishedRun) -> int:
        """Say what a user should know of the run; its exit code, as far as samples are missing."""
        closing_notes(run, self.model)
        return left_over(run)


def repair(*folders: str) -> None:
    """Drop what is damaged in stored runs, and say how much that was."""
    from ppdbench.runs.salvage import salvage

    for folder in filter(os.path.isdir, folders):  # of a file whoever reads it will say more
        dropped = salvage(Path(folder))
        if dropped:
            notice(
                f"note: {counted(dropped, 'damaged line')} dropped from {folder}; the "
                "file as it was ends in .damaged"
            )


def told_elsewhere(run: FinishedRun) -> bool:
    """True if there is nothing for this process to print: another one does, or nothing is there."""
    if run.shard.is_job and not run.samples:
        notice(f"note: shard {run.shard.index + 1}/{run.shard.count} has no examples")
        return True
    return run.shard.follows


def left_over(run: FinishedRun) -> int:
    """The exit code of a run that lacks what others were to do, with a line that says so."""
    if not run.missing:
        return 0
    samples = counted(run.missing, "sample")
    if run.shard.is_job:
        verb = "are" if run.missing > 1 else "is"
        notice(f"note: {samples} of other shards {verb} not there yet")
        return 0
    notice(f"ppdbench: {samples} missing, a process ended early; continue with --resume")
    return 3


def check_pictures(*paths: str | None) -> None:
    """Refuse pictures that could not be written, before any work is done."""
    asked = [path for path in paths if path is not None]
    if asked:
        from ppdbench.report.pictures.files import check_picture_path

        for path in asked:
            check_picture_path(path)


def draw(drawing: Drawing, path: str | Path) -> None:
    """Write a picture, and say where."""
    from ppdbench.report.pictures.files import save_picture

    save_picture(drawing, path)
    notice(f"picture: {path}")


def check_exports(paths: Sequence[str]) -> None:
    """Refuse files that the result could not be written to, before any work is done."""
    if paths:
        from ppdbench.report.export import check_table_path

        for path in paths:
            check_table_path(path)


def write_exports(output: PrintedOutput, paths: Sequence[str]) -> None:
    """Write a result to the files of --export, and say where."""
    for path in paths:
        output.write(path)
        notice(f"written: {path}")


def reading_notes(runs: Sequence[StoredRun]) -> None:
    """Say what stored runs lack."""
    for run in runs:
        if run.torn:
            notice(f"warning: the last line of {run.path} is incomplete and left out")
    unsealed = [str(run.path) for run in runs if run.unsealed]
    if unsealed:
        others = f" and {len(unsealed) - 1} other runs" if len(unsealed) > 1 else ""
        notice(
            f"note: samples of {unsealed[0]}{others} have no checksums, as earlier versions wrote "
            "none; damage that leaves a line readable would not show"
        )


def compilation_note(about: Compilation | None) -> None:
    """Say that passes ran captured, or why none did where that was asked for."""
    if about is None:
        return
    if about.rows:
        rows = ", ".join(map(str, about.rows))
        unit = "row" if len(about.rows) == 1 and about.rows[0] == 1 else "rows"
        notice(f"note: passes of {rows} {unit} ran captured, ready after {about.seconds:.0f} s")
    elif about.mode == "on":
        notice(f"note: --compile on: {about.why}")


def warn(text: str) -> None:
    """Say what is wrong with a run before it begins; of several processes the first says it."""
    if not Shard.launched().follows:
        notice(f"warning: {text}")


def closing_notes(run: FinishedRun, asked: str | None) -> None:
    """Say what a user should know of a finished run, and where it lies; `asked` is --model."""
    from ppdbench.runs.workload import without_score

    compilation_note(run.header.compilation)
    stand_in_note(asked)
    _data_note(run.header.config.data)
    for task, source in run.header.data.items():
        if source.in_place_of is not None:
            notice(f"note: {task}: {source.file}, as there is no split {source.in_place_of}")
        if source.unscored:
            notice(f"note: {without_score(task, source.unscored)}")
    if run.torn:
        notice("note: a last line of samples was incomplete; that example was done again")
    for path in run.cut_off:
        notice(f"note: the last line of {path} was incomplete and was cut off")
    if run.cut:
        examples = {(sample.task, sample.example_id) for sample in run.samples}
        notice(
            f"note: {len(run.cut)} of {len(examples)} prompts were too long and lost "
            f"{sum(run.cut.values())} tokens of their context"
        )
    if (whole := run.header.model.part_of) is not None:
        notice(f"note: of the {whole} model, which is of text and more, only the text part ran")
    if (left_out := run.header.model.adapter_left_out) is not None:
        notice(f"note: {left_out} modules of the adapter are of other parts, which do not run")
    _placement_note(run.header.layers)
    _say_where(run)


def _say_where(run: FinishedRun) -> None:
    notice(f"run: {run.path}")


def _data_note(data: str) -> None:
    """Say where examples came from if nobody said where from."""
    context = click.get_current_context(silent=True)
    given = context and context.get_parameter_source("data") is ParameterSource.COMMANDLINE
    if not given and data == "builtin":
        notice("note: examples: those that come with ppdbench, as with --data builtin")
    elif not given and data == "hub":
        notice("note: examples: the tasks' data sets, as with --data hub")


def _placement_note(layers: Mapping[str, int]) -> None:
    """Say where layers lie that are not all in one place, and what that does to times."""
    if set(layers) <= {"cpu"} or (len(layers) == 1 and "disk" not in layers):
        return
    told = ", ".join(f"{count} on {place}" for place, count in layers.items())
    slow = "; the disk is read anew for each pass and decides all times" * ("disk" in layers)
    notice(f"note: layers: {told}{slow}")


def show_examples(run: FinishedRun, count: int | None, form: str) -> None:
    """Prompts and outputs of some examples, where asked for; beside other forms on stderr."""
    if count is None:
        return
    from ppdbench.report.example_texts import print_examples
    from ppdbench.report.terminal import people

    print_examples(run.samples, count, run.spell, people(stderr=form != "table"))
