"""`bench --methods all`: each method of ours once, and a reason for each that cannot run."""

from ppdbench.bench.everything import every_method
from ppdbench.strategies import METHODS

OURS = {name for name in METHODS.names() if ":" not in name}


def test_on_the_embedded_model_every_method_of_ours_runs():
    choices, lacking = every_method("reference")
    assert {choice.name for choice in choices} == OURS
    assert lacking == []


def test_parts_that_came_with_the_embedded_model_are_named():
    options = {choice.name: choice.options for choice in every_method("reference")[0]}
    assert options["speculative"] == {"draft_model": "reference-draft"}
    assert options["rest"] == {"datastore": "reference"}
    assert options["layerskip"] == {}


def test_on_another_model_what_needs_a_part_is_left_out_with_its_reason():
    choices, lacking = every_method("synthetic:layers=2,hidden=32")
    assert {choice.name for choice in choices} == OURS - {"speculative", "rest"}
    assert sorted(why.split(":")[0] for why in lacking) == ["rest", "speculative"]
    assert any("ppdbench datastore" in why for why in lacking)
