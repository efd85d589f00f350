"""What is decoded in pipelined forms: two models, the forms over them, and all cases of each."""

from __future__ import annotations

import functools

from ppdbench.decoding.decoder import Setup
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.methods.ppd.forms import Form
from ppdbench.methods.ppd.strategy import PredictivePipelined
from ppdbench.testing import CAPACITY, assert_exact, cases

LONG = "synthetic:layers=4,hidden=32,heads=4,vocab=300,context=512,agree=0.8"


FAR = "synthetic:layers=5,hidden=32,heads=4,vocab=300,context=64,agree=0"


@functools.cache
def loaded(name: str) -> Loaded:
    return load(ModelSpec(name=name, device="cpu"))


def begun(model: Loaded, **options: object) -> Form:
    form = PredictivePipelined(**options).prepare(Setup(model, CAPACITY))  # type: ignore[arg-type]
    form.begin()
    return form


def prepared(name: str, **options: object) -> Form:
    return begun(loaded(name), **options)


def check_everything(form: Form, name: str) -> list[bool]:
    """All cases, freely and in one fixed shape; which tokens were among their candidates."""
    matches: list[bool] = []
    for fixed in (None, form.rows):
        for case in cases(loaded(name).staged):
            found = assert_exact(form, case, loaded(name).staged, fixed_rows=fixed)
            assert found.pipelined is not None
            assert len(found.pipelined.matches) == len(found.output_ids)
            matches += found.pipelined.matches
    return matches
