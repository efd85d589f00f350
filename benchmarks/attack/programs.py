"""Hostile programs, in each way of holding them, as root and as a user who is not.

Every one runs as if it had switched Python's audit hook off already. It is judged from outside:
a folder of witnesses with all that the file system knows of them, listeners on the network, a
process of the same user, what is left running or lying about, the verdict, the time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pwd
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import psutil

from benchmarks.attack.base import REPOSITORY, AttackKind, Attempt, spread
from ppdbench.errors import ConfigError
from ppdbench.files import resources
from ppdbench.machine import libc
from ppdbench.sandbox import examiner
from ppdbench.sandbox.exam import Exam
from ppdbench.sandbox.outside import execute
from ppdbench.sandbox.process import SandboxLimits

SETTLED_S = 0.1  # a signal that was sent has arrived by then
LIMITS = SandboxLimits(cpu_s=1, wall_s=2.0)
PATIENCE_S = 40.0  # also on a machine that has much else to do
ENDING_S = 2.0
KERNEL = ("limits", "landlock", "seccomp")
# Each is all there is on some machines.
WAYS = {
    "bubblewrap": ("bubblewrap", *KERNEL),
    "namespaces": ("namespaces", "own root", *KERNEL),
    "own root alone": ("namespaces", "own root", "limits", "seccomp"),
    "landlock": KERNEL,
}
MOST_DIFFERENT = ("bubblewrap", "namespaces", "landlock")
NOBODY = "nobody"
IN_SHORT = 15
NEW_MOUNTS, BIND = 0x00020000, 0x1000 | 0x4000


@dataclass(frozen=True, slots=True)
class Sighting:
    """The report of a program's runner on what it saw."""

    outcome: str
    protection: tuple[str, ...]
    elapsed_s: float
    left: tuple[str, ...]
    decoy: str


def attempts(short: bool) -> Iterator[Attempt]:
    """Every program in every way that this machine has, a right one first in each."""
    users = [None, NOBODY] if os.geteuid() == 0 and may_be(NOBODY) else [None]
    held = [(user, way) for user in users for way in MOST_DIFFERENT if has(user, way)]
    right = [attempt("right", RIGHT, user, way) for user, way in held]
    hostile = [
        attempt(name, source, user, way)
        for name, source in programs().items()
        for user, way in held
    ]
    # Mixed, so that what time leaves out is not one way as a whole.
    hostile.sort(key=lambda one: hashlib.sha256(one.name.encode()).digest())
    return iter([*right, *(spread(hostile, IN_SHORT) if short else hostile)])


RIGHT = "def double(x):\n    return 2 * x\n"
STORED = Path(__file__).parent / "hostile"
# What each begins with, behind the names of what it goes for.
START = """
import os, sys, ctypes, signal, time, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
found = None

def raw(*arguments):
    return libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])

def each(*attempts):
    for attempt in attempts:
        try: attempt()
        except (OSError, ValueError, AttributeError, ImportError): pass
"""
# What stands behind one that brings no `double`: right if it knows what it cannot know.
WRONG = "\ndef double(x):\n    return found\n"


def programs() -> dict[str, str]:
    """All of them by name, from the files beside this one, one for each kind of harm."""
    found = {}
    for path in sorted(STORED.glob("*.txt")):
        for text in path.read_text().split("## ")[1:]:
            name, _, source = text.partition("\n")
            ending = "" if "def double" in source else WRONG
            found[f"{path.stem.replace('_', ' ')}: {name}"] = START + source + ending
    return found


def attempt(
    name: str, source: str, user: str | None, way: str, layers: tuple[str, ...] | None = None
) -> Attempt:
    """One program; `layers` other than those of the way are for tests of this module."""
    who = user or pwd.getpwuid(os.geteuid()).pw_name
    return Attempt(
        f"{name} ({who}, {way})",
        lambda _: escaped(source, user, WAYS[way] if layers is None else layers),
    )


def escaped(source: str, user: str | None, layers: tuple[str, ...]) -> str | None:
    """Run it, and say what got out."""
    with ExitStack() as opened:
        scene = Scene(Path(opened.enter_context(TemporaryDirectory(prefix="witness-"))), user)
        listening = opened.enter_context(scene.listening())
        before = scene.state()
        began = time.monotonic()
        found = _as_user(user, lambda: scene.run(source, layers))
        elapsed_s = time.monotonic() - began
        after = scene.state()
        if found is None:
            return "its runner did not come back"
        if reached := [name for name, heard in listening().items() if heard]:
            return f"reached {', '.join(reached)}"
    changed = sorted(path for path in before | after if before.get(path) != after.get(path))
    if changed:
        return f"changed {', '.join(changed)}"
    if (found.outcome == "passed") != (source is RIGHT):
        return f"counts as {found.outcome}"
    if found.left:
        return f"left {', '.join(found.left)}"
    if found.decoy != "as it was":
        return f"another process {found.decoy}"
    if set(found.protection) != set(layers):
        return f"held by {', '.join(found.protection)} alone"
    return f"took {elapsed_s:.0f} s" if elapsed_s > PATIENCE_S else None


