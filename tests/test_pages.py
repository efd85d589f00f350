"""The documentation hangs together: every page is found, every link leads somewhere."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:  # comes with pytest there
    import tomli as tomllib

from ppdbench.cli.main import run
from ppdbench.methods import METHODS, Proposer
from ppdbench.training.plans import TrainingPlan
from tests.conftest import ROOT
from tests.pages import DOCS, LINKED, README, blocks, links, tokens


def anchors(page: Path) -> set[str]:
    """The names that code hosts give to a page's headings."""
    seen: Counter[str] = Counter()
    found = set()
    for before, token in zip(tokens(page), tokens(page)[1:], strict=False):
        if before.type == "heading_open":
            text = "".join(child.content for child in token.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert ROOT in target.parents, f"{link} leads out of the project"
        if anchor:
            assert anchor in anchors(target), link


def test_broken_anchors_would_be_found() -> None:
    assert "how-fast-beside-what" in anchors(DOCS / "measuring.md")
    assert "how-fast" not in anchors(DOCS / "measuring.md")


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 200


def test_every_page_is_in_the_index() -> None:
    named = [link for link in links(DOCS / "index.md") if "/" not in link]
    assert sorted(named) == sorted(p.name for p in DOCS.glob("*.md") if p.name != "index.md")


@pytest.fixture
def methods(capsys: pytest.CaptureFixture[str]) -> dict[str, set[str]]:
    """The options of each method of ours, as `ppdbench` lists them."""
    assert run(["list", "methods", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    own = (method for method in listed if ":" not in method["name"])
    return {method["name"]: {option["name"] for option in method["options"]} for method in own}


@pytest.mark.parametrize("page", [README, DOCS / "methods.md"], ids=lambda page: page.name)
def test_every_method_has_a_row(page: Path, methods: dict[str, set[str]]) -> None:
    rows = re.findall(r"^\| \[?`([a-z-]+)`", page.read_text("utf-8"), flags=re.MULTILINE)
    assert sorted(set(rows)) == sorted(methods)


def test_the_options_named_for_a_method_are_all_that_it_has(methods: dict[str, set[str]]) -> None:
    page = (DOCS / "methods.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|[^|]*\|([^|]*)\|$", page, flags=re.MULTILINE)
    assert len(rows) == len(methods)
    for name, cell in rows:
        assert set(re.findall(r"`([a-z_]+)`", cell)) == methods[name], name


def test_the_method_that_is_shown_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both files run as they stand; the method is taken out again, for other tests."""
    shown = blocks(DOCS / "extending.md", "python")[:2]  # the third is a training, shown in part
    files = zip(("repeating", "proof"), shown, strict=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(METHODS)
    try:
        for name, content in files:
            (tmp_path / f"{name}.py").write_text(content, "utf-8")
            module = importlib.import_module(name)
        words = ["decode", "--method", "repeat-last:times=2", "--task", "xsum", "--limit", "1"]
        assert run([*words, "--max-new-tokens", "6"]) == 0
    finally:
        for name in set(METHODS) - before:
            METHODS._items.pop(name)
    assert "1 identical" in capsys.readouterr().out
    assert module.TestRepeatLast


def test_the_packages_stand_in_the_order_of_the_contract() -> None:
    """Those that may not import each other share a row."""
    page = (DOCS / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, flags=re.MULTILINE)
    listed = [sorted(re.findall(r"`(\w+)`", row)) for row in rows]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (layers,) = (c["layers"] for c in contracts["contracts"] if c["id"] == "layers")
    assert listed == [sorted(layer.split(" | ")) for layer in layers]


def test_a_proposer_has_the_parts_that_are_named() -> None:
    page = (DOCS / "extending.md").read_text("utf-8")
    proposers, plans = page.split("| part of a plan |")
    for text, owner, some in (
        (proposers, Proposer, {"rows", "start", "learn"}),
        (plans, TrainingPlan, {"objective", "settled", "phases"}),
    ):
        rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, flags=re.MULTILINE)
        named = {part for row in rows for part in re.findall(r"`(\w+)`", row)}
        assert named >= some
        assert all(hasattr(owner, part) for part in named)
