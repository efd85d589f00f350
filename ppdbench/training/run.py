"""`train heads` and `train layerskip`: from options to a folder that the rest of ppdbench reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from ppdbench.engine.loading import (
    DTYPES,
    ModelSpec,
    load_stock,
    resolve_device,
    weight_fingerprint,
)
from ppdbench.engine.shapes import SPECIALS, Shape
from ppdbench.engine.synthetic import configuration, wrapped
from ppdbench.errors import ConfigError
from ppdbench.training.evaluate import ExitQuality, by_layer
from ppdbench.training.heads import HeadsObjective
from ppdbench.training.layerskip import LayerSkipObjective
from ppdbench.training.recipe import Recipe
from ppdbench.training.text import Blocks, TextSpec, documents, tokenized
from ppdbench.training.trainer import TrainConfig, Trainer
from ppdbench.workload import Report

TOKENS, HELD_OUT = "tokens.bin", "held-out.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every training run is told, whatever it trains.

    `epochs` stands for a number of steps that is known once the text is tokenized.
    """

    text: TextSpec
    held_out: TextSpec | None
    config: TrainConfig
    epochs: float | None
    out: Path


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do and need, for `--dry-run`."""

    parameters: int
    trained: int
    tokens: int
    steps: int
    epochs: float
    weights_bytes: int
    optimizer_bytes: int
    step_seconds: float
    total_seconds: float


class Training:
    """One run: the objective over its text, ready to be planned or carried out."""

    def __init__(
        self, objective: nn.Module, model: Any, tokenizer: Any, job: Job, facts: dict[str, Any]
    ) -> None:
        self.objective, self.model, self.tokenizer, self.job = objective, model, tokenizer, job
        from accelerate import PartialState

        on_cpu = next(model.parameters()).device.type == "cpu"
        self.processes = PartialState(cpu=on_cpu)
        self.ids = ids = self._tokenized(job.text, TOKENS)
        self.blocks = Blocks(ids, job.config.sequence + 1, job.config.seed)
        self.config = job.config
        if job.epochs is not None:
            steps = round(job.epochs * self.blocks.count / job.config.batch_size)
            self.config = replace(job.config, steps=max(1, steps))
        self.facts = {"text": asdict(job.text), "tokens": len(ids), **facts}

    def _tokenized(self, text: TextSpec, name: str) -> npt.NDArray[Any]:
        """The tokens of a text, written by the first process and read by all."""
        vocab = int(self.model.config.vocab_size)
        with self.processes.main_process_first():
            return tokenized(text, self.tokenizer, vocab, self.job.out / name)

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and prints."""
        main: bool = self.processes.is_main_process
        return main

    def plan(self) -> Plan:
        """Counts, memory, and time from two timed steps that change nothing on disk."""
        config, blocks = self.config, self.blocks
        trained = sum(p.numel() for p in self.objective.parameters() if p.requires_grad)
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        seconds = self._seconds_per_step()
        return Plan(
            parameters=sum(p.numel() for p in self.model.parameters()),
            trained=trained,
            tokens=len(self.ids),
            steps=config.steps,
            epochs=config.steps * config.batch_size / blocks.count,
            weights_bytes=weights,
            optimizer_bytes=3 * 4 * trained,  # a gradient and two moments
            step_seconds=seconds,
            total_seconds=seconds * config.steps,
        )

    def _seconds_per_step(self) -> float:
        micro = self.config.micro_batch or self.config.batch_size
        device = next(self.objective.parameters()).device
        rows = torch.from_numpy(self.blocks.batch(0, micro)).to(device)
        times = []
        for step in range(2):
            start = time.perf_counter()
            self.objective(rows, step, self.config.steps)["loss"].backward()
            times.append(time.perf_counter() - start)
            self.objective.zero_grad()
        return min(times) * self.config.batch_size / micro

    def carry_out(self, *, resume: bool, watch: Report) -> Any:
        """Train to the end; the trained objective."""
        trainer = Trainer(self.objective, self.blocks, self.config, self.job.out, self.facts)
        trainer.run(resume=resume, watch=watch)
        return trainer.trained()

    def quality(self) -> list[ExitQuality]:
        """Perplexity by layer on the held-out text, if there is any."""
        if self.job.held_out is None:
            return []
        ids = self._tokenized(self.job.held_out, HELD_OUT)
        heads = self.objective.readers() if isinstance(self.objective, HeadsObjective) else None
        return by_layer(self.model, ids, min(self.config.sequence, len(ids) - 1), heads=heads)


def heads(
    spec: ModelSpec, layers: Sequence[int], job: Job, *, loss: str, rank: int | None
) -> Training:
    """Heads for exit `layers` (none: all but the last) of a frozen model."""
    model, tokenizer = load_stock(spec)
    chosen = list(layers) or list(range(1, int(model.config.num_hidden_layers)))
    config = job.config
    objective = HeadsObjective(
        model, chosen, config.sequence, loss=loss, rank=rank, compiled=config.compile
    )
    facts = {
        "kind": "heads",
        "model": spec.name,
        "weight_hash": weight_fingerprint(model),
        "layers": chosen,
        "loss": loss,
        "rank": rank,
    }
    return Training(objective.to(next(model.parameters()).device), model, tokenizer, job, facts)


def layerskip(spec: ModelSpec, recipe: Recipe, job: Job) -> Training:
    """The recipe on a model that exists: continual pretraining or finetuning."""
    model, tokenizer = load_stock(spec)
    facts = {
        "kind": "layerskip",
        "model": spec.name,
        "weight_hash": weight_fingerprint(model),
        "recipe": asdict(recipe),
    }
    return _layerskip(model, tokenizer, recipe, job, facts)


def layerskip_from_scratch(shape: Shape, device: str, recipe: Recipe, job: Job) -> Training:
    """The recipe on a new Llama of this shape, with a tokenizer trained on the same text."""
    tokenizer = trained_tokenizer(job.text, shape.vocab, shape.context)
    model = new_model(shape, job.config.seed).to(resolve_device(device))
    facts = {"kind": "layerskip", "shape": asdict(shape), "recipe": asdict(recipe)}
    return _layerskip(model, tokenizer, recipe, job, facts)


def _layerskip(
    model: Any, tokenizer: Any, recipe: Recipe, job: Job, facts: dict[str, Any]
) -> Training:
    # Trained in float32; mixed precision is the accelerator's business.
    model = model.float().train().requires_grad_(True)
    config = job.config
    objective = LayerSkipObjective(
        model, recipe, config.sequence, config.seed, compiled=config.compile
    )
    return Training(objective, model, tokenizer, job, facts)


def new_model(shape: Shape, seed: int) -> Any:
    """An untrained Llama with the usual initialisation."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(configuration(shape))


def trained_tokenizer(text: TextSpec, vocab: int, context: int) -> Any:
    """Byte-level BPE learned from the text; the same text gives the same tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(documents(text), trainer)
    return wrapped(bpe, context)


def check_save_dtype(dtype: str) -> None:
    """Refuse a type before the training it would come after."""
    if dtype not in DTYPES:
        raise ConfigError(f"--save-dtype {dtype!r}: use {', '.join(DTYPES)}")


def save_model(objective: LayerSkipObjective, tokenizer: Any, out: Path, dtype: str) -> None:
    """Write an ordinary transformers folder."""
    objective.model.to(DTYPES[dtype]).save_pretrained(out)
    tokenizer.save_pretrained(out)
    objective.model.float()  # what is measured from here on are the weights that were saved
