"""The wheel carries all that the package needs, and says what it depends on."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.pages import LINKED, links

if sys.version_info >= (3, 11):
    import tomllib
else:  # comes with pytest there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
# What a wheel is made of; `results/` without anybody's runs.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "ppdbench", "tasks", "prompts")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return content


# Dependencies


def required(project: dict[str, Any]) -> list[str]:
    extras = project["project"]["optional-dependencies"].values()
    everything = [project["build-system"]["requires"], project["project"]["dependencies"], *extras]
    return [line for lines in everything for line in lines]


def name_of(requirement: str) -> str:
    """The normalised name: types-PyYAML and types_pyyaml are one."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", requirement)[0]).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    found = {}
    for line in lines:
        if line.strip() and not line.startswith("#"):
            match = re.fullmatch(
                r"([\w.-]+)==([\w.+!]+)( ; python_version [<>=]+ \"3\.\d+\")?", line
            )
            assert match, f"not an exact pin: {line}"
            assert name_of(match[1]) not in found, f"pinned twice: {line}"
            found[name_of(match[1])] = match[2]
    return found


def test_the_project_asks_for_ranges_and_never_for_one_version(project: dict[str, Any]) -> None:
    for line in required(project):
        assert "==" not in line, line
    for line in project["project"]["dependencies"]:
        assert ">=" in line, line


def test_everything_asked_for_has_an_exact_pin_inside_its_range(project: dict[str, Any]) -> None:
    from packaging.requirements import Requirement

    pinned = pins()
    for line in required(project):
        asked = Requirement(line)
        assert name_of(asked.name) in pinned, line
        assert asked.specifier.contains(pinned[name_of(asked.name)]), line


def test_torch_is_pinned_without_a_local_version() -> None:
    assert pins()["torch"] == "2.13.0"


