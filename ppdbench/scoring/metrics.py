"""The metrics as `evaluate.Metric` classes; loading this module loads `evaluate`.

They are constructed directly: `evaluate.load` would fetch a script from the hub. Their inputs
pass through `datasets` features like those of any other metric, so each can also be used
alone: `Squad(cache_dir=folder).compute(predictions=[...], references=[[...]])`.
"""

from __future__ import annotations

import inspect
from typing import ClassVar

import evaluate
from datasets import Features, List, Value

from ppdbench.errors import ConfigError
from ppdbench.sandbox.exam import Exam
from ppdbench.scoring import score

Predictions = list[str]
References = list[list[str]]


class TextMetric(evaluate.Metric):  # type: ignore[misc]
    """Texts compared with one or more reference texts each."""

    names: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = ""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=inspect.getdoc(type(self)) or "",
            citation=self.source,
            inputs_description="predictions: strings; references: a list of strings for each",
            features=Features(
                {"predictions": Value("string"), "references": List(Value("string"))}
            ),
        )

    def _compute(self, predictions: Predictions, references: References) -> dict[str, float]:
        return score(self.names, predictions, references)


class Rouge(TextMetric):
    """F-measures of unigrams, bigrams and the longest common subsequence of the whole text.

    Words are stemmed, the usual choice for summaries. The mean is a plain one over examples.
    """

    names = ("rouge1", "rouge2", "rougeL")
    source = "Lin, 2004, ROUGE: A Package for Automatic Evaluation of Summaries (rouge-score)"


class Squad(TextMetric):
    """Exact match and token F1 with SQuAD 1.1's normalisation of answers."""

    names = ("squad_em", "squad_f1")
    source = "Rajpurkar et al., 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text"


class Bleu(TextMetric):
    """Corpus BLEU, 0..100, as sacrebleu computes it by default (13a tokens, exp smoothing)."""

    names = ("bleu",)
    source = "Post, 2018, A Call for Clarity in Reporting BLEU Scores (sacrebleu)"


class Chrf(TextMetric):
    """Corpus chrF2, 0..100, as sacrebleu computes it by default."""

    names = ("chrf",)
    source = "Popović, 2015, chrF: character n-gram F-score for automatic MT evaluation (sacrebleu)"


class Gsm8k(TextMetric):
    """Share of problems whose final number has the reference's value.

    The final number follows the first `####`, or is the last one in a prediction without it.
    """

    names = ("gsm8k_accuracy",)
    source = "Cobbe et al., 2021, Training Verifiers to Solve Math Word Problems"


class TopV2(TextMetric):
    """Share of parses that equal the reference up to whitespace."""

    names = ("topv2_exact_match",)
    source = "Chen et al., 2020, Low-Resource Domain Adaptation for Compositional Task-Oriented SP"


class HumanEval(TextMetric):
    """pass@1 of one program per problem: the share that runs through its tests without error.

    Predictions are whole programs, prompt included; references are what is run behind them, down
    to the call of `check`. This runs code that nobody has read, within `ppdbench.sandbox`, and
    only with `allow_code_execution=True`. Decoding runs do it when a sample is made and store
    what happened, so that scoring them runs nothing.
    """

    source = "Chen et al., 2021, Evaluating Large Language Models Trained on Code"

    def _compute(
        self, predictions: Predictions, references: References, allow_code_execution: bool = False
    ) -> dict[str, float]:
        if not allow_code_execution:
            raise ConfigError(
                "HumanEval runs generated code; pass allow_code_execution=True to allow that"
            )
        from ppdbench.sandbox.outside import execute

        passed = [
            all(execute(program, Exam(test)).passed for test in tests)
            for program, tests in zip(predictions, references, strict=True)
        ]
        return {"humaneval_pass1": sum(passed) / len(passed)}
