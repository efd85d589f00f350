"""The metrics against the reference implementations and answers worked out by hand."""

import gc
import json
import os
import re
import socket
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from ppdbench import scoring
from ppdbench.errors import ConfigError, DataError, UnknownName
from ppdbench.scoring import text

PREDICTIONS = [
    "The cats were sitting on the mat, and it was raining outside.",
    "Il fait très beau aujourd'hui à Paris.",
    "",
    "A completely different answer\nover two lines.",
]
REFERENCES = [
    ["A cat sat on the mat while it rained outside.", "The cats were sitting on the mat."],
    ["Il fait beau à Paris aujourd'hui."],
    ["Something was expected here."],
    ["Nothing shared", "A wholly different answer on two lines.", "An answer"],
]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*args: Any) -> NoReturn:
        raise AssertionError("scoring opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield


def only(name: str, prediction: str, *references: str) -> float:
    return scoring.score([name], [prediction], [references])[name]


def test_every_metric_scores_and_is_an_evaluate_metric() -> None:
    import evaluate

    from ppdbench.scoring.metrics import TextMetric

    names = scoring.available_metrics()
    found = scoring.score(names, ["#### 3"] * 2, [["#### 3"], ["#### 3", "#### 4"]])
    assert list(found) == names
    classes = TextMetric.__subclasses__()
    assert issubclass(TextMetric, evaluate.Metric)
    assert sorted(name for c in classes for name in c.names) == sorted(names)
    assert not scoring.NEEDS_EXECUTION & set(names)


def test_metrics_come_back_in_the_order_asked() -> None:
    names = ["chrf", "rougeL", "squad_f1", "rouge1"]
    assert list(scoring.score(names, ["a"], [["a"]])) == names


def test_rouge_equals_rouge_score_with_the_best_reference() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    names = ["rouge1", "rouge2", "rougeL"]
    found = scoring.score(names, PREDICTIONS, REFERENCES)
    scorer = RougeScorer(names, use_stemmer=True)
    for name in names:
        best = [
            max(scorer.score(reference, prediction)[name].fmeasure for reference in references)
            for prediction, references in zip(PREDICTIONS, REFERENCES, strict=True)
        ]
        assert found[name] == pytest.approx(fmean(best))
        assert 0 < found[name] < 1


def test_rouge_stems_words() -> None:
    assert only("rouge1", "cats rained", "cat raining") == 1


def test_rouge_worked_by_hand() -> None:
    # 3 of 4 words and 1 of 3 bigrams shared; the longest common subsequence has 3 words.
    found = scoring.score(["rouge1", "rouge2", "rougeL"], ["p q r s"], [["p q z s"]])
    assert found == pytest.approx({"rouge1": 3 / 4, "rouge2": 1 / 3, "rougeL": 3 / 4})


def test_bleu_and_chrf_equal_sacrebleu() -> None:
    import sacrebleu

    # The layout sacrebleu wants: one list per reference position, None where there is none.
    by_position = [
        [references[i] if i < len(references) else None for references in REFERENCES]
        for i in range(3)
    ]
    found = scoring.score(["bleu", "chrf"], PREDICTIONS, REFERENCES)
    assert found["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, by_position).score
    assert found["chrf"] == sacrebleu.corpus_chrf(PREDICTIONS, by_position).score
    assert 1 < found["bleu"] < found["chrf"] < 100


def test_bleu_of_a_copy_is_100_and_says_nothing_about_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenised = ["this looks tokenised already ."] * 120
    found = scoring.score(["bleu", "chrf"], tokenised, [[line] for line in tokenised])
    assert found == pytest.approx({"bleu": 100, "chrf": 100})
    assert not caplog.records


@pytest.mark.parametrize(
    ("raw", "normalised"),
    [
        ("The Beatles!", "beatles"),
        ("  a\tcat \n an  owl ", "cat owl"),
        ("U.S.A.", "usa"),
        ("an-other", "another"),
        ("theatre, anthem, area", "theatre anthem area"),
        ("$1,000.50", "100050"),
        ("the", ""),
        ("A.", ""),
        ("Éa the à", "éa à"),
        ("“curly” – kept", "“curly” – kept"),
    ],
)
def test_squad_normalisation(raw: str, normalised: str) -> None:
    assert text.squad_normalised(raw) == normalised


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "f1"),
    [
        ("the Normans", ["Normans"], 1, 1),
        ("in the 10th century", ["10th century"], 0, 4 / 5),
        ("Denmark", ["Denmark and Norway", "Denmark, Iceland", "Norway"], 0, 2 / 3),
        ("Norway", ["Denmark", "norway."], 1, 1),
        ("b b b c", ["b b d"], 0, 4 / 7),
        ("Rome", ["Paris"], 0, 0),
        ("", ["Paris"], 0, 0),
    ],
)
def test_squad_scores(prediction: str, references: list[str], exact: int, f1: float) -> None:
    found = scoring.score(["squad_em", "squad_f1"], [prediction], [references])
    assert found == pytest.approx({"squad_em": exact, "squad_f1": f1})


