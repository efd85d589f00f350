"""A comparison as JUnit XML: one test case per check, so that CI systems list them as tests."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from ppdbench.check.comparison import Comparison
from ppdbench.check.judge import Check
from ppdbench.files.clean import clean


def to_junit(comparison: Comparison) -> str:
    """A document with one suite; an example that did not run is a test case with an error."""
    n_tests = len(comparison.checks) + len(comparison.unfinished)
    counts: dict[str, str | int] = {
        "name": f"ppdbench check {comparison.kind}",
        "tests": n_tests,
        "failures": len(comparison.failed),
        "errors": len(comparison.unfinished),
        "skipped": 0,
        "time": 0,
    }
    root = _element("testsuites", **{**counts, "name": "ppdbench"})
    suite = _element("testsuite", **counts)
    root.append(suite)
    for check in comparison.checks:
        suite.append(_case(check))
    for number, text in enumerate(comparison.unfinished, 1):
        case = _element("testcase", classname="ppdbench.examples", name=f"not run {number}", time=0)
        case.append(_element("error", text, type="failed example", message=text))
        suite.append(case)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, "unicode") + "\n"


def _case(check: Check) -> Xml.Element:
    name = f"{check.subject} {check.metric}"
    # A dot would open a package in the reader's tree.
    task = check.task.replace(".", "_")
    case = _element("testcase", classname=f"ppdbench.{task}", name=name, time=0)
    if check.failed:
        case.append(_element("failure", check.sentence, type=check.metric, message=check.sentence))
    return case


def _element(tag: str, text: str | None = None, /, **attributes: str | int) -> Xml.Element:
    made = Xml.Element(tag, {name: clean(str(value), "xml") for name, value in attributes.items()})
    made.text = None if text is None else clean(text, "xml")
    return made
