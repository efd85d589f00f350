"""A training run: what it is told, what it would take, and how it is carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.loading import DTYPES, resolve_device, weight_fingerprint
from ppdbench.engine.vocabulary import vocabulary_hash
from ppdbench.errors import ConfigError, DataError, NumericalError
from ppdbench.machine.freed import reuse_freed
from ppdbench.runs.workload import Report, silent
from ppdbench.training.evaluate import Quality
from ppdbench.training.memory import LOW, FreeRoom, MemoryNeed, held_by, measure_passes
from ppdbench.training.objective import Objective
from ppdbench.training.states import StatesOnDisk
from ppdbench.training.text import TextSpec, TokenBlocks, commonest, tokenized
from ppdbench.training.trainer import STATES_KEPT, TrainConfig, Trainer

TOKENS, HELD_OUT = "tokens.bin", "held-out.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The options of every training run, whatever it trains.

    `epochs` stands for a number of steps that is known once the text is tokenized.
    """

    text: TextSpec
    held_out: TextSpec | None
    config: TrainConfig
    epochs: float | None
    out: Path
    held_out_tokens: int = 0  # the first so many are measured on; 0: all
    states: Path | None = None  # where those of a frozen model are kept

    def __post_init__(self) -> None:
        if self.held_out_tokens < 0:
            raise ConfigError(f"--held-out-tokens {self.held_out_tokens}: use 0 (all) or more")


