"""`ppdbench` in forked processes, so that hundreds of attempts do not wait for imports."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from benchmarks.attack.base import PATIENCE_S, CommandEnd

FORK = multiprocessing.get_context("fork")


class Forked:
    """One command in a process of its own; what it says goes into files in `place`.

    `before` is called in that process first, for what is to be changed in the package.
    """

    def __init__(
        self,
        words: Sequence[str],
        place: Path,
        patience_s: float = PATIENCE_S,
        before: Callable[[], None] | None = None,
    ) -> None:
        _import_all()
        place.mkdir(parents=True, exist_ok=True)
        self.words, self.patience_s, self.before = list(words), patience_s, before
        self.out, self.err = place / "stdout", place / "stderr"
        self.process = FORK.Process(target=self._main)
        self.process.start()

    def _main(self) -> None:
        import torch

        from ppdbench.cli.main import run

        # A pool of threads does not survive a fork. The first call makes a new one, and threads
        # that load weights side by side would otherwise all be the first.
        torch.set_num_threads(torch.get_num_threads())
        os.environ["HF_HUB_OFFLINE"] = "1"
        code = 99
        with self.out.open("w") as sys.stdout, self.err.open("w") as sys.stderr:
            try:
                if self.before is not None:
                    self.before()
                code = run(self.words)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        if self.process.is_alive():
            os.kill(self.process.pid or 0, signal.SIGKILL)
        self.process.join()

    def wait(self) -> CommandEnd:
        """Wait for the end; a command that does not end is killed."""
        self.process.join(self.patience_s)
        if self.process.exitcode is None:
            self.kill()
            raise TimeoutError(f"no end after {self.patience_s:.0f} s: {' '.join(self.words)}")
        return CommandEnd(
            self.process.exitcode, self.out.read_text("utf-8"), self.err.read_text("utf-8")
        )


@cache
def _import_all() -> None:
    """Import what children would import. Nothing is run: threads do not survive a fork."""
    import ppdbench.bench.sweep
    import ppdbench.cli.main
    import ppdbench.probe.runner
    import ppdbench.report.outputs
    import ppdbench.report.page.document
    import ppdbench.tables
    import ppdbench.training.trainer  # noqa: F401


def forked(words: Sequence[str], place: Path, patience_s: float = PATIENCE_S) -> CommandEnd:
    """Run one command to its end."""
    return Forked(words, place, patience_s).wait()


def wait_until(when: float) -> None:
    """Sleep until then, by `time.monotonic`."""
    time.sleep(max(0.0, when - time.monotonic()))
