"""The runs behind a showcase as one file: what is kept of them beside the page.

A showcase takes hours, so that it is made over several sittings and on whatever machine is free;
and whoever doubts a number wants the samples that it comes from. The same runs make the same file,
bit by bit.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from pathlib import Path, PurePosixPath

from benchmarks.showcase.plan import RUNS
from ppdbench.errors import ConfigError
from ppdbench.files.whole import write_whole

ARCHIVE = "runs.tar.xz"
RECORDS = (".json", ".jsonl")


def pack(folder: Path) -> Path:
    """Write the runs of a showcase into one file beside them, and return where it lies."""
    files = sorted(path for path in (folder / RUNS).rglob("*") if _is_kept(path))
    if not files:
        raise ConfigError(f"{folder} holds no runs to pack; run the showcase first")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", format=tarfile.PAX_FORMAT) as archive:
        for path in files:
            content = path.read_bytes()
            about = tarfile.TarInfo(path.relative_to(folder).as_posix())
            about.size, about.mode = len(content), 0o644
            archive.addfile(about, io.BytesIO(content))
    write_whole(folder / ARCHIVE, packed.getvalue())
    return folder / ARCHIVE


def unpack(folder: Path) -> int:
    """Lay packed runs out again where none are, and return how many files they have."""
    if (folder / RUNS).exists():
        raise ConfigError(f"{folder / RUNS} is there already; remove it to unpack {ARCHIVE}")
    try:
        with tarfile.open(folder / ARCHIVE, mode="r:xz") as archive:
            found = {about.name: archive.extractfile(about) for about in archive if about.isfile()}
            contents = {name: file.read() for name, file in found.items() if file is not None}
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise ConfigError(f"cannot read {folder / ARCHIVE}: {error}") from error
    for name in contents:
        parts = PurePosixPath(name).parts
        if parts[:1] != (RUNS,) or ".." in parts:
            raise ConfigError(f"{folder / ARCHIVE} holds {name}, which is no file of a run")
    for name, content in contents.items():
        write_whole(folder / name, content)
    return len(contents)


def _is_kept(path: Path) -> bool:
    """True for records: not for weights of what was trained, nor what tells of work going on."""
    return path.is_file() and path.suffix in RECORDS and not path.name.startswith(".")