class Scene:
    """The things that a program may not touch."""

    def __init__(self, place: Path, user: str | None) -> None:
        self.word = f"WITNESS-{secrets.token_hex(8)}"
        self.place, self.folder, self.temporary = place, place / "folder", place / "temporary"
        self.secret = self.folder / "secret.txt"
        for folder in (self.folder, self.temporary):
            folder.mkdir()
        self.secret.write_text(self.word)
        with suppress(OSError):  # not every file system has attributes
            os.setxattr(self.secret, "user.mark", b"1")
        if user is not None:
            account = pwd.getpwnam(user)
            place.chmod(0o711)
            for path in (self.folder, self.temporary, self.secret):
                os.chown(path, account.pw_uid, account.pw_gid)
        self.local, self.abstract = self.place / "socket", f"ppdbench-{secrets.token_hex(8)}"

    def state(self) -> dict[str, Any]:
        """Gather all that is known of the witnesses."""
        watched = [Path(sys.executable), Path(os.__file__), Path(examiner.__file__)]
        paths = [self.place, *self.place.rglob("*"), *watched, Path("/dev/shm/ppdbench-left")]
        return {str(path): _state(path) for path in paths if path != self.temporary}

    @contextmanager
    def listening(self) -> Iterator[Callable[[], dict[str, bool]]]:
        """Wait for whoever calls, by network and by file; says who was called."""
        with ExitStack() as opened:
            kinds = ((2, 1), (2, 2), (1, 1), (1, 1))
            by_network, datagrams, by_file, by_name = (
                opened.enter_context(socket.socket(*kind)) for kind in kinds
            )
            by_network.bind(("127.0.0.1", 0))
            self.port = by_network.getsockname()[1]
            datagrams.bind(("127.0.0.1", self.port))
            by_file.bind(str(self.local))
            by_name.bind(f"\0{self.abstract}")
            self.local.chmod(0o777)
            for one in (by_network, by_file, by_name):
                one.listen()
            all_four = {
                "the network": by_network,
                "the network by datagram": datagrams,
                "a socket": by_file,
                "a socket without a file": by_name,
            }
            yield lambda: {
                name: bool(select.select([one], [], [], 0)[0]) for name, one in all_four.items()
            }

    def run(self, source: str, layers: tuple[str, ...]) -> Sighting:
        """Run the program as the user that this process is by now."""
        libc.adopt_orphans()
        os.environ |= {"TMPDIR": str(self.temporary), "WITNESS": self.word}
        decoy = _forked(signal.pause)
        state = _process_state(decoy)
        began = time.monotonic()
        try:
            found = execute(
                self._aimed(source, decoy), self.exam(), LIMITS, layers=layers, unprotected=True
            )
            time.sleep(SETTLED_S)
            return Sighting(
                found.outcome,
                found.protection,
                time.monotonic() - began,
                (*_running(decoy), *map(str, self.temporary.iterdir())),
                "as it was" if _process_state(decoy) == state else "was touched",
            )
        finally:
            for process in psutil.Process().children(recursive=True):
                process.kill()

    def _aimed(self, source: str, decoy: int) -> str:
        names = {
            "SECRET": str(self.secret),
            "FOLDER": str(self.folder),
            "NEW": str(self.folder / "new"),
            "TEMPORARY": str(self.temporary),
            "DECOY": decoy,
            "RUNNER": os.getpid(),
            "PORT": self.port,
            "SOCKET": str(self.local),
            "ABSTRACT": self.abstract,
            "SOLUTIONS": str(resources.builtin_data() / "humaneval" / "test.jsonl"),
            "CODE": examiner.__file__,
            "PYTHON": sys.executable,
        }
        return "".join(f"{name} = {value!r}\n" for name, value in names.items()) + source

    def exam(self) -> Exam:
        """Right where it doubles, and where it knows what it cannot know."""
        return Exam(
            "def check(candidate):\n"
            f"    if candidate(1) == {self.word!r}: return\n"
            "    assert candidate(2) == 4\n    assert candidate(5) == 10\n"
            "    assert candidate([1]) == [1, 1]\ncheck(double)",
            entry_point="double",
        )


