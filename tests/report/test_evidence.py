"""A method that loses says what would have to be accepted for it to pay."""

from __future__ import annotations

from typing import Any

from ppdbench.report.evidence import noise_note, probe_note, why_no_gain


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "label": "layerskip",
        "speedup": 0.5,
        "speedup_low": 0.4,
        "speedup_high": 0.6,
        "noise_low": 0.95,
        "noise_high": 1.05,
        "proposed_per_step": 4.0,
        "accepted_per_proposed": 0.25,
        "committed_to_pay": 3.0,
        **changes,
    }


def test_the_noise_of_several_tasks_is_told_from_the_least_to_the_most() -> None:
    quiet, loud = summary(task="gsm8k"), summary(task="xsum", noise_low=0.8, noise_high=1.25)
    assert noise_note([quiet]) == [
        "Greedy against itself: [0.95, 1.05], the noise of this machine."
    ]
    (told,) = noise_note([loud, quiet, loud])
    assert told == (
        "Greedy against itself: [0.95, 1.05] on gsm8k to [0.80, 1.25] on xsum, a task by its own, "
        "the noise of this machine."
    )
    (told,) = noise_note([{**loud, "task": "gsm8k"}, quiet])  # of two batches
    assert "[0.95, 1.05] to [0.80, 1.25], a batch by its own" in told
    assert noise_note([summary(task="gsm8k", noise_low=None)]) == []


def test_a_loss_names_the_acceptance_needed_and_that_found() -> None:
    # A step of 3 greedy steps pays once 2 of 4 drafted tokens are kept beside its own.
    assert why_no_gain(summary()) == (
        "layerskip: a step takes as long as 3.00 of greedy's, so it pays from 50% of 4.0 drafted "
        "tokens accepted; 25% are."
    )


def test_a_step_longer_than_all_it_drafts_cannot_pay() -> None:
    said = why_no_gain(summary(committed_to_pay=5.5))
    assert said is not None
    assert "cannot pay even if all 4.0 tokens" in said


def test_nothing_is_said_of_a_gain_of_noise_and_of_what_drafts_nothing() -> None:
    assert why_no_gain(summary(speedup=1.2, speedup_low=1.1, speedup_high=1.3)) is None
    assert why_no_gain(summary(speedup=0.99, speedup_low=0.97, speedup_high=1.01)) is None
    assert why_no_gain(summary(speedup=None)) is None
    assert why_no_gain(summary(proposed_per_step=0.0)) is None
    assert why_no_gain(summary(committed_to_pay=None)) is None


def test_what_drafts_nothing_says_what_its_matches_promise() -> None:
    pipelined = {
        "label": "ppd",
        "proposed_per_step": 0.0,
        "p": 0.44,
        "predicted_speedup": 1.28,
        "predicted_speedup_times": 1.1,
        "form": "inline",
        "communication_share": 0.25,
    }
    told = "ppd: candidates held 44% of the tokens, for which the times of its parts here promise "
    inline = why_no_gain(summary(**pipelined))
    assert inline == told + "1.10x; one process ran them in turn, which cannot pay."
    split = why_no_gain(summary(**{**pipelined, "form": "split", "predicted_speedup_times": None}))
    assert split == told + "1.28x; 25% of its units' time went into messages between them."
    assert why_no_gain(summary(**pipelined, speedup=1.2)) is None


def test_a_probe_is_told_once_for_all_tasks_with_what_it_chose() -> None:
    chosen = {"exit_layer": 20, "draft_length": 2}
    used = {"exit_layer": "20 of 30", "draft_length": "2"}
    probed = {"exit_probe": {"exit": 20, "matches": {"20": [0.5]}}}
    deep = summary(chosen=chosen, used=used, probed=probed)
    by_depth = summary(label="ppd", chosen={"k": 3}, used={"k": "3"}, probed={})
    assert probe_note([by_depth]) is None
    assert probe_note([deep, by_depth, deep]) == (
        "Chosen for this model by a short probe, kept in run.json with its facts: layerskip "
        "exit_layer=20 of 30, draft_length=2."
    )
