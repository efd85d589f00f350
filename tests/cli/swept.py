"""Sweeps as they are typed, and what they print."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from ppdbench.cli.main import run
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Proposer, Request
from ppdbench.decoding.draft import Draft
from ppdbench.engine.session import Session
from ppdbench.errors import UnitError

MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300,agree=0.9"
SMALL = ["--model", MODEL, "--data", "builtin", "--limit", "4", "--max-new-tokens", "6"]
SMALL += ["--warmup", "0", "--threads", "1"]
LOOKUP = ["--method", "prompt-lookup", "--grid", "max_draft=2,4", "--grid", "longest_suffix=1,2,3"]


def swept(*arguments: str, out: str = "run", code: int = 0) -> None:
    assert run(["sweep", *SMALL, "--out", out, *arguments]) == code


def parsed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    swept(*arguments, "--format", "json", code=code)
    return json.loads(capsys.readouterr().out)


class Drafting(Proposer):
    """Drafts nonsense, or breaks in the way that it is told."""

    def __init__(self, how: str) -> None:
        self.how, self.rows = how, 3
        self.units = 2 if how == "dies" else 1
        self.threads = 1

    def begin(self) -> None:
        if self.how == "unready":
            raise UnitError("unit 1 is out of memory")

    def propose(self, session: Session, room: int) -> Draft:
        if self.how == "breaks":
            raise RuntimeError("no draft today")
        return Draft.chain([5, 6][:room])

    def decode(self, session: Session, request: Request) -> Decoded:
        if self.how == "dies":
            raise UnitError("unit 1 died")
        decoded = super().decode(session, request)
        if self.how != "lies":
            return decoded
        ids = (*decoded.output_ids[:-1], (decoded.output_ids[-1] + 1) % 300)
        return dataclasses.replace(decoded, output_ids=ids)