def test_squad_is_a_fraction_of_the_examples() -> None:
    found = scoring.score(["squad_em"], ["x", "y", "z", "w"], [["x"], ["y"], ["z"], ["no"]])
    assert found == {"squad_em": 0.75}


@pytest.mark.parametrize(
    ("prediction", "reference", "right"),
    [
        ("She pays 9 * 2 = 18.\n#### 18", "9 * 2 = <<9*2=18>>18\n#### 18", True),
        ("#### 17\nQuestion: next\n#### 18", "#### 18", False),
        ("#### 18, and 2 are left", "#### 18", True),
        ("#### $1,800", "#### 1800", True),
        ("#### 18.00", "#### 18", True),
        ("#### .5", "#### 0.5", True),
        ("####-3", "#### -3", True),
        ("#### -$3", "#### -3", True),
        ("#### $-3", "#### -3", True),
        ("#### 3", "#### -3", False),
        ("The answer is 18.", "#### 18", True),
        ("It costs $1,234,567, I think.", "#### 1,234,567", True),
        ("Half of 36 is 18 apples and no pears", "#### 18", True),
        ("First 18, then 19", "#### 18", False),
        ("#### unknown, perhaps 18", "#### 18", True),
        ("20-18", "#### 18", True),
        ("x = -18", "#### -18", True),
        ("x = \u221218", "#### -18", True),
        ("x = \u221218", "#### 18", False),
        ("#### \u2212$1,800", "#### -1800", True),
        ("20\u221218", "#### 18", True),
        ("So she has...18", "#### 18", True),
        ("It was sold.18 remain", "#### 18", True),
        ("That makes $...18.", "#### 18", True),
        ("half, .5", "#### 0.5", True),
        ("6,7", "#### 67", False),
        ("1,23,456", "#### 123456", True),
        ("-\\$18", "#### -18", True),
        ("eighteen", "#### 18", False),
        ("", "#### 18", False),
    ],
)
def test_gsm8k_answers(prediction: str, reference: str, right: bool) -> None:
    assert only("gsm8k_accuracy", prediction, reference) == right


def test_a_gsm8k_reference_without_an_answer_is_refused() -> None:
    with pytest.raises(DataError, match=r"no number after '####'.*'so 18'"):
        only("gsm8k_accuracy", "#### 18", "so 18")


def test_topv2_ignores_whitespace_only() -> None:
    parse = "[IN:GET_WEATHER [SL:LOCATION Paris ] ]"
    assert only("topv2_exact_match", "  [IN:GET_WEATHER\n[SL:LOCATION  Paris ] ] ", parse) == 1
    assert only("topv2_exact_match", parse.lower(), parse) == 0
    assert only("topv2_exact_match", parse.replace(" ]", "]"), parse) == 0
    assert only("topv2_exact_match", parse, "[IN:OTHER ]", parse) == 1