def imported(file: Path) -> set[str]:
    """The top-level modules that a file names in its import statements."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_everything_imported_is_declared(project: dict[str, Any]) -> None:
    content = project["project"]
    extras = {  # what a module may use where it is installed
        "quantized.py": content["optional-dependencies"]["quantized"],
        "testing.py": ["pytest"],  # only those who run tests need what runs them
    }
    distributions = {"yaml": "pyyaml", "mpl_toolkits": "matplotlib"}
    own = sys.stdlib_module_names | {"ppdbench"}
    for file in (ROOT / "ppdbench").rglob("*.py"):
        lines = [*content["dependencies"], *extras.get(file.name, [])]
        declared = {name_of(line).replace("-", "_") for line in lines}
        for module in imported(file) - own:
            assert distributions.get(module, module) in declared, f"{file.name} imports {module}"


# The source distribution


def test_it_holds_every_page_and_all_that_pages_lead_to(project: dict[str, Any]) -> None:
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for page in LINKED:
        local = [link for link in links(page) if not link.startswith(("http", "#"))]
        for path in (page, *((page.parent / link.split("#")[0]).resolve() for link in local)):
            place = f"/{path.relative_to(ROOT)}"
            assert any(f"{place}/".startswith(f"{one}/") or fnmatch(place, one) for one in included)


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    skip = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=skip)
        else:
            shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "results" / "papers", source / "results" / "papers")
    command = ["build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    target = wheel.parent.parent / "installed"
    command = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", *command, str(wheel)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_the_wheel_holds_what_the_checkout_has(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    expected = {f"ppdbench/_files/tasks/{f.name}" for f in (ROOT / "tasks").iterdir()}
    expected |= {f"ppdbench/_files/prompts/{f.name}" for f in (ROOT / "prompts").iterdir()}
    papers = (ROOT / "results" / "papers").iterdir()
    expected |= {f"ppdbench/_files/papers/{f.name}" for f in papers}
    package = [f for f in (ROOT / "ppdbench").rglob("*") if f.is_file() and f.suffix != ".pyc"]
    expected |= {f.relative_to(ROOT).as_posix() for f in package}
    assert len(expected) > 100
    assert expected <= names
    assert "ppdbench/builtin/squad/validation.jsonl" in names
    assert "ppdbench/py.typed" in names
    assert not {name.split("/")[0] for name in names} & {"tests", "benchmarks", "results"}
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: <3.14,>=3.10" in text


# -S leaves out site-packages and with them the pointer to the checkout; what the package
# depends on is then put back by hand, behind the installed copy.
CLEAN = """
import json, runpy, sys
target, libraries, *words = sys.argv[1:]
sys.path[:0] = [target, *json.loads(libraries)]
sys.argv = ["ppdbench", *words]
code = 0
try:
    runpy.run_module("ppdbench", run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
print("FILES" + json.dumps([file for file in files if file]), file=sys.stderr)
sys.exit(code)
"""


def in_clean_environment(
    installed: Path, folder: Path, *words: str
) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    """Run the installed copy far from the checkout; what it printed, the files it imported."""
    libraries = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    start = [sys.executable, "-I", "-S", "-c", CLEAN, str(installed), json.dumps(libraries)]
    keep = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")
    done = subprocess.run(
        [*start, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={k: os.environ[k] for k in keep if k in os.environ} | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    _, _, listed = done.stderr.rpartition("FILES")
    return done, [Path(file) for file in json.loads(listed)]


def _is_package(folder: Path) -> bool:
    """Say if this is a copy of the package; a checkout may have its name, too."""
    return folder.name == "ppdbench" and (folder / "__init__.py").is_file()


def assert_from(files: list[Path], installed: Path) -> None:
    libraries = Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))
    ours = [file for file in files if any(map(_is_package, file.parents))]
    assert len(ours) > 5
    assert all(file.is_relative_to(installed) for file in ours)
    for file in files:
        if file.is_relative_to(ROOT):
            assert any(file.is_relative_to(library) for library in libraries), file


@pytest.mark.slow
def test_the_installed_copy_lists_its_tasks_without_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    done, files = in_clean_environment(installed, tmp_path, "list", "tasks", "--format", "json")
    assert_from(files, installed)
    names = [entry["name"] for entry in json.loads(done.stdout)]
    assert names == sorted(path.stem for path in (ROOT / "tasks").glob("*.yaml"))
    done, _ = in_clean_environment(installed, tmp_path, "list", "tables", "--format", "json")
    assert len(json.loads(done.stdout)) == len(list((ROOT / "results/papers").glob("*.yaml")))


@pytest.mark.slow
def test_the_installed_copy_probes_its_builtin_examples_without_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    model = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
    words = ["--model", model, "--data", "builtin", "--limit", "2", "--max-new-tokens", "8"]
    done, files = in_clean_environment(
        *(installed, tmp_path, "probe", *words, "--task", "squad", "--task", "gsm8k"),
        *("--plot", "curves.png", "--format", "json"),
    )
    assert_from(files, installed)
    result = json.loads(done.stdout)
    assert (result["n_examples"], result["n_tokens"]) == (4, 32)
    assert (tmp_path / "curves.png").is_file()
    assert (tmp_path / result["run"] / "samples.jsonl").is_file()
    header = json.loads((tmp_path / result["run"] / "run.json").read_text("utf-8"))
    assert str(ROOT) not in json.dumps(header["config"])


@pytest.mark.slow
def test_the_wheel_brings_a_command(installed: Path) -> None:
    script = installed / "bin" / "ppdbench"
    assert "ppdbench.__main__" in script.read_text("utf-8")
    assert os.access(script, os.X_OK)


# What the checkout needs around it


def planned(target: str, *variables: str) -> str:
    """What make would do for this target."""
    words = ["make", "--dry-run", "--always-make", target, *variables]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("target", ["tables", "reference", "reference-twin", "addons"])
def test_what_trains_reads_a_public_text_unless_it_is_given_one(
    target: str, tmp_path: Path
) -> None:
    elsewhere = f"TABLES={tmp_path}"  # nothing is stored there
    read = set(re.findall(r"--(?:text|held-out) (\S+)", planned(target, elsewhere)))
    public = {text for text in read if text.startswith("hub:Salesforce/wikitext:")}
    assert public and all("results/" in text for text in read - public)
    given = planned(target, elsewhere, "TEXT=mine.txt", "HELD_OUT=unseen.txt")
    assert "hub:" not in given and "--text mine.txt" in given


def test_tables_whose_training_is_stored_stay_on_its_text() -> None:
    assert "--offline --text corpus " in planned("tables")
