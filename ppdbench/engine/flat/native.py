"""The kernels as a shared library: compiled at first use, kept on disk, loaded by ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from filelock import FileLock

from ppdbench.files.caches import cache_folder
from ppdbench.files.whole import write_whole
from ppdbench.machine.environment import cpu_model, instruction_sets
from ppdbench.machine.threads import threads

SOURCES = Path(__file__).parent
COMPILERS = ("g++", "clang++", "c++")
FLAGS: tuple[str, ...] = (
    *("-std=c++17", "-O3", "-march=native", "-fPIC", "-pthread", "-fvisibility=hidden"),
    # A sum must round alike wherever it stands: see simd.h.
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-w"),
)
PATIENCE_S = 300  # for another process that compiles the same
Compiler = tuple[str, ...]  # its program, and perhaps what it is always told


class Unavailable(Exception):
    """Says why there are no kernels here; passes go on without them."""


class Columns(ctypes.Structure):
    """Columns of a buffer."""

    _fields_: ClassVar = [("buffer", c_int32), ("first", c_int32)]


class Product(ctypes.Structure):
    """A product and where it goes."""

    _fields_: ClassVar = [
        *(("blob", c_void_p), ("bias", c_void_p), ("inputs", c_int64), ("outputs", c_int64)),
        *(("target", Columns), ("first", c_int64), ("form", c_int64)),
    ]


class Operation(ctypes.Structure):
    """One operation of a program."""

    _fields_: ClassVar = [
        *(("kind", c_int32), ("flags", c_int32)),
        *(("source", Columns), ("other", Columns), ("target", Columns)),
        *(("width", c_int64), ("count", c_int64), ("products", POINTER(Product))),
        *(("weight", c_void_p), ("bias", c_void_p), ("order", c_void_p)),
        *(("layer", c_int32), ("turn", c_int32), ("act", c_int32), ("heads", c_int32)),
        *(("kv_heads", c_int32), ("head_dim", c_int32), ("value_dim", c_int32)),
        *(("rotary_dim", c_int32), ("first_value", c_int32), ("value_heads", c_int32)),
        *(("window", c_int64), ("value", c_float), ("cap", c_float)),
    ]


class PassData(ctypes.Structure):
    """One pass over some rows."""

    _fields_: ClassVar = [
        *(("rows", c_int64), ("start", c_int64), ("capacity", c_int64)),
        *(("layers", c_int64), ("widths", c_void_p), ("causal", c_int64)),
        *(("slots", c_void_p), ("positions", c_void_p), ("reach", c_void_p)),
        *(("seen", c_void_p), ("places", c_void_p), ("offsets", c_void_p), ("owners", c_void_p)),
        *(("tokens", c_void_p), ("words", c_int64)),
        *(("keys", c_void_p), ("values", c_void_p)),
        *(("whole", c_int64), ("cos", c_void_p), ("sin", c_void_p)),
        *(("source", c_void_p), ("target", c_void_p), ("in_blob", c_int64)),
        *(("likeliest", c_void_p), ("peaks", c_void_p)),
    ]


class Span(ctypes.Structure):
    """The operations [first, end)."""

    _fields_: ClassVar = [("first", c_int32), ("end", c_int32)]


class ProgramRun(ctypes.Structure):
    """A pass through some spans of a program."""

    _fields_: ClassVar = [
        *(("buffers", c_void_p), ("ops", c_void_p), ("spans", c_void_p), ("n_spans", c_int64)),
        *(("narrow", c_int64), ("data", c_void_p)),
    ]


# As operations.h numbers them.
KINDS = (
    *("enter", "leave", "linear", "gated", "rms_norm", "layer_norm", "rotate", "store"),
    *("attend", "act", "add", "copy", "pick", "cap", "scale", "xielu", "mix", "cut", "clip"),
)
# As products.h numbers the ways to multiply bfloat16 numbers.
VECTORS, DOT_PRODUCTS, TILES, EMULATED_TILES = range(4)
# As products.h numbers the forms of weights that are not plain, by their bits, and what is added to
# these where levels lie as tiles take them, and where scales and shifts are halves.
STORED_FORMS, FOR_TILES, HALVES = {4: 1, 8: 2}, 4, 8
# As packing.h numbers what may be done with a weight and its blob.
TO_BLOB, TO_ROWS, COMPARE = range(3)


class Library:
    """The functions of a built library."""

    def __init__(self, path: Path) -> None:
        try:
            self._dll = ctypes.CDLL(str(path))
        except OSError as error:  # of a folder that programs may not be run from, say
            raise Unavailable(
                f"cannot load the compiled kernels: {error}; name another folder in PPDBENCH_CACHE"
            ) from error
        sizes = (c_int64 * 5)()
        self._dll.flat_start(sizes)
        ours = [ctypes.sizeof(kind) for kind in (Operation, Product, PassData, ProgramRun)]
        if list(sizes) != [*ours, len(KINDS)]:
            raise Unavailable(f"the compiler lays structures out otherwise: {list(sizes)}")
        self._blob_numbers = self._function("flat_blob_numbers", c_int64, "llw")
        self._pack = self._function("flat_pack", ctypes.c_int, "ppllllwww")
        self._pack_in_place = self._function("flat_pack_in_place", ctypes.c_int, "pllww")
        self._sum = self._function("flat_sum", ctypes.c_double, "plw")
        self.buffers = self._function("flat_buffers", c_void_p, "pw")
        self.free = self._function("flat_free", None, "p")
        self.run = self._function("flat_run", ctypes.c_int, "pww")
        self.linear = self._function("flat_linear", ctypes.c_int, "pwpplw")
        self.lanes: int = self._dll.flat_lanes()
        self._place(threads.cores)
        self._path = VECTORS
        # By type, the bytes of weights over which it was measured which rows ask ahead.
        self.asked_over: dict[torch.dtype, int] = {}

    def _function(self, name: str, gives: Any, takes: str) -> Any:
        function: Any = self._dll[name]
        kinds: dict[str, Any] = {"p": c_void_p, "l": c_int64, "w": ctypes.c_int}
        function.argtypes, function.restype = [kinds[kind] for kind in takes], gives
        return function

    def _place(self, cores: Sequence[int]) -> None:
        """Give each thread a core of its own, if there are any."""
        self._dll.flat_place((c_int32 * len(cores))(*cores), len(cores))

    @property
    def paths(self) -> list[int]:
        """The ways to multiply bfloat16 numbers that this processor has, the best first."""
        found: int = self._dll.flat_paths()
        return [path for path in (TILES, DOT_PRODUCTS, VECTORS) if found >> path & 1]

    @property
    def in_tiles(self) -> bool:
        """True if bfloat16 numbers are multiplied in matrix tiles."""
        return self._path in (TILES, EMULATED_TILES)

    def use(self, path: int) -> None:
        """Multiply bfloat16 numbers this way from now on, by weights that are laid out after it."""
        self._dll.flat_use(path)
        self._path = path

    def ask(self, dtype: torch.dtype, *, two: bool, more: bool) -> None:
        """Have passes of up to two rows in this type ask ahead for weights from now on, or of more.

        Many rows do so anyway.
        """
        self._dll.flat_ask(int(dtype == torch.bfloat16), int(two), int(more))

    def sum(self, numbers: torch.Tensor) -> float:
        """Add up contiguous numbers of float32, read as passes of one row read weights."""
        total: float = self._sum(numbers.data_ptr(), numbers.numel(), threads.count)
        return total

    def blob_numbers(self, outputs: int, inputs: int, *, narrow: bool) -> int:
        """Count the numbers of a weight's blob."""
        n: int = self._blob_numbers(outputs, inputs, narrow)
        return n

    def move(self, blob: torch.Tensor, weight: torch.Tensor, *, back: bool = False) -> None:
        """Bring a weight [out, in] into its blob, or back."""
        self._meet(blob, weight, TO_ROWS if back else TO_BLOB)

    def holds(self, blob: torch.Tensor, weight: torch.Tensor) -> bool:
        """True if a blob is made of this weight, bit by bit; what fills it up is not looked at."""
        return self._meet(blob, weight, COMPARE)

    def move_in_place(self, weight: torch.Tensor) -> bool | None:
        """Make a contiguous weight [out, in] of whole blocks a blob in its own memory.

        False if that holds something else then than what was there; None if there is no memory for
        a block beside it, and nothing has changed.
        """
        narrow = weight.dtype == torch.bfloat16
        made = self._pack_in_place(weight.data_ptr(), *weight.shape, narrow, threads.count)
        return None if made < 0 else bool(made)

    def _meet(self, blob: torch.Tensor, weight: torch.Tensor, how: int) -> bool:
        narrow = weight.dtype == torch.bfloat16
        places = blob.data_ptr(), weight.data_ptr()
        shape = *weight.shape, *weight.stride()
        return bool(self._pack(*places, *shape, narrow, how, threads.count))


