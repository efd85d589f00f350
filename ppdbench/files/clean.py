"""Cleaning of all that leaves the program, by the kind of place it goes to.

Names of tasks, models and examples, texts of models and tokenizers, stored runs and messages of
errors come from anywhere. On a terminal they could move the cursor or turn text round, in a
spreadsheet be a formula, in a page or a job's log be markup and commands. Whoever writes text
for people or programs calls `clean` with the kind of place; nobody has rules of their own.

Characters that cannot be seen are written as in a Python string (`\\x1b`, `\\u202e`), so that
they are seen. Only JSON keeps them, as escapes of its own: a program that reads it back gets the
very text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any, Literal

OutputKind = Literal[
    "terminal",  # lines for people; newlines and tabs stay
    "line",  # one line for people: a notice or an error
    "csv",  # a cell
    "markdown",  # a cell, a title or a paragraph
    "latex",  # a cell, a title or a paragraph
    "html",  # the text of an element
    "attribute",  # of an element
    "script",  # a text that a page's script shows as text
    "xml",  # text or an attribute, before it is escaped
    "json",  # a whole document
    "github",  # the message of a workflow command
    "github title",
    "picture",  # a label
    "file name",
]

# Control characters but newline and tab, halves of surrogate pairs, what is no character, and all
# that has no shape of its own: bidirectional controls, joiners, fillers, tags, selectors.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufdd0-\ufdef\ufeff\uffa0"
    "\ufff0-\ufffb\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

SUBSTITUTE = "▯"  # in pictures, where escapes would take too much room

# The most characters of one text; what is longer loses its middle, and says so. JSON loses nothing,
# nor do attributes, which hold whole files and drawings.
LONGEST: dict[OutputKind, int] = {
    "terminal": 20_000,
    "line": 4_000,
    "csv": 30_000,  # spreadsheets take 32,767
    "markdown": 4_000,
    "latex": 4_000,
    "html": 100_000,
    "script": 100_000,
    "xml": 20_000,
    "github": 4_000,
    "github title": 200,
    "picture": 400,
    "file name": 100,
}


def clean(text: str, kind: OutputKind) -> str:
    """The text as it may be written to a place of this kind."""
    rule = _RULES[kind]
    if kind == "json":
        return rule(text)
    most = LONGEST.get(kind)
    text = text if most is None else shortened_text(text, most)
    return rule(_UNSEEN.sub(SUBSTITUTE if kind == "picture" else _seen, text))


def cleaned(value: Any, kind: OutputKind) -> Any:
    """The same with all texts that lists and objects hold, their keys included."""
    if isinstance(value, str):
        return clean(value, kind)
    if isinstance(value, list | tuple):
        return [cleaned(item, kind) for item in value]
    if isinstance(value, dict):
        return {cleaned(name, kind): cleaned(item, kind) for name, item in value.items()}
    return value


def shortened_text(text: str, most: int) -> str:
    """A text without its middle, if it is longer than that."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} […{len(text) - 2 * half} characters…] {text[-half:]}"


def _seen(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _unchanged(text: str) -> str:
    return text


# Lines that begin with `::`, and `##[` anywhere, are commands to GitHub's runner, which reads all
# that a job prints. A table may fold a cell at any place.
_COMMAND = re.compile(r"(?<=:):|(?<=##)\[")


def _terminal(text: str) -> str:
    return _COMMAND.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _line(text: str) -> str:
    return _terminal(" ".join(text.split()))


# What spreadsheets take for the beginning of a formula, at the start of a cell.
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20\t]")
_HARMLESS = re.compile(r"[+-]?\d[\d.,]*(e[+-]?\d+)?[%x]?|-+", re.ASCII | re.IGNORECASE)


def _csv(text: str) -> str:
    is_formula = _FORMULA.match(text) and not _HARMLESS.fullmatch(text)
    return _terminal(f"'{text}" if is_formula else text)


def _one_line(text: str) -> str:
    """Join what is parted at a hyphen."""
    return " ".join(text.replace("-\n", "-").split("\n"))


# An underscore within a word and a lone dollar are no markup, and names are full of the first.
_MARKDOWN = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_")
_AT_START = re.compile(r"^(\s*)([#+\-=]|\d+(?=[.)](?:\s|$)))")


def _markdown(text: str) -> str:
    text = _MARKDOWN.sub(lambda match: f"\\{match[0]}", _terminal(_one_line(text)).strip())
    text = re.sub(r"&(?=#|[A-Za-z])", "&amp;", text).replace("<", "&lt;").replace(">", "&gt;")
    if text.count("$") > 1:
        text = text.replace("$", "\\$")
    return _AT_START.sub(_held, text)


def _held(match: re.Match[str]) -> str:
    """Escape what would begin a heading or a list, except where it is all there is, or a number."""
    rest = match.string[match.end() :]
    is_text = not rest or (rest[0].isdigit() and match[2] in "+-")
    if match[2].isdigit():
        return f"{match[1]}{match[2]}\\"
    return match[0] if is_text else f"{match[1]}\\{match[2]}"


_LATEX = str.maketrans(
    {
        **{special: f"\\{special}" for special in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        **{sign: f"${sign}$" for sign in "<>|"},
        "[": "{[}",  # after the end of a row it would be an option, and a star would be one too
        "*": "{*}",
        "`": "{`}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "≈": r"$\approx$",
        "→": r"$\rightarrow$",
        "…": r"\dots{}",
        "\t": " ",
    }
)


def _latex(text: str) -> str:
    # Hyphens in a row would be set as a dash, so that an option would lose one of its two.
    return re.sub("([-'])(?=\\1)", r"\1{}", _terminal(_one_line(text)).translate(_LATEX))


def _html(text: str) -> str:
    return html.escape(text, quote=False)


def _json(text: str) -> str:
    """Escapes for what is not seen or is a command; such characters stand only within strings."""
    return _UNSEEN.sub(_json_escape, text).replace("##[", "##\\u005b")


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _github(text: str) -> str:
    text = text.replace("%", "%25").replace("\n", "%0A")
    return text.replace("##[", "##\\x5b")


def _github_title(text: str) -> str:
    return _github(text).replace(":", "%3A").replace(",", "%2C")


def _file_name(text: str) -> str:
    """Drop all that leads to another folder or means something to a shell."""
    return re.sub(r"[^A-Za-z0-9._=,:+-]+", "_", text).lstrip(".-") or "_"


_RULES: dict[OutputKind, Callable[[str], str]] = {
    "terminal": _terminal,
    "line": _line,
    "csv": _csv,
    "markdown": _markdown,
    "latex": _latex,
    "html": _html,
    "attribute": html.escape,
    "script": _unchanged,
    "xml": _unchanged,
    "json": _json,
    "github": _github,
    "github title": _github_title,
    "picture": _unchanged,
    "file name": _file_name,
}
