"""The skeleton of a run: examples are read, a model is loaded, what is missing is made and stored.

What a run is told stands in its `RunConfig`; where it goes is its `Destination`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ppdbench.decoding.decoder import Setup
from ppdbench.engine.flat.choice import FASTER, FLAT, kind_of_passes
from ppdbench.engine.loading import Loaded, load, load_words
from ppdbench.errors import ConfigError
from ppdbench.runs.conversation import with_later_turns
from ppdbench.runs.header import run_header
from ppdbench.runs.records import Compilation, DecodingHeader, Header, Passes, PassModel
from ppdbench.runs.samples import Key
from ppdbench.runs.shards import ALONE, Shard
from ppdbench.runs.store import RunFolder, begun_header, check_target
from ppdbench.runs.workload import (
    FinishedRun,
    Item,
    Report,
    RunConfig,
    Warn,
    Workload,
    capacity,
    silent,
    unheard,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The destination of a run: where it is stored, this process's part of it, who hears of it."""

    out: Path
    resume: bool = False
    shard: Shard = ALONE
    report: Report = silent
    warn: Warn = unheard
    command: tuple[str, ...] = ()  # what was typed, where that was no command line

    def check(self) -> None:
        """Refuse a folder that the run cannot go into, before anything is loaded for it."""
        check_target(self.out, resume=self.resume, shard=self.shard)

    def path(self) -> Passes | None:
        """The path of passes that the header names of a run that is gone on with."""
        header = begun_header(self.out)
        return None if header is None else header.passes

    def compilation(self) -> Compilation | None:
        """Read from the header of a run that was begun before what became of `--compile`."""
        header = begun_header(self.out, self.shard)
        return None if header is None else header.compilation

    def pass_model(self) -> PassModel | None:
        """Read from the header of a run that was begun before what was timed for predictions."""
        header = begun_header(self.out, self.shard)
        return None if header is None else header.pass_model

    def chosen(self) -> Mapping[str, Mapping[str, int]]:
        """Read from the header of a run that was begun before what methods chose by themselves."""
        header = begun_header(self.out, self.shard)
        return {} if header is None else header.chosen or {}


def run_folder(out: str | Path | None, resume: bool, *parts: str) -> Path:
    """The folder of a run: the one asked for, or one that says what it is and when."""
    if out == "":
        raise ConfigError("--out is empty; give a folder or leave it out")
    if out is not None:
        return Path(out)
    if resume:
        raise ConfigError("--resume needs --out: the folder of the run to continue")
    last = [part.rstrip("/").split("/")[-1] for part in parts]  # of a path, what it ends in
    names = [re.sub(r"[^A-Za-z0-9.=-]+", "_", part).strip("_")[:40] for part in last]
    launch = Shard.launched().launch
    if launch is not None:  # all its processes must come to the same name
        return Path("results") / "-".join([*names, launch])
    name = "-".join([*names, time.strftime("%Y%m%d-%H%M%S")])
    # Two runs may start within one second.
    marks = chain([""], (f"-{i}" for i in count(2)))
    return next(p for m in marks if not (p := Path("results") / f"{name}{m}").exists())


@dataclass(frozen=True, slots=True)
class Ready:
    """A run whose model is loaded and whose examples are encoded for it."""

    to: Destination
    work: Workload
    loaded: Loaded
    items: list[Item]
    setup: Setup = field(repr=False)

    @classmethod
    def load(
        cls,
        to: Destination,
        work: Workload,
        loaded: Loaded | None = None,
        *,
        conversations: bool = False,
    ) -> Ready:
        """Load the model that the run names, unless it is there; `conversations` have all turns."""
        begun = to.path()
        if loaded is None:
            if work.config.chat.need_template:  # told before weights load
                work.config.chat.template(load_words(work.config.model)[0])
            passes = FASTER if begun is None else kind_of_passes(begun.kernels)
            loaded = load(work.config.model, context=work.context(), passes=passes)
        items = work.encode(loaded)
        if conversations:
            items = with_later_turns(items, loaded)
        return cls(to, work, loaded, items, Setup(loaded, capacity(items), work.config.seed))

    def header(self, kind: str, config: RunConfig, **told: Any) -> Header:
        """Return the header of the run, with what a run of this kind tells besides."""
        header = run_header(kind, config, self.loaded, self.work, **told)
        return replace(header, command=list(self.to.command)) if self.to.command else header

    def store(
        self,
        header: Header,
        make: Callable[[RunFolder], None],
        wanted: Iterable[Key],
        *,
        longer: bool = True,
    ) -> FinishedRun:
        """Let `make` add what the run folder lacks of the samples that are `wanted`.

        `longer` says that a stored run may go on with more examples than it was begun with.
        """
        to, first = self.to, self.work.first if longer else None
        with RunFolder(
            *(to.out, header),
            resume=to.resume,
            shard=to.shard,
            first=first,
            check=self._check_path,
        ) as folder:
            make(folder)
            samples = folder.gather()
        return FinishedRun(
            path=to.out,
            header=_as_asked(folder.header, header),
            samples=samples,
            # Prompts of later turns are known only now.
            cut={(s.task, s.example_id): s.cut_tokens for s in samples if s.cut_tokens},
            torn=folder.redone,
            cut_off=folder.cut_off,
            shard=to.shard,
            missing=sum(key not in folder.done for key in wanted),
            spell=self.loaded.tokenizer.decode,
        )

    def _check_path(self, stored: Header) -> None:
        """Refuse to go on with other kernels: times and roundings would be of two kinds."""
        begun, here = stored.passes, self.loaded.staged.path
        if begun is None or begun.kernels == here.kernels:
            return
        if FLAT in (kind_of_passes(begun.kernels), kind_of_passes(here.kernels)):
            raise ConfigError(
                f"this run began with passes that run {begun.kernels}; here they run "
                f"{here.kernels} ({here.why}); go on where they run as before, or begin again with "
                "another --out"
            )


def _as_asked(stored: Header, asked: Header) -> Header:
    """The header of the run folder, read as was asked this time, with what could not run now."""
    now: dict[str, Any] = {"config": asked.config}
    if isinstance(asked, DecodingHeader):
        now["not_run"] = {n: stored.not_run.get(n, why) for n, why in asked.not_run.items()}
    return replace(stored, **now)