@cache
def loaded() -> Library:
    """The library for this machine, built if it is not there; nobody has checked it yet."""
    return Library(built(SOURCES))


def built(sources: Path) -> Path:
    """Return the library that is built of these sources here, by the first compiler that can."""
    first, *others = _compilers()
    try:
        return _built_by(first, sources)
    except Unavailable:
        for other in others:
            with suppress(Unavailable):
                return _built_by(other, sources)
        raise


def _built_by(compiler: Compiler, sources: Path) -> Path:
    try:
        path = cache_folder() / "kernels" / f"{_key(sources, compiler)}.so"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=PATIENCE_S):
            if not _is_whole(path):
                _compile(sources, compiler, path)
    except OSError as error:
        raise Unavailable(
            f"cannot keep compiled kernels: {error.strerror or error}; name a folder that can be "
            "written to in PPDBENCH_CACHE"
        ) from error
    return path


def _compilers() -> list[Compiler]:
    """The compilers that are there, by the words that call them: CXX alone where that is set."""
    asked = os.environ.get("CXX", "").strip()
    try:
        calls = [shlex.split(asked)] if asked else [[name] for name in COMPILERS]
    except ValueError:  # quotes that do not close
        calls = []
    found = [(path, *more) for name, *more in calls if (path := shutil.which(name))]
    if not found:
        said = f"CXX names {asked!r}, which is not there" if asked else "no C++ compiler found"
        raise Unavailable(f"{said}; install g++ or clang++, or set CXX")
    return found