class Material:
    """All that is known before weights load: the job, the model's words, the tokens of the text.

    `find_words` gives the model's tokenizer and the size of its vocabulary.
    """

    def __init__(self, job: Job, device: str, find_words: Callable[[], tuple[Any, int]]) -> None:
        self.job, self.device = job, resolve_device(device)
        self._find_words = find_words

    @cached_property
    def words(self) -> tuple[Any, int]:
        """The model's tokenizer, and the size of its vocabulary."""
        return self._find_words()

    @cached_property
    def ids(self) -> npt.NDArray[Any]:
        """The tokens of the text to train on."""
        return _tokenized(
            self.job.text, *self.words, _processes(self.device), self.job.out / TOKENS
        )

    def commonest(self, size: int) -> torch.Tensor | None:
        """The tokens that the text has most often, in rising order; None for 0."""
        return commonest(self.ids, size, self.words[1]) if size else None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The work and the memory of a run, for `--dry-run`."""

    parameters: int
    trained: int
    tokens: int
    steps: int
    epochs: float
    weights_bytes: int
    added_bytes: int
    optimizer_bytes: int
    passes_bytes: int
    total_bytes: int
    free_bytes: int
    short: str | None
    """The reason why it does not fit into what is free, if it does not; no step was timed then."""
    step_seconds: float | None
    total_seconds: float | None


class Training:
    """One run: the objective over its text, ready to be planned or carried out."""

    def __init__(
        self, objective: Objective, model: Any, tokenizer: Any, job: Job, facts: dict[str, Any]
    ) -> None:
        self.objective, self.model, self.tokenizer, self.job = objective, model, tokenizer, job
        check_numbers(model, "the model")  # before anything is written
        check_numbers(objective, "what training begins with")
        self.processes = _processes(next(model.parameters()).device)
        self.ids = ids = self._tokenized(job.text, TOKENS)
        self.blocks = TokenBlocks(ids, job.config.sequence + 1, job.config.seed)
        self.config = job.config
        if job.epochs is not None:
            steps = round(job.epochs * self.blocks.count / job.config.batch_size)
            self.config = replace(job.config, steps=max(1, steps) * job.config.phases)
        # What is measured in the end is read in the beginning, where a wrong name costs nothing.
        self.held_out = None if job.held_out is None else self._tokenized(job.held_out, HELD_OUT)
        if self.held_out is not None and len(self.held_out) <= objective.shortest:
            raise DataError(
                f"--held-out holds {len(self.held_out)} tokens, and nothing can be measured on "
                f"fewer than {objective.shortest + 1}"
            )
        text = {name: value for name, value in asdict(job.text).items() if name != "offline"}
        words = vocabulary_hash(tokenizer)
        self.facts = {"text": text, "tokens": len(ids), "vocabulary": words, **facts}
        self.facts[STATES_KEPT] = job.states is not None  # which rounds them

    def _tokenized(self, text: TextSpec, name: str) -> npt.NDArray[Any]:
        vocab = int(self.model.config.vocab_size)
        return _tokenized(text, self.tokenizer, vocab, self.processes, self.job.out / name)

    @property
    def is_main(self) -> bool:
        """True if this process is the one that writes and prints."""
        main: bool = self.processes.is_main_process
        return main

    @property
    def n_layers(self) -> int:
        """The depth of the model."""
        return int(self.model.config.num_hidden_layers)

    def forecast(self) -> Forecast:
        """Counts, memory, and time from a few steps that change nothing on disk."""
        config, blocks, need = self.config, self.blocks, self.need()
        seconds = None if need.short else self._seconds_per_step()
        return Forecast(
            parameters=sum(p.numel() for p in self.model.parameters()),
            trained=sum(p.numel() for p in self.objective.parameters() if p.requires_grad),
            tokens=len(self.ids),
            steps=config.steps,
            epochs=config.steps * config.batch_size / blocks.count,
            weights_bytes=need.held.model,
            added_bytes=need.held.added,
            optimizer_bytes=need.held.optimizer,
            passes_bytes=need.passes_bytes,
            total_bytes=need.total,
            free_bytes=need.room.free,
            short=need.short,
            step_seconds=seconds,
            total_seconds=None if seconds is None else seconds * config.steps,
        )

    def need(self) -> MemoryNeed:
        """The memory that the run takes, and what there is: what is free, and what is in use."""
        config = self.config
        held = held_by(self.model, self.objective)
        room = FreeRoom.found(next(self.objective.parameters()).device)
        return MemoryNeed(
            held=held,
            passes=[
                measure_passes(
                    self.objective, step, config.steps, config.sequence, config.precision
                )
                for step in sorted({0, config.steps - 1 if self.objective.varies else 0})
            ],
            sequences=self._micro_batch,
            tokens=config.sequence,
            room=replace(room, free=room.free + held.model + held.added),
        )

    @property
    def _share(self) -> int:
        """Sequences of a step that are for this process."""
        return max(1, self.config.batch_size // int(self.processes.num_processes))

    @property
    def _micro_batch(self) -> int:
        """The sequences that it runs at once."""
        return min(self.config.micro_batch or self._share, self._share)

    @reuse_freed()
    def _seconds_per_step(self) -> float:
        """Time a step of this process's share, at the beginning, in the middle and at the end."""
        config, share, micro = self.config, self._share, self._micro_batch
        device = next(self.objective.parameters()).device
        rows = torch.from_numpy(self.blocks.batch(0, micro)).to(device)
        low = LOW.get(config.precision)
        times: list[float] = []
        chosen = (0, config.steps // 2, config.steps - 1)
        # The first time for what is done only once.
        for step in chosen * 2:
            start = time.perf_counter()
            with torch.autocast(device.type, low, enabled=low is not None):
                loss = self.objective(rows, step, config.steps)["loss"]
            loss.backward()
            float(loss.detach())  # a GPU is done with it only now
            times.append(time.perf_counter() - start)
            self.objective.zero_grad()
        each = mean(times[len(chosen) :])
        return each * share / micro

    @reuse_freed()
    def carry_out(self, *, resume: bool, watch: Report) -> Any:
        """Train to the end; the trained objective."""
        if (short := self.need().short) is not None:
            raise ConfigError(short)
        if self.job.states is not None:
            self.objective.keep_states(self._store(self.job.states))
        trainer = Trainer(self.objective, self.blocks, self.config, self.job.out, self.facts)
        trainer.run(resume=resume, watch=watch)
        return trainer.trained()

    def _store(self, folder: Path) -> StatesOnDisk:
        """The states of this process's blocks."""
        own = folder / str(self.processes.process_index)
        facts = {
            "weights": weight_fingerprint(self.model),
            "dtype": str(self.model.dtype),
            "precision": self.config.precision,  # products of states are rounded in it
        }
        return StatesOnDisk.open(own, facts, self.config.sequence, Adapter(self.model).width)

    @reuse_freed()
    def quality(self, watch: Report = silent) -> Sequence[Quality]:
        """Measure what was trained on the held-out text, if there is any."""
        ids = self.measured_on
        if ids is None:
            return []
        return self.objective.quality(ids, min(self.config.sequence, len(ids) - 1), watch)

    @property
    def measured_on(self) -> npt.NDArray[Any] | None:
        """The held-out text, as much as was asked for, and one sequence at least."""
        if self.held_out is None or not self.job.held_out_tokens:
            return self.held_out
        return self.held_out[: max(self.job.held_out_tokens, self.config.sequence + 1)]


def _processes(device: torch.device) -> Any:
    """The processes of this run, where `torchrun` started several."""
    from accelerate import PartialState

    return PartialState(cpu=device.type == "cpu")


def _tokenized(
    text: TextSpec, tokenizer: Any, vocab: int, processes: Any, path: Path
) -> npt.NDArray[Any]:
    """The tokens of a text, written by the first process and read by all."""
    with processes.main_process_first():
        return tokenized(text, tokenizer, vocab, path)


def check_numbers(module: nn.Module, what: str) -> None:
    """Refuse weights with NaN or infinities: every loss on them would be none."""
    for name, weights in module.named_parameters():
        if not weights.numel():
            continue
        low, high = torch.aminmax(weights.detach())
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise NumericalError(
                f"{what} holds NaN or infinite weights, the first in {name}, so nothing can be "
                "trained; its file may be damaged, fetch or save it again"
            )


def saved_dtype(name: str | None) -> torch.dtype | None:
    """The type of that name, if one is named; one that does not exist is refused."""
    if name is not None and name not in DTYPES:
        raise ConfigError(f"--save-dtype {name!r}: use {', '.join(DTYPES)}")
    return None if name is None else DTYPES[name]
