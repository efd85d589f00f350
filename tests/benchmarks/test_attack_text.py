"""The scanners of the attack find what they are there to find."""

from __future__ import annotations

import pytest

from benchmarks.attack import scan, text

PAGE = '<p>{}</p><script>1</script><script id="examples-data">{}</script>'


@pytest.mark.parametrize("form", scan.BY_FORM)
@pytest.mark.parametrize("harm", ["\x1b[2J", "\x9b", "\u202e", "\u200b", "\ud800", "##[error]"])
def test_raw_text_is_found_in_every_form(form: str, harm: str) -> None:
    sound = '"a"' if form == "json" else "a"
    assert scan.BY_FORM[form](sound) is None
    assert scan.BY_FORM[form](sound.replace("a", f"a{harm}")) is not None


@pytest.mark.parametrize(
    ("look", "sound", "harmful"),
    [
        (scan.of_lines, "a::b", "x\n::error::y"),
        (scan.of_csv, "a,-1,'=1\n", "a,=1\n"),
        (scan.of_markdown, "| a |\n| --- |\n| b |", "| a |\n| --- |\n| <b>x</b> |"),
        (scan.of_markdown, "\\[l](x)", "[l](x)"),
        (scan.of_latex, "\\begin{table}\\$\\end{table}", "\\begin{table}\\end{tabular}"),
        (scan.of_json, '{"a": "\\u001b"}', "{"),
        (scan.of_xml, "<a>&lt;</a>", "<a><</a>"),
        (scan.of_xml, "<a>&lt;script/&gt;</a>", "<a><script/></a>"),
        (scan.of_annotations, "::error title=a::b", "::error title=a::b\n::warning::c"),
        (scan.of_html, PAGE.format("&lt;img&gt;", "[]"), PAGE.format("<img>", "[]")),
        (scan.of_html, PAGE.format("a", '["a"]'), PAGE.format("a", '["\\u202e"]')),
        (scan.of_html, PAGE.format("a", "[]"), PAGE.format("a", "[]") + "<script></script>"),
        (scan.of_html, PAGE.format("a", "[]"), PAGE.format("<b onclick=1>a</b>", "[]")),
    ],
)
def test_what_acts_is_told_from_what_does_not(look: text.Look, sound: str, harmful: str) -> None:
    assert look(sound) is None
    assert look(harmful) is not None


def test_the_short_form_is_a_part_of_the_long_one() -> None:
    every, some = [[one.name for one in text.attempts(short)] for short in (False, True)]
    assert len(every) == len(set(every)) >= 60
    assert set(some) <= set(every)
    assert 12 <= len(some) <= 20
