"""What is written over an older file is there whole, or the older one still is."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ppdbench.check.comparison import Comparison
from ppdbench.check.junit import to_junit
from ppdbench.errors import PpdbenchError
from ppdbench.files.json_file import write_versioned
from ppdbench.files.whole import replacing, write_whole
from ppdbench.methods.draft_verify.skip_file import SkipSet, save_skips
from ppdbench.report import export
from ppdbench.report.pictures.drawing import Drawing
from ppdbench.report.pictures.files import save_all, save_picture
from ppdbench.report.sheet import Sheet
from ppdbench.trees.tree import Tree

DRAWING = Drawing("name", "title", "words", 20.0, ())
OLD = b"what was there before"
SKIPS = b'{"old": {"attention": [1], "mlp": []}}'
SHEET = Sheet("t" * 99, ("x",), (("y" * 99,),))
COMPARISON = Comparison("run", "baseline", "bench", (), (), ("not run",))


@contextmanager
def full_disk(bytes_left: int = 20) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes: writing fails half way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _drawings(path: Path) -> None:
    save_all([replace(DRAWING, name=path.stem)], path.parent)


WRITERS: dict[str, Callable[[Path], None]] = {
    **{f"a.{end}": lambda path: save_picture(DRAWING, path) for end in ("png", "svg", "pdf")},
    **{
        f"table.{end}": lambda path: export.write(path, [SHEET], {"x": "y" * 99})
        for end in ("csv", "md", "tex", "json")
    },
    "page.html": lambda path: write_whole(path, "<html>" * 9),
    "junit.xml": lambda path: write_whole(path, to_junit(COMPARISON)),
    "baseline.json": lambda path: write_versioned(path, "form", 1, {"x": "y" * 99}),
    "tree.json": lambda path: Tree(((0,), (1,))).save(path),
    "skips.json": lambda path: save_skips(path, "model", SkipSet((1,), (2,))),
    "drawing.svg": _drawings,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_what_was_there(name: str, tmp_path: Path) -> None:
    path, write = tmp_path / name, WRITERS[name]
    path.write_bytes(OLD if name != "skips.json" else SKIPS)
    before = path.read_bytes()
    with full_disk(), pytest.raises(PpdbenchError, match="cannot write"):
        write(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [name]
    write(path)
    assert path.read_bytes() != before


def test_an_interrupt_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(OLD)
    with pytest.raises(KeyboardInterrupt), replacing(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_bytes() == OLD
    assert not partial.exists()


def test_a_killed_process_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(OLD)
    if (child := os.fork()) == 0:
        with replacing(path) as partial:
            partial.write_text("half")
            os._exit(9)
    os.waitpid(child, 0)
    assert path.read_bytes() == OLD
    write_whole(path, "whole")  # over what the killed one left
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_links_and_permissions_stay_as_they_were(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(OLD)
    real.chmod(0o640)
    link.symlink_to(real)
    write_whole(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_what_is_no_file_is_written_as_it_stands() -> None:
    write_whole(Path("/dev/null"), "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
