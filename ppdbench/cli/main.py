"""The `ppdbench` command: finds subcommands, turns errors into one line and an exit code."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import click

from ppdbench import __version__
from ppdbench.cli.common import notice, warn
from ppdbench.cli.interrupts import Interrupts
from ppdbench.errors import ConfigError, PpdbenchError, PpdbenchWarning, UnknownName
from ppdbench.files.clean import clean
from ppdbench.runs.shards import Shard

# Imported when named, so that --help does not wait for torch.
COMMANDS = {
    "probe": "Per-layer match rates against the final layer; draft accuracy.",
    "decode": "One decoding strategy on one task.",
    "bench": "Several strategies on several tasks, side by side.",
    "sweep": "A grid over one strategy's options: the best setting, a heat map.",
    "train": "Heads and other parts beside a model; the LayerSkip recipe.",
    "answers": "What a model writes to prompts: the text to train drafters on.",
    "skips": "Which blocks draft-verify should skip with a model.",
    "datastore": "The text that --method rest looks things up in.",
    "tree": "Sparse trees of guesses: build one for this machine, or show one.",
    "theory": "Latency and compute that match rates promise.",
    "table": "A paper's table with measured numbers beside the printed ones.",
    "report": "One HTML page about stored runs: tables, plots, single examples.",
    "check": "A run against a stored baseline; the exit code is the verdict.",
    "list": "What there is: methods, tasks, models, tables.",
    "env": "This machine, and how fast the baseline runs on it.",
}
COMPLETION = "_PPDBENCH_COMPLETE"  # set by a shell that asks what Tab is to offer
INTERRUPTED = 130
ESCAPED = "backslashreplace"  # letters, where UTF-8 is not spoken: nothing fails for that


class Commands(click.Group):
    """Subcommands by name, each in a module of its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            raise UnknownName("command", name, COMMANDS)
        command = import_module(f"ppdbench.cli.{name}_command").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Errors are one line; add --debug to any command for the traceback.",
)
@click.version_option(__version__, prog_name="ppdbench")
@click.pass_context
def cli(ctx: click.Context, /) -> None:
    """Match rates and speedups of exact LLM decoding, checked against greedy.

    \b
    ppdbench probe --task gsm8k --limit 8
    ppdbench decode --method greedy --task squad --limit 8
    ppdbench theory --layers 40 --exit-after 20 --k 3 --p 0.6837
    """
    _refuse_deleted_folder()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _refuse_deleted_folder() -> None:
    """Say that the current folder is gone, before a library comes to grief over it."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the current folder has been deleted; change to another one") from None


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    debug = "--debug" in arguments or os.environ.get("PPDBENCH_DEBUG") == "1"
    arguments = [a for a in arguments if a != "--debug"]
    if COMPLETION in os.environ:
        import_module("ppdbench.cli.completion")
    try:
        result = cli.main(list(arguments), prog_name="ppdbench", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:
        # click's way out when whoever read our output has left: no error, nothing more to say.
        _discard_stdout()
        return 0
    except BrokenPipeError:
        _discard_stdout()
        return 0
    except PpdbenchError as error:
        return _fail(str(error), error.exit_code, debug)
    except click.exceptions.NoArgsIsHelpError as error:  # as the command without any words does
        click.echo(error.format_message())
        return 0
    except click.UsageError as error:
        where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return _fail(f"{error.format_message()}{where}", 2, debug)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code, debug)
    except (KeyboardInterrupt, click.Abort) as error:
        return _fail(str(error) or "interrupted", INTERRUPTED, debug)
    except OSError as error:
        _discard_stdout()
        what = "the output" if error.filename is None else error.filename
        return _fail(f"cannot read or write {what}: {error.strerror or error}", 2, debug)
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error}; --debug shows where"
        return _fail(text, 2, debug)
    return result if isinstance(result, int) else 0


def _discard_stdout() -> None:
    """Drop what is still buffered and cannot be written; the interpreter must not try again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        click.echo(clean(traceback.format_exc(), "terminal"), err=True)
    rank = Shard.launched().index
    # Every rank is interrupted, and the first one says so.
    if rank == 0 or code != INTERRUPTED:
        where = f" (rank {rank})" if rank else ""
        notice(f"ppdbench{where}: {message}")
    return code


def tell_warning(
    message: Warning | str, category: type[Warning], *where: Any, otherwise: Callable[..., None]
) -> None:
    """Say a warning of ours in one line, and leave those of other libraries to `otherwise`."""
    if issubclass(category, PpdbenchWarning):
        warn(str(message))
    else:
        otherwise(message, category, *where)


class Unheard(io.FileIO):
    """A stream for people: that nobody can read it changes nothing in what a command does."""

    def write(self, content: Any) -> int:
        """Write what can be written; the rest is lost."""
        try:
            return super().write(content) or 0
        except OSError:
            return memoryview(content).nbytes


def _heard_or_not() -> TextIO:
    """Standard error, as it is but for what cannot be written to it."""
    old = sys.stderr
    by_bytes = io.BufferedWriter(Unheard(old.fileno(), "w", closefd=False))
    return io.TextIOWrapper(by_bytes, old.encoding, ESCAPED, line_buffering=True)


def main() -> None:
    """Entry point of the installed command. Being told to end is an interrupt like any other."""
    # torchrun hands Ctrl-C on, even in the background, where it is ignored
    Interrupts().listen(to_ignored=Shard.launched().launch is not None)
    for name in ("stdout", "stderr"):  # closed by whoever started this: nobody wants to read it
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPED)
    sys.stderr = _heard_or_not()
    codes: list[int] = []
    atexit.register(_leave, codes)  # first in, so that it is called last
    with warnings.catch_warnings():
        warnings.showwarning = partial(tell_warning, otherwise=warnings.showwarning)
        codes.append(run(sys.argv[1:]))
    if codes[0] == INTERRUPTED:  # a key that is still held down has nothing left to end
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(codes[0])


def _leave(codes: list[int]) -> None:
    """End here, where all threads and all that libraries do at exit are done.

    The interpreter would go on to look for garbage and take every object apart, for a second.
    """
    if codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])
