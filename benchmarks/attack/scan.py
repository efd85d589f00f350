"""A scan of what a program wrote, for anything that could act where it is shown or read.

Each function returns what was found, or None. They use readers of others (a CSV, Markdown, LaTeX,
HTML and XML parser) and none of the package's own rules.
"""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from xml.etree import ElementTree as Xml

from markdown_it import MarkdownIt
from pylatexenc.latexwalker import LatexWalker, LatexWalkerParseError

# Commands that GitHub's runner takes from lines of a log.
COMMAND = re.compile(r"^\s*::|##\[", re.MULTILINE)
FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")
# What our writers of Markdown write.
OWN = frozenset(
    {
        *("table", "thead", "tbody", "tr", "th", "td", "bullet_list", "list_item"),
        *("heading", "paragraph", "inline", "text", "softbreak"),
    }
)
NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?[%x]?|-*", re.IGNORECASE)


def unseen(text: str) -> str | None:
    """A character that is not seen but acts: controls, directions, joiners, halves of pairs."""
    for place, character in enumerate(text):
        if unicodedata.category(character) in ("Cc", "Cf", "Cs") and character not in "\n\t":
            return f"U+{ord(character):04X} after {text[max(0, place - 20) : place]!r}"
    return None


def of_lines(text: str) -> str | None:
    """Find what would act where a terminal shows it or a job logs it."""
    found = COMMAND.search(text)
    return unseen(text) or (f"a command: {text[found.start() :][:40]!r}" if found else None)


def of_csv(text: str) -> str | None:
    """Cells that a spreadsheet would compute."""
    for row in csv.reader(io.StringIO(text), strict=True):
        for cell in row:
            if FORMULA.match(cell) and not NUMBER.fullmatch(cell):
                return f"a formula: {cell[:40]!r}"
    return of_lines(text)


def of_markdown(text: str) -> str | None:
    """Markup that our writers do not write themselves."""
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    own = set(OWN)
    if "<details>" in text:  # of a job's page: what lies in it, and one word in bold
        text = re.sub(r"</?(details|summary)>", "\n\n", text)
        own.add("strong")
    for token in reader.parse(text):
        for part in (token, *(token.children or ())):
            if part.type.removesuffix("_open").removesuffix("_close") not in own:
                return f"{part.type}: {part.content[:40]!r}"
    return of_lines(text)


def of_latex(text: str) -> str | None:
    """Commands and environments other than a table's, or what is no LaTeX."""
    known = {"table", "tabular"}
    try:
        LatexWalker(text, tolerant_parsing=False).get_latex_nodes()
    except LatexWalkerParseError as error:
        return f"no LaTeX: {error}"
    begun = re.findall(r"(?<!\\)\\(?:begin|end)\{(\w+)\}", text)
    other = set(begun) - known
    return f"environments {other}" if other else of_lines(text)


def of_json(text: str) -> str | None:
    """Find what is no JSON, or would act on a terminal."""
    try:
        json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    return of_lines(text)


def of_xml(text: str) -> str | None:
    """Find what is no XML, and what would act in its texts."""
    try:
        root = Xml.fromstring(text)
    except Xml.ParseError as error:
        return f"no XML: {error}"
    for element in root.iter():
        for value in (element.text or "", element.tail or "", *element.attrib.values()):
            if found := unseen(value):
                return found
        if element.tag.rpartition("}")[2] in ("script", "img", "foreignObject"):
            return f"an element {element.tag}"
    return unseen(text)


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.scripts = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in ("img", "iframe", "object", "embed", "base", "form", "link"):
            self.found.append(f"an element {tag}")
        for name, value in attrs:
            acts = name.startswith("on") or name in ("src", "srcdoc", "style", "formaction")
            if acts or (value or "").lower().lstrip().startswith("javascript:"):
                self.found.append(f"an attribute {name} of {tag}")
            self.found += [f"{hidden} in {name}" for hidden in _hidden(value or "")]

    def handle_data(self, data: str) -> None:
        self.found += _hidden(data)


def _hidden(text: str) -> Iterator[str]:
    if found := unseen(text):
        yield found


def of_html(text: str) -> str | None:
    """Elements, attributes and characters that only text from outside can have brought."""
    page = _Page(text)
    if page.scripts != 2:  # its own, and the examples as data
        return f"{page.scripts} script elements"
    data = re.search(r'id="examples-data">(.*?)</script>', text, re.DOTALL)
    shown = _strings(json.loads(data[1])) if data else iter(())
    found = page.found or [hidden for value in shown for hidden in _hidden(value)]
    return found[0] if found else unseen(text)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from (str(name), *_strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def of_annotations(text: str) -> str | None:
    """Lines of a log in which only our own commands stand."""
    own = re.compile(r"^::(error|warning) title=[^:,\n]*::[^\n]*$")
    for line in text.split("\n"):
        if COMMAND.search(line) and (not own.match(line) or "##[" in line):
            return f"a command: {line[:60]!r}"
    return unseen(text)


BY_FORM: dict[str, Callable[[str], str | None]] = {
    "table": of_lines,
    "csv": of_csv,
    "markdown": of_markdown,
    "latex": of_latex,
    "json": of_json,
}