def _key(sources: Path, compiler: Compiler) -> str:
    """Name what comes out: after the sources, the compiler, its flags and the processor."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    said = hashlib.sha256("\n".join((*compiler, *FLAGS, _processor())).encode() + version)
    for file in sorted(sources.glob("*.[ch]*")):
        said.update(file.read_bytes())
    return said.hexdigest()[:24]


def _processor() -> str:
    """Name the processor that the compiler builds for: others may not run what it makes."""
    return " ".join((cpu_model() or "", *sorted(instruction_sets() or ())))


def _compile(sources: Path, compiler: Compiler, path: Path) -> None:
    """Build the library beside its place and put it there whole, its digest after it.

    The longest file is compiled beside all others, which are read as one: a good part of the time
    goes into headers that all of them include.
    """
    longest, *others = sorted(sources.glob("*.cpp"), key=lambda file: (-file.stat().st_size, file))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made, units, objects = Path(folder) / "kernels.so", [], []
        for last, *before in filter(None, ([longest], others)):
            objects.append(str(Path(folder) / f"{last.stem}.o"))
            read = [word for file in before for word in ("-include", str(file))]
            units.append([*compiler, *FLAGS, *read, "-c", str(last), "-o", objects[-1]])
        _run_all(units)
        _run_all([[*compiler, "-shared", "-pthread", *objects, "-o", str(made)]])
        digest = _digest(made)
        made.replace(path)
    write_whole(path.with_suffix(".sha256"), digest)


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    """Run a compiler several times side by side; the first that fails says why."""
    running = [subprocess.Popen(words, stderr=subprocess.PIPE) for words in commands]
    said = [process.communicate()[1].decode(errors="replace") for process in running]
    for process, (compiler, *_), errors in zip(running, commands, said, strict=True):
        if process.returncode:
            why = next((line for line in errors.splitlines() if "error" in line), "no word")
            raise Unavailable(f"{compiler} cannot build the kernels: {why.strip()[:300]}")


def _is_whole(path: Path) -> bool:
    """True if the file is what was built: a part of it would end the process that loads it."""
    try:
        return path.with_suffix(".sha256").read_text(encoding="ascii") == _digest(path)
    except (OSError, UnicodeDecodeError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
