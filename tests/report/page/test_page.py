"""The page as a file: everything inside, nothing executable from outputs, the verdicts right."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ppdbench.methods import METHODS
from ppdbench.report.html import VOID, h
from ppdbench.report.page.document import page
from ppdbench.report.page.parts import with_code
from ppdbench.report.page.runs import read_runs
from tests import sweeps
from tests.report.page import made

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028&<!--"
SEEN = HOSTILE.replace("\u2028", r"\u2028")


class Reader(HTMLParser):
    """Elements in their order, checked for nesting, with the text of some."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def text_of(*folders: Path) -> str:
    return page(read_runs(list(folders))).text


def embedded(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="examples-data">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


@pytest.fixture
def full(tmp_path: Path) -> str:
    runs = made.bench(tmp_path / "bench"), made.probe(tmp_path / "probe")
    return text_of(*runs, made.pipelined(tmp_path / "pipelined"))


def test_the_page_holds_every_section_its_runs_have_something_for(full: str) -> None:
    found = [a["id"] for a in Reader(full).all("section")]
    assert found == [
        *("setting", "verdicts", "speed", "matches", "theory", "acceptance", "latency"),
        *("examples", "terms", "data"),
    ]


def test_a_probe_alone_has_no_section_of_speed(tmp_path: Path) -> None:
    found = [a["id"] for a in Reader(text_of(made.probe(tmp_path / "run"))).all("section")]
    assert found == ["setting", "matches", "theory", "examples", "terms", "data"]


def test_the_first_screen_says_whose_tokens_are_known_early(tmp_path: Path) -> None:
    late = {**made.probed()["ranks"], "2": [9, 9, 9, 9]}
    drawn = [made.probed(str(n), target="top-p", verdict=None, ranks=late) for n in range(3)]
    greedy = [made.probed(str(n)) for n in range(3)]
    header = made.header("probe", config__targets=[{"kind": "top-p"}, {"kind": "greedy"}])
    for samples, rate, words in (
        (drawn, "0%", "gsm8k, top-p target (run)"),
        ([*drawn, *greedy], "75%", "gsm8k (run)"),
    ):
        text = text_of(made.write(tmp_path / str(len(samples)) / "run", header, samples))
        tiles = text.partition('class="tiles"')[2].partition("</ul>")[0]
        assert f"<strong>{rate}</strong>" in tiles
        assert words in tiles


def test_pseudo_states_are_drawn_step_by_step_below_0_too(tmp_path: Path) -> None:
    text = text_of(made.similarity(tmp_path / "run"))
    assert [a["id"] for a in Reader(text).all("section")] == ["setting", "similarity", "data"]
    assert "step 1 from 0.30 to 0.85, step 2 from -0.30 to 0.50" in text
    assert "step 2 at 3: -0.300<" in text
    ticks = re.findall(r"<text[^>]*>(-?0?\.?\d*)</text>", text)
    assert {"-0.5", "0", "1"} <= set(ticks)


def test_the_first_lines_say_what_is_unfinished(tmp_path: Path) -> None:
    """Before the numbers that it may change."""
    data = {"gsm8k": {"metrics": [], "sha256": "aaaa", "examples": 7}}
    part, whole = made.bench(tmp_path / "part", data=data), made.bench(tmp_path / "whole")
    words = "Unfinished: 3 of 21 samples are missing; finish it with --resume."
    lead = re.compile('class="lead">([^<]*)<')
    found = [lead.search(text_of(*folders)) for folders in ([part], [whole], [part, whole])]
    alone, complete, both = (one.group(1) for one in found if one is not None)
    assert alone.endswith(f"gsm8k. {words}")
    assert "Unfinished" not in complete
    assert both.endswith(f"part: {words}")


def test_nothing_comes_from_outside(full: str) -> None:
    reader = Reader(full)
    addresses = [
        attributes[name]
        for tag, attributes in reader.elements
        if tag != "a"  # which a reader may follow, and nothing fetches by itself
        for name in ("src", "href", "action", "data", "srcset", "poster")
        if name in attributes
    ]
    assert all(str(address).startswith(("#", "data:")) for address in addresses)
    style = "".join(reader.texts["style"])
    assert "url(" not in style
    assert "@import" not in style
    assert not reader.all("link")


def test_the_only_links_that_lead_away_are_to_papers(full: str) -> None:
    links = [str(a["href"]) for a in Reader(full).all("a") if not str(a["href"]).startswith("#")]
    away = [link for link in links if not link.startswith("data:")]
    known = {work.link for name in METHODS for work in METHODS.get(name).papers}
    assert away
    assert set(away) <= known


@pytest.mark.parametrize(
    ("model", "title"),
    [
        ("/home/someone/models/SmolLM2-135M", "SmolLM2-135M"),
        ("./my-model/", "my-model"),
        ("checkpoints/deep/model", "model"),
        ("org/model", "org/model"),
        ("synthetic:llama-7b", "synthetic:llama-7b"),
    ],
)
def test_the_title_is_no_path(tmp_path: Path, model: str, title: str) -> None:
    folder = made.probe(tmp_path / "run")
    header = json.loads((folder / "run.json").read_text("utf-8"))
    header["model"]["name"] = model
    (folder / "run.json").write_text(json.dumps(header), "utf-8")
    reader = Reader(text_of(folder))
    assert reader.texts["h1"] == [title]
    assert reader.texts["title"][0] == f"{title} – ppdbench"


def test_the_words_of_the_tables_are_explained(full: str) -> None:
    _, _, terms = full.partition('id="terms"')
    for word in ("theorem", "equation 5", "busy", "identical", "per step"):
        assert f"<dt>{word}</dt>" in terms


def test_the_policy_forbids_fetches_and_names_the_only_script_and_style(full: str) -> None:
    reader = Reader(full)
    (policy,) = [m["content"] for m in reader.all("meta") if "http-equiv" in m]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for tag, (content,) in {
        "script": reader.texts["script"][-1:],
        "style": reader.texts["style"],
    }.items():
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_nothing_needs_what_the_policy_forbids(full: str) -> None:
    for tag, attributes in Reader(full).elements:
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    sample = made.decoded(
        HOSTILE, HOSTILE, text=HOSTILE, references=[HOSTILE], task=HOSTILE, baseline_again_ms=12.0
    )
    failed = made.decoded(
        HOSTILE, "2", verdict="failed", error=HOSTILE, output_ids=[], task=HOSTILE
    )
    head = made.header(
        "bench",
        methods=made.methods(HOSTILE),
        not_run={HOSTILE: HOSTILE},
        command=["ppdbench", HOSTILE],
        model__name=HOSTILE,
        data={HOSTILE: {"metrics": [], "sha256": "a"}},
    )
    text = text_of(made.write(tmp_path / "run", head, [sample, failed]))
    reader = Reader(text)
    assert not reader.all("img")
    assert len(reader.all("script")) == 2
    entry = embedded(text)[0]["examples"][1]
    assert (entry["id"], entry["reference"]) == (SEEN, SEEN)
    assert "\u2028" not in text.split('id="examples-data"')[1].split("</script>")[0]


def test_markup_of_our_own_is_escaped_in_attributes_too() -> None:
    assert str(h("p", "<&>", title='"<')) == '<p title="&quot;&lt;">&lt;&amp;&gt;</p>'


def test_ids_are_there_once_and_every_link_and_label_finds_its_own(full: str) -> None:
    elements = Reader(full).elements
    ids = [a["id"] for _, a in elements if "id" in a]
    assert len(ids) == len(set(ids))
    named = [
        a[name]
        for _, a in elements
        for name in ("aria-labelledby", "aria-describedby")
        if name in a
    ]
    links = [str(a["href"])[1:] for t, a in elements if t == "a" and str(a["href"]).startswith("#")]
    assert set(named) | set(links) <= set(ids)


def test_headings_descend_one_level_at_a_time(full: str) -> None:
    levels = [int(tag[1]) for tag, _ in Reader(full).elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_landmarks_language_and_a_way_past_the_contents_are_there(full: str) -> None:
    reader = Reader(full)
    for tag in ("header", "nav", "main", "footer"):
        assert len(reader.all(tag)) == 1, tag
    assert reader.all("html")[0]["lang"] == "en"
    assert reader.all("a")[0]["href"] == "#main"


def test_tables_have_captions_and_heads_with_scope(full: str) -> None:
    reader = Reader(full)
    assert len(reader.all("caption")) == len(reader.all("table")) > 3
    assert {a.get("scope") for a in reader.all("th")} == {"col", "row"}


def test_speedups_come_with_intervals_and_losses_are_shown(full: str) -> None:
    assert re.search(r"2\.0\d× \[2\.0\d, 2\.\d\d\]", full)
    assert re.search(r"0\.5\d× \[0\.5\d, 0\.5\d\]", full)
    assert "Slower: slow" in full


def test_a_loss_says_in_words_what_acceptance_it_would_take_and_what_it_has(
    full: str, tmp_path: Path
) -> None:
    found = re.search(r"<h4>Why some do not pay</h4><ul>(.*?)</ul>", full)
    assert found is not None
    assert re.fullmatch(r"<li>slow: a step takes as long as .* accepted; \d+% are\.</li>", found[1])
    gains = made.write(
        tmp_path / "gains",
        made.header("bench", methods=made.methods("swift")),
        [made.decoded("swift", str(n), 2.0) for n in range(5)],
    )
    assert "Why some do not pay" not in text_of(gains)


def test_tasks_that_no_speedup_can_be_told_of_are_named_and_have_no_empty_picture(
    tmp_path: Path,
) -> None:
    few = [made.decoded("swift", "1", 2.0, task="squad")]
    samples = [*(made.decoded("swift", str(n), 2.0) for n in range(1, 7)), *few]
    head = made.header("bench", methods=made.methods("swift"))
    text = text_of(made.write(tmp_path / "run", head, samples))
    titles = re.findall(r"<figcaption>([^<]*): speedup over greedy</figcaption>", text)
    assert titles == ["all tasks", "gsm8k"]
    assert "No speedup can be told of squad;" in text
    alone = text_of(made.write(tmp_path / "few", head, few))
    assert "squad: speedup over greedy" in alone
    assert "No speedup can be told of" not in alone


def test_what_transformers_takes_stands_open_beside_ours(tmp_path: Path) -> None:
    names = {"greedy": 1.0, "transformers:greedy": 0.5}
    samples = [made.decoded(name, str(n), f) for n in range(1, 7) for name, f in names.items()]
    text = text_of(
        made.write(tmp_path / "run", made.header("bench", methods=made.methods(*names)), samples)
    )
    before, _, after = text.partition("<caption>Beside transformers</caption>")
    assert after
    assert before.count("<details") == before.count("</details>")


def test_no_speedup_stands_beside_a_mismatch(tmp_path: Path) -> None:
    samples = [
        made.decoded("swift", "1", 2.0),
        made.decoded(
            "swift", "2", 2.0, verdict="mismatch", first_difference=1, baseline_ids=[5, 1]
        ),
    ]
    head = made.header("bench", methods=made.methods("swift"))
    text = text_of(made.write(tmp_path / "run", head, samples))
    assert "1 output differs from greedy" in text
    assert "1 mismatch: no speedup" in text
    assert "2.00×" not in text
    assert "2.00x" not in text


def test_failed_examples_are_listed_with_their_errors(tmp_path: Path) -> None:
    samples = [
        made.decoded("swift", "1", 2.0),
        made.decoded("swift", "2", verdict="failed", output_ids=[], error="ran out of luck"),
    ]
    head = made.header("bench", methods=made.methods("swift"), not_run={"broken": "no such file"})
    text = text_of(made.write(tmp_path / "run", head, samples))
    for words in ("1 example failed", "ran out of luck", "no such file", "1 FAILED"):
        assert words in text, words


def test_a_run_without_one_finished_example_still_has_a_page(tmp_path: Path) -> None:
    failed = made.decoded("swift", "1", verdict="failed", output_ids=[], error="ran out of luck")
    head = made.header("decode", methods=made.methods("swift"))
    assert "ran out of luck" in text_of(made.write(tmp_path / "run", head, [failed]))


def test_runs_that_differ_are_shown_but_not_compared(tmp_path: Path) -> None:
    one = made.bench(tmp_path / "one")
    other = made.bench(tmp_path / "other", model__weight_hash="dead")
    text = text_of(one, other)
    assert "one and other are not compared: weights (feed and dead)" in text
    assert 'id="side-by-side' not in text


def test_runs_that_agree_stand_side_by_side(tmp_path: Path) -> None:
    text = text_of(made.bench(tmp_path / "one"), made.bench(tmp_path / "other"))
    assert "other: swift" in text
    assert "not compared" not in text


def test_inexact_methods_are_called_so(tmp_path: Path) -> None:
    samples = [
        made.decoded(
            "early", str(n), 2.0, verdict="inexact", first_difference=2, baseline_ids=[5, 6, 1]
        )
        for n in range(6)
    ]
    head = made.header("bench", methods=made.methods("early", exact=False))
    text = text_of(made.write(tmp_path / "run", head, samples))
    assert "inexact, 2.00×" in text
    assert "outputs of exact methods are greedy's" not in text


def test_greedys_own_outputs_do_not_count_as_held_against_it(tmp_path: Path) -> None:
    folder = made.bench(tmp_path / "run")
    (run,) = read_runs([folder])
    labels = [sample.method for sample in run.samples]
    own = labels.count("greedy")
    assert own
    assert run.held_to_greedy.judged == len(labels) - own
    text = text_of(folder)
    assert f"{len(labels) - own} of {len(labels) - own} outputs of exact methods are greedy" in text
    assert f"<strong>{len(labels) - own} of {len(labels) - own}</strong>" in text


def test_a_method_that_came_later_is_named_with_its_day(tmp_path: Path) -> None:
    assert "Added to the run later" not in text_of(made.bench(tmp_path / "run"))
    later = made.bench(tmp_path / "later", added={"swift": "2026-11-29T15:36:41+00:00"})
    text = text_of(later)
    assert "beside greedy decoding of that time: swift (2026-11-29, noise [" in text
    # Nor is its time compared with those of another day.
    assert "Least: greedy, 14.6 ms for an example." in text
    assert "none to compare with: swift, added to the run later" in text


def test_where_all_that_was_there_before_failed_nothing_is_drawn(tmp_path: Path) -> None:
    broken = [made.decoded("slow", str(n), verdict="failed", output_ids=[]) for n in range(6)]
    later = [made.decoded("greedy", str(n)) for n in range(6)]
    added = {"greedy": "2026-11-29T15:36:41+00:00"}
    head = made.header("bench", methods=made.methods("slow", "greedy"), added=added)
    text = text_of(made.write(tmp_path / "run", head, broken + later))
    assert "none to compare with: greedy, added to the run later" in text
    assert "Least:" not in text


def test_measured_pipelining_stands_beside_its_theory(full: str) -> None:
    assert "pipelined: measured" in full
    assert "probe: promised" in full
    assert "measured, k=3, layer 2: 1.25×" in full


def test_sweeps_show_their_map_and_their_best_first(tmp_path: Path) -> None:
    speeds = {"2": 1.5, "4": 0.7}
    axes = {"exit_layer": [int(n) for n in speeds], "draft_length": [2]}
    cells = {
        sweeps.label(exit_layer=int(layer), draft_length=2): speed
        for layer, speed in speeds.items()
    }
    samples = sweeps.cells(cells)
    text = text_of(sweeps.write(tmp_path / "run", sweeps.header(axes, 6), samples))
    assert "★1.50x" in text
    assert "▼0.70x" in text
    first, second = (f"exit_layer={at}, draft_length=2: {s:.2f}×" for at, s in speeds.items())
    assert text.index(first) < text.index(second)
    assert [a["id"] for a in Reader(text).all("section")] == [
        *("setting", "verdicts", "sweep", "examples", "terms", "data")
    ]


def test_profiled_runs_tell_verification_from_bookkeeping(tmp_path: Path) -> None:
    profile = {"pass_ms": 6.0, "draft_pass_ms": 3.0, "draft_ms": 0.0, "bookkeeping_ms": 3.0}
    profile |= {"draft_pass_bytes": 1, "pass_bytes": 1}
    samples = [made.decoded("swift", str(n), profile=profile) for n in range(3)]
    head = made.header("bench", methods=made.methods("swift"), bandwidth_bytes_per_s=1e9)
    text = text_of(made.write(tmp_path / "run", head, samples))
    for part in ("prefill: 3.00 ms", "draft: 3.00 ms", "verify: 6.00 ms", "bookkeeping: 3.00 ms"):
        assert f"swift, {part}" in text


def test_times_of_greedy_stand_beside_a_method_that_ran_alone(tmp_path: Path) -> None:
    head = made.header("decode", methods=made.methods("swift"))
    folder = made.write(tmp_path / "run", head, [made.decoded("swift", "1", 2.0)])
    assert "greedy, verify and bookkeeping: 12.00 ms" in text_of(folder)


def test_accuracy_of_drafts_is_drawn_by_distance(tmp_path: Path) -> None:
    ranks = {"1": [0, 1, 0], "2": [4, 0, 9]}
    samples = [made.probed(str(n), method="medusa", ranks=ranks) for n in range(2)]
    head = made.header("drafts", methods=made.methods("medusa"))
    text = text_of(made.write(tmp_path / "run", head, samples))
    assert "With one guess: 67% at distance 1, 33% at distance 2." in text


def test_few_examples_are_called_few(tmp_path: Path) -> None:
    few = "Fewer than 16 examples"
    assert few in text_of(made.probe(tmp_path / "small", n=3)).split("All numbers")[0]
    assert few not in text_of(made.probe(tmp_path / "large", n=16))


def test_data_can_be_taken_away_whole(tmp_path: Path) -> None:
    folder = made.bench(tmp_path / "run")
    links = {
        a["download"]: str(a["href"]) for a in Reader(text_of(folder)).all("a") if "download" in a
    }
    assert set(links) == {"run-figures.csv", "run-run.json", "run-samples.jsonl.gz"}
    packed = base64.b64decode(links["run-samples.jsonl.gz"].partition(",")[2])
    assert gzip.decompress(packed) == (folder / "samples.jsonl").read_bytes()
    figures = base64.b64decode(links["run-figures.csv"].partition(",")[2]).decode()
    assert figures.splitlines()[0].startswith("model,dtype,")


def test_ten_thousand_samples_stay_under_five_megabytes_and_say_what_is_left_out(
    tmp_path: Path,
) -> None:
    samples = [
        made.decoded("swift", str(n), output_ids=[n % 97, *range(40)]) for n in range(10_000)
    ]
    head = made.header("bench", methods=made.methods("swift"))
    text = text_of(made.write(tmp_path / "run", head, samples))
    assert len(text.encode()) < 5_000_000
    (run,) = embedded(text)
    assert run["total"] == 10_000
    assert len(run["examples"]) > 500


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    folder = made.bench(tmp_path / "run")
    assert text_of(folder) == text_of(folder)


def test_words_between_backticks_are_code_and_stay_escaped() -> None:
    assert str(h("p", with_code("run `a <b>` & wait"))) == (
        "<p>run <code>a &lt;b&gt;</code> &amp; wait</p>"
    )
    assert str(h("p", with_code("an odd ` is no code"))) == "<p>an odd ` is no code</p>"