def test_a_metric_class_works_alone(tmp_path: Path) -> None:
    from ppdbench.scoring.metrics import Squad

    found = Squad(cache_dir=str(tmp_path)).compute(predictions=["a b"], references=[["b", "c"]])
    assert found == {"squad_em": 1, "squad_f1": 1}


@pytest.mark.parametrize("name", ["Rouge", "Squad", "Bleu", "Chrf", "Gsm8k", "TopV2"])
def test_a_metric_class_and_score_say_the_same(name: str, tmp_path: Path) -> None:
    from ppdbench.scoring import metrics

    pairs = {"predictions": ["#### 3 a b"] * 2, "references": [["#### 3 a"], ["#### 4", "b"]]}
    if name == "Gsm8k":
        pairs["references"] = [["#### 3"], ["#### 4", "#### 5"]]
    found = getattr(metrics, name)(cache_dir=str(tmp_path)).compute(**pairs)
    assert found == scoring.score(list(found), pairs["predictions"], pairs["references"])


@pytest.mark.usefixtures("sandboxed")
def test_pass_at_1_runs_programs_where_that_is_allowed_and_only_there(tmp_path: Path) -> None:
    from ppdbench.scoring.metrics import HumanEval

    programs = [f"def double(x):\n    return {answer}\n" for answer in ("2 * x", "x", "x + x")]
    test = "def check(candidate):\n    assert candidate(4) == 8\ncheck(double)"
    pairs = {"predictions": programs, "references": [[test]] * 3}
    with pytest.raises(ConfigError, match="allow_code_execution=True"):
        HumanEval(cache_dir=str(tmp_path)).compute(**pairs)
    found = HumanEval(cache_dir=str(tmp_path)).compute(**pairs, allow_code_execution=True)
    assert found == {"humaneval_pass1": pytest.approx(2 / 3)}


# Against the reference implementations, on real rows


def squad_words(answer: str) -> list[str]:
    """The official script's steps, in its order: case, punctuation, articles, whitespace."""
    kept = "".join(c for c in answer.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def squad_pair(guess: str, answer: str) -> tuple[bool, float]:
    """Exact match, and F1 from precision and recall as the script takes them."""
    guessed, expected = squad_words(guess), squad_words(answer)
    shared = sum((Counter(guessed) & Counter(expected)).values())
    if shared == 0:
        return guessed == expected, 0.0
    precision, recall = shared / len(guessed), shared / len(expected)
    return guessed == expected, 2 * precision * recall / (precision + recall)


def test_squad_scores_follow_the_official_script_on_real_answers(real_rows: Path) -> None:
    for row in real(real_rows / "squad" / "validation.jsonl", 300):
        answers = row["answers"]["text"]
        for guess in (answers[0].upper(), f"the {answers[-1]}.", row["context"][:40], "an"):
            found = scoring.score(["squad_em", "squad_f1"], [guess], [answers])
            pairs = [squad_pair(guess, answer) for answer in answers]
            assert found["squad_em"] == max(exact for exact, _ in pairs)
            assert found["squad_f1"] == pytest.approx(max(f1 for _, f1 in pairs))


def test_gsm8k_answers_are_those_that_the_official_expression_finds(real_rows: Path) -> None:
    official = re.compile(r"#### (\-?[0-9\.\,]+)")
    for row in real(real_rows / "gsm8k" / "test.jsonl", 1000):
        match = official.search(row["answer"])
        assert match is not None
        assert text.marked_number(row["answer"]) == Decimal(match.group(1).replace(",", ""))
        assert only("gsm8k_accuracy", row["answer"], row["answer"]) == 1


def test_rouge_and_bleu_equal_their_libraries_on_real_rows(real_rows: Path) -> None:
    import sacrebleu
    from rouge_score.rouge_scorer import RougeScorer

    pairs = [r["translation"] for r in real(real_rows / "wmt_en_fr" / "test.jsonl", 60)]
    french, english = [p["fr"] for p in pairs], [p["en"] for p in pairs]
    found = scoring.score(["bleu", "chrf"], english, [[line] for line in french])
    assert found["bleu"] == sacrebleu.corpus_bleu(english, [french]).score
    assert found["chrf"] == sacrebleu.corpus_chrf(english, [french]).score

    rows = list(real(real_rows / "cnn_dailymail" / "validation.jsonl", 20))
    leads, highlights = [r["article"][:300] for r in rows], [r["highlights"] for r in rows]
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    each = [scorer.score(h, a)["rougeL"].fmeasure for h, a in zip(highlights, leads, strict=True)]
    score = scoring.score(["rougeL"], leads, [[h] for h in highlights])["rougeL"]
    assert score == pytest.approx(fmean(each))


def real(path: Path, limit: int) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in islice(file, limit))


