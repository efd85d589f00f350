"""Hostile text: each kind of place gets it so that nothing in it can act there."""

from __future__ import annotations

import csv
import html
import io
import json
import unicodedata
from html.parser import HTMLParser
from typing import get_args
from xml.etree import ElementTree as Xml

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pylatexenc.latex2text import LatexNodes2Text
from pylatexenc.latexwalker import LatexEnvironmentNode, LatexWalker

from ppdbench.cli import common
from ppdbench.files.clean import LONGEST, OutputKind, clean, cleaned, shortened_text
from ppdbench.report import export
from ppdbench.report.console import Terminal
from ppdbench.report.html import h
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets

KINDS: tuple[OutputKind, ...] = get_args(OutputKind)
UNSEEN = (
    "\x00\x07\x1b\x7f\x85\x9b\xad\u061c\u200b\u200e\u2028\u202e\u2066\ufeff\ufffe\ud800\U000e0041"
)
HOSTILE = (
    f"a{UNSEEN}\x1b]0;title\x07\x1b[2J\r::error::b##[error]c <script>alert(1)</script> "
    "<img src=x onerror=1> [l](javascript:1) `c` *d* __e__ ~~f~~ | g & &lt; \\end{tabular} $x$ # %"
)
FORMULAS = ("=HYPERLINK(1)", "+1+cmd", "-2+3", "@SUM(1)", "\t=1", " =1", "＝1")
BLOCKS = ("# h", "- item", "1. item", "> quote", "---", "===", "    code", "~~~", "```")
STARTS = (*FORMULAS, *BLOCKS, "::error::x", "[x]", "*x")
TEXTS = (HOSTILE, *STARTS, "", "a\nb", "plain_name 0.5")


def sheet(*cells: str) -> Sheet:
    return Sheet(
        HOSTILE, (HOSTILE, "n"), tuple((cell, 0.5) for cell in cells), (HOSTILE,), lead=(HOSTILE,)
    )


