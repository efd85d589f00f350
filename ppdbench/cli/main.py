"""The `ppdbench` command: finds subcommands, turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from ppdbench import __version__
from ppdbench.errors import PpdbenchError

# Imported when named, so that --help does not wait for torch.
COMMANDS = {
    "probe": "Per-layer match rates against the final layer.",
    "decode": "One decoding strategy on one task.",
    "theory": "Latency and compute that match rates promise.",
    "list": "What there is: methods, tasks, models, tables.",
    "env": "This machine, and how fast the baseline runs on it.",
}
INTERRUPTED = 130


class Commands(click.Group):
    """Subcommands by name, each in a module of its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = import_module(f"ppdbench.cli.{name}_command").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Errors are one line; add --debug to any command for the traceback.",
)
@click.version_option(__version__, prog_name="ppdbench")
def cli() -> None:
    """Match rates and speedups of exact LLM decoding, checked against greedy.

    \b
    ppdbench probe --task gsm8k --limit 8
    ppdbench decode --method greedy --task squad --limit 8
    ppdbench theory --layers 40 --exit-after 20 --k 3 --p 0.6837
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    debug = "--debug" in arguments or os.environ.get("PPDBENCH_DEBUG") == "1"
    arguments = [a for a in arguments if a != "--debug"]
    try:
        result = cli.main(list(arguments), prog_name="ppdbench", standalone_mode=False)
        sys.stdout.flush()
    except PpdbenchError as error:
        return _fail(str(error), error.exit_code, debug)
    except click.UsageError as error:
        where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return _fail(f"{error.format_message()}{where}", 2, debug)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code, debug)
    except (KeyboardInterrupt, click.Abort) as error:
        return _fail(str(error) or "interrupted", INTERRUPTED, debug)
    except BrokenPipeError:
        # Whoever read our output has left; closing quietly is what they expect.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    click.echo(f"ppdbench: {' '.join(message.split())}", err=True)
    return code


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(run(sys.argv[1:]))