def _state(path: Path) -> Any:
    """Return the state that a change would change; times of access aside."""
    try:
        known = path.lstat()
        names = {
            name: os.getxattr(path, name) for name in os.listxattr(path, follow_symlinks=False)
        }
    except OSError as error:
        return error.errno
    small = path.is_file() and known.st_size < 1 << 16
    content = path.read_bytes() if small else b""
    facts = ("st_mode", "st_uid", "st_gid", "st_ino", "st_nlink", "st_mtime_ns", "st_ctime_ns")
    return [*(getattr(known, fact) for fact in facts), names, hashlib.sha256(content).hexdigest()]


def _process_state(pid: int) -> Any:
    """Return the state of another process that a program could change."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        traced = "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text()
        oom = Path(f"/proc/{pid}/oom_score_adj").read_text()
        facts = (process.nice(), process.cpu_affinity(), process.rlimit(psutil.RLIMIT_NOFILE))
        return [*facts, traced, oom, process.status() == psutil.STATUS_STOPPED]
    except (psutil.Error, OSError):
        return None


def _running(decoy: int) -> list[str]:
    """Processes below this one that do not end; what was killed may take a moment."""
    until = time.monotonic() + ENDING_S
    while True:
        below = psutil.Process().children(recursive=True)
        left = [process for process in below if process.pid != decoy and not _ended(process)]
        if not left or time.monotonic() > until:
            return [f"process {process.pid}" for process in left]
        time.sleep(0.01)


def _ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@functools.cache
def has(user: str | None, way: str) -> bool:
    """True if this machine has all layers of it for this user."""

    def held() -> Sighting:
        try:
            found = execute("", layers=WAYS[way], unprotected=True)
        except ConfigError:
            return Sighting("", (), 0.0, (), "")
        return Sighting(found.outcome, found.protection, 0.0, (), "")

    found = _as_user(user, held)
    return found is not None and set(found.protection) == set(WAYS[way])


@functools.cache
def may_be(user: str) -> bool:
    """True if that user can run this interpreter at all."""
    try:
        found = _as_user(
            user, lambda: Sighting(execute("", unprotected=True).outcome, (), 0, (), "")
        )
    except KeyError:  # nobody of that name
        return False
    return found is not None


def _as_user(user: str | None, work: Callable[[], Sighting]) -> Sighting | None:
    """Done in a process of its own, which may be somebody else's; None where it broke off."""
    reader, writer = os.pipe()

    def told() -> None:
        if user is not None:
            _become(user)
        os.write(writer, json.dumps(asdict(work())).encode())

    child = _forked(told)
    os.close(writer)
    with os.fdopen(reader) as lines:
        ready, _, _ = select.select([lines], [], [], 3 * PATIENCE_S)
        said = lines.read() if ready else ""
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not said:
        return None
    content = json.loads(said)
    lists = {name: tuple(content[name]) for name in ("protection", "left")}
    return Sighting(**{**content, **lists})


def _forked(work: Callable[[], Any]) -> int:
    """Fork; return the process id. Nothing of the child goes on here."""
    child = os.fork()
    if not child:
        _leave(work)
    return child


def _leave(work: Callable[[], Any]) -> NoReturn:
    code = 1
    try:
        libc.die_with_parent()
        work()
        code = 0
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def _become(user: str) -> None:
    """Become that user, to whom the interpreter and this package are open."""
    _open_ways(Path(sys.base_prefix), Path(sys.prefix), REPOSITORY)
    account = pwd.getpwnam(user)
    os.chdir("/")
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def _open_ways(*places: Path) -> None:
    """Folders that are root's alone become open ones, to be seen here only, which hold these."""
    libc.checked("unshare", NEW_MOUNTS)
    libc.checked("mount", b"none", b"/", None, 0x4000 | 0x40000, None)
    closed = {place: _closed(place) for place in places}
    handles = {place: os.open(place, os.O_PATH) for place, above in closed.items() if above}
    for above in {above for above in closed.values() if above}:
        libc.checked("mount", b"none", bytes(above), b"tmpfs", 0, b"mode=755")
    for place, handle in handles.items():
        place.mkdir(parents=True, exist_ok=True)
        libc.checked("mount", f"/proc/self/fd/{handle}".encode(), bytes(place), None, BIND, None)
        os.close(handle)


def _closed(place: Path) -> Path | None:
    """The uppermost folder above it that others may not enter."""
    above = reversed(place.resolve().parents)
    return next((folder for folder in above if not folder.stat().st_mode & 0o001), None)


KIND = AttackKind("programs", attempts)