def stored(prediction: str, references: list[str], **kept: Any) -> Any:
    return SimpleNamespace(example_id="1", text=prediction, references=references, **kept)


def test_parts_that_samples_keep_score_like_their_texts() -> None:
    names = [n for n in scoring.available_metrics() if n != "gsm8k_accuracy"]
    pairs = list(zip(PREDICTIONS, REFERENCES, strict=True))
    kept = [json.loads(json.dumps(scoring.score_parts(names, *pair))) for pair in pairs]
    samples = [
        stored(*pair, scores=parts if i % 2 else {})  # some of an earlier version
        for i, (pair, parts) in enumerate(zip(pairs, kept, strict=True))
    ]
    assert scoring.score_samples(names, samples) == scoring.score(names, PREDICTIONS, REFERENCES)


def test_a_kept_part_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppdbench.scoring.measures.part", lambda *_: pytest.fail("computed"))
    samples = [stored("a", ["a"], scores={"rouge1": share}) for share in (0.25, 0.75)]
    assert scoring.score_samples(["rouge1"], samples) == {"rouge1": 0.5}


def test_an_unknown_metric_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="did you mean rougeL"):
        scoring.score(["rougel"], ["a"], [["a"]])
    with pytest.raises(UnknownName, match="unknown metric 'humaneval_pass1'"):
        scoring.score(["humaneval_pass1"], ["a"], [["a"]])


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([], [], "no predictions"),
        (["a"], [], "1 predictions but 0 sets"),
        (["a", "b"], [["a"], []], "example 1 has no reference"),
        (["a"], ["a"], "references of example 0 must be a list of strings"),
        (["a"], [[None]], "references of example 0 must be a list of strings"),
        ([None], [["a"]], "prediction of example 0 is NoneType"),
    ],
)
def test_unusable_texts_are_refused(
    predictions: list[Any], references: list[Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        scoring.score(["squad_em"], predictions, references)


def test_broken_unicode_is_refused_and_leaves_nothing_open() -> None:
    with pytest.raises(DataError, match="not valid Unicode"):
        only("squad_em", "half a pair \ud800", "a")
    gc.collect()


ALL_ON_A_BARE_MACHINE = """
import sys
from ppdbench import scoring
names = scoring.available_metrics()
heavy = {"evaluate", "datasets", "sacrebleu", "rouge_score", "nltk", "torch", "numpy"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
scoring.score(names, ["#### 1"], [["#### 1"]])
assert not {"evaluate", "datasets", "torch"} & set(sys.modules)
print(len(names))
"""


def test_scoring_is_silent_offline_and_without_a_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.touch()  # a file: no folder can be made under it
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "PYTEST"))}
    env = kept | {"HOME": str(home), "TMPDIR": str(temporary), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ALL_ON_A_BARE_MACHINE],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{len(scoring.available_metrics())}\n", "")
    assert not list(temporary.iterdir())
