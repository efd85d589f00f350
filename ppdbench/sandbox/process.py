"""One process of the sandbox as its starter sees it: what it reports, what it writes, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ppdbench.sandbox import bubblewrap, folder, places

# With one of these in force no process can leave its group or be left behind.
NOBODY_STAYS = {"bubblewrap", "namespaces", "seccomp"}
ROUNDS = 50  # of killing what multiplies
# With one of these the folder is a file system in memory.
IN_MEMORY = {"bubblewrap", "own root"}
MOST_FILES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """The limits of a program; a test of HumanEval needs a hundredth of them."""

    cpu_s: int = 5  # decides on a loaded machine as on an idle one, which wall time would not
    wall_s: float = 20.0
    memory_bytes: int = 1 << 30  # of address space
    file_bytes: int = 1 << 20
    folder_bytes: int = 16 << 20
    open_files: int = 32
    output_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The layers that are asked for, and whether to go on where they do not hold everything."""

    limits: SandboxLimits
    layers: tuple[str, ...]
    unprotected: bool


class SandboxProcess:
    """A process that does one job behind these walls, with the ends of two wires."""

    def __init__(
        self, role: str, job: Mapping[str, Any], wires: tuple[int, int], settings: SandboxSettings
    ):
        self.role, self._settings = role, settings
        self.said, self.output = bytearray(), bytearray()
        self.folder = Path(mkdtemp(prefix="ppdbench-"))
        self.report, inner = os.pipe()
        try:
            self.process = self._started(inner, wires)
        except BaseException:
            os.close(self.report)
            folder.remove(self.folder)
            raise
        finally:
            os.close(inner)
        with suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps({**job, **self._asked()}).encode())
            self.process.stdin.close()

    @cached_property
    def _wrapped(self) -> bool:
        if "bubblewrap" not in self._settings.layers:
            return False
        return bubblewrap.works(self._shown(), self._settings.limits.folder_bytes)

    @staticmethod
    def _shown() -> frozenset[Path]:
        return frozenset((*places.readable(), *places.ours()))

    def _asked(self) -> dict[str, Any]:
        """Return the settings that go with every job."""
        layers = list(self._settings.layers)
        if self._wrapped:
            layers = [name for name in layers if name not in ("namespaces", "own root")]
        return {
            "limits": asdict(self._settings.limits),
            "layers": layers,
            "held": ["bubblewrap"] if self._wrapped else [],
            "unprotected": self._settings.unprotected,
        }

    def _started(self, inner: int, wires: tuple[int, int]) -> subprocess.Popen[bytes]:
        """The process, in a session and group of its own."""
        fds = (inner, *wires)
        words = [sys.executable, "-s", "-B", "-m", "ppdbench.sandbox.inside", self.role]
        words += map(str, fds)
        if self._wrapped:
            size = self._settings.limits.folder_bytes
            words = bubblewrap.in_bubblewrap(words, self._shown(), self.folder, size)
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            pass_fds=fds,
            start_new_session=True,
        )

    def _environment(self) -> dict[str, str]:
        """Return an environment with no more of ours than the interpreter may need to start."""
        needed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        return needed | {
            "PYTHONPATH": str(places.PACKAGE.parent),
            "PYTHONHASHSEED": "0",  # sets in the same order
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "LANG": "C.UTF-8",
            "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads, which it may not
        }

    def told(self, what: str) -> dict[str, Any]:
        """The line of its report that holds this; nothing until it is there."""
        for line in bytes(self.said).splitlines():
            with suppress(ValueError, RecursionError):
                content = json.loads(line)
                if isinstance(content, dict) and what in content:
                    return content
        return {}

    @property
    def held(self) -> tuple[str, ...]:
        """The layers in force; none until they are."""
        return tuple(self.told("protection").get("protection", ()))

    @property
    def began(self) -> bool:
        """True if it is locked in."""
        return bool(self.told("protection"))

    @property
    def cpu_s(self) -> float:
        """The processor time it took, known when it has ended; 0 until then."""
        return float(self.told("cpu_s").get("cpu_s", 0.0))

    def last_line(self) -> str:
        """Return the last line that it wrote."""
        lines = bytes(self.output).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "no word"

    def overfull(self) -> bool:
        """True if it has written more than it may, wherever that can be seen from here."""
        limits = self._settings.limits
        if len(self.output) > limits.output_bytes:
            return True
        on_disk = IN_MEMORY.isdisjoint(self.held)
        return on_disk and folder.fuller_than(self.folder, limits.folder_bytes, MOST_FILES)

    def end(self) -> None:
        """Kill all of it, wait, and leave nothing behind."""
        if NOBODY_STAYS.isdisjoint(self.held):
            self._end_strays()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self.report)
        folder.remove(self.folder)

    def _end_strays(self) -> None:
        """Kill all below the keeper, which they fall to; those in other groups, too."""
        import psutil  # the interpreters that start for each program do without it

        with suppress(psutil.NoSuchProcess):
            for _ in range(ROUNDS):
                below = psutil.Process(self.process.pid).children(recursive=True)
                if all(process.status() == psutil.STATUS_ZOMBIE for process in below):
                    return
                for process in below:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