def unseen(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [HOSTILE, *UNSEEN, UNSEEN])
def test_nothing_unseen_leaves(kind: OutputKind, text: str) -> None:
    assert not unseen(clean(text, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_numbers_stay_as_they_are(kind: OutputKind) -> None:
    for text in ("gsm8k", "wmt_en_fr", "0.5", "1.23x", "layerskip", "-0.5", "日本語 é 🙂"):
        if kind != "file name" or (text.isascii() and text[0] != "-"):
            want = text.replace("_", r"\_") if kind == "latex" else text
            assert clean(text, kind) == want


@pytest.mark.parametrize("kind", LONGEST)
def test_long_texts_lose_their_middle_and_say_so(kind: OutputKind) -> None:
    made = clean("a" * 1_000_000, kind)
    assert len(made) < LONGEST[kind] + 60
    assert "characters" in made
    assert shortened_text("abc", 3) == "abc"


def test_what_is_not_seen_is_written_as_python_writes_it() -> None:
    assert clean("a\x1b[0m\u202eb\U000e0041\ud800", "terminal") == (
        r"a\x1b[0m\u202eb\U000e0041\ud800"
    )


@pytest.mark.parametrize("text", ["::error::x", "a ##[error]x", "a:::b"])
def test_no_line_is_a_command_to_a_runner(text: str) -> None:
    for kind in ("terminal", "line", "csv", "markdown", "latex"):
        made = clean(text, kind)
        assert "::" not in made
        assert "##[" not in made


def test_json_keeps_every_character() -> None:
    made = export.json_text({HOSTILE: [HOSTILE]})
    assert not unseen(made)
    assert "##[" not in made
    assert json.loads(made) == {HOSTILE: [HOSTILE]}


def test_whole_values_are_cleaned_with_their_keys() -> None:
    assert cleaned({"\x1b": ["\x1b", 1, None, ("\x07",)]}, "script") == {
        r"\x1b": [r"\x1b", 1, None, [r"\x07"]]
    }


def test_csv_holds_no_formula() -> None:
    made = export.to_csv([sheet(*TEXTS), sheet("x")])
    assert not unseen(made)
    head, *rows = csv.reader(io.StringIO(made), strict=True)
    told = clean(HOSTILE, "csv")
    assert head == ["table", told, "n"]
    for (title, cell, number), text in zip(rows, (*TEXTS, "x"), strict=True):
        assert (title, number) == (told, "0.5")
        assert not cell.lstrip().startswith(tuple("=+@＝")), text
        assert cell.removeprefix("'") == clean(text, "terminal")


def test_numbers_in_csv_are_numbers() -> None:
    for text in ("-1", "+2.5", "-0.5%", "1e-3", "-1e5", "-", "--"):
        assert clean(text, "csv") == text


def markdown_tokens(text: str) -> list[Token]:
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [inner for token in tokens for inner in (token, *(token.children or ()))]


def test_markdown_is_one_table_of_plain_text() -> None:
    made = export.to_markdown([sheet(*TEXTS)])
    assert not unseen(made)
    tokens = markdown_tokens(made)
    kinds = {token.type.removesuffix("_open").removesuffix("_close") for token in tokens}
    parts = {"table", "thead", "tbody", "tr", "th", "td"}
    assert kinds == {*parts, "heading", "paragraph", "inline", "text"}
    inlines = [token for token in tokens if token.type == "inline"]
    told = ["".join(part.content for part in token.children or ()) for token in inlines]
    seen = " ".join(clean(HOSTILE, "line").split())
    title, lead, head, _, *cells, note = [" ".join(text.split()) for text in told]
    assert {title, lead, head, note} == {seen}
    assert cells[1::2] == ["0.5000"] * len(TEXTS)
    assert cells[::2] == [" ".join(clean(text, "line").split()) for text in TEXTS]


def latex_nodes(text: str) -> list[LatexEnvironmentNode]:
    nodes, _, _ = LatexWalker(text, tolerant_parsing=False).get_latex_nodes()
    return [node for node in nodes if isinstance(node, LatexEnvironmentNode)]


def test_latex_is_one_table_with_its_notes_below() -> None:
    made = export.to_latex([sheet(*TEXTS)])
    assert not unseen(made)
    (table,) = latex_nodes(made)
    (tabular,) = [n for n in table.nodelist if isinstance(n, LatexEnvironmentNode)]
    assert (table.environmentname, tabular.environmentname) == ("table", "tabular")
    rows = made.split("\\midrule\n")[1].split("\n\\bottomrule")[0].split(" \\\\\n")
    assert len(rows) == len(TEXTS)
    reader = LatexNodes2Text()
    for row, text in zip(rows, TEXTS, strict=True):
        cell = reader.latex_to_text(row.split(" & 0.5000")[0])
        assert "".join(cell.split()) == "".join(clean(text, "line").split())
    after = made.split("\\end{tabular}")[1]
    assert after.startswith("\n\n\\medskip\n{\\footnotesize ")
    assert after.endswith("\\par}\n\\end{table}\n")


@pytest.mark.parametrize("text", ["[2cm]", "*", "[a] b"])
def test_a_latex_row_does_not_begin_with_an_option_of_the_row_before(text: str) -> None:
    made = export.to_latex([Sheet("t", ("x",), (("a",), (text,)))])
    line = made.splitlines()[made.splitlines().index("a \\\\") + 1]
    assert not line.startswith(("[", "*"))


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("text", [*TEXTS, '" onload="x', "'><script>"])
def test_html_is_text_and_attributes_of_our_elements(text: str) -> None:
    read = Elements(str(h("p", text, title=text)))
    ((tag, attributes),) = read.tags
    assert (tag, list(attributes)) == ("p", ["title"])
    assert attributes["title"] == "".join(read.texts) == html.unescape(clean(text, "html"))


@pytest.mark.parametrize("text", TEXTS)
def test_xml_takes_any_text(text: str) -> None:
    made = Xml.Element("a", {"b": clean(text, "xml")})
    read = Xml.fromstring(Xml.tostring(made, "unicode"))
    assert read.attrib["b"].replace("\n", "") == clean(text, "xml").replace("\n", "")


@pytest.mark.parametrize("kind", ["github", "github title"])
@pytest.mark.parametrize("text", TEXTS)
def test_an_annotation_is_one_line(kind: OutputKind, text: str) -> None:
    made = clean(text, kind)
    assert "\n" not in made
    assert kind == "github" or not {":", ","} & set(made)


@pytest.mark.parametrize("text", ["../../etc/passwd", "/etc", "a/b", "..", ".", "", "-rf", *TEXTS])
def test_a_file_name_stays_in_its_folder(text: str) -> None:
    made = clean(text, "file name")
    assert made
    assert not {"/", "\\", "\x00", " "} & set(made)
    assert not made.startswith((".", "-"))


def test_a_terminal_draws_only_what_is_seen() -> None:
    out = io.StringIO()
    console = Terminal(file=out, width=200, force_terminal=True)
    console.print(HOSTILE, markup=False, highlight=False)
    assert not unseen(out.getvalue())
    console.print("[bold]a[/bold]")
    assert "\x1b[1m" in out.getvalue()  # rich's own


def test_tables_on_a_terminal_keep_their_shape() -> None:
    out = io.StringIO()
    print_sheets([sheet(*TEXTS)], Terminal(file=out, width=300))
    assert not unseen(out.getvalue())
    assert max(map(len, out.getvalue().splitlines())) <= 3000


def test_notices_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    common.notice(f"{HOSTILE}\nforged")
    common.say(HOSTILE)
    out, err = capsys.readouterr()
    assert out.count("\n") == err.count("\n") == 1
    assert not unseen(out + err)
