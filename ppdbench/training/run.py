"""`train`: from options to a folder that the rest of ppdbench reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy.typing as npt
import torch

from ppdbench.engine.addons import open_addon
from ppdbench.engine.loading import (
    DTYPES,
    ModelSpec,
    load_stock,
    resolve_device,
    take_over,
    weight_fingerprint,
)
from ppdbench.engine.prompt_tokens import METHOD as PROMPT_TOKENS
from ppdbench.engine.shapes import SPECIALS, Shape
from ppdbench.engine.synthetic import configuration, wrapped
from ppdbench.engine.vocabulary import vocabulary_hash
from ppdbench.errors import ConfigError
from ppdbench.training.eagle import EagleObjective, EaglePlan, commonest
from ppdbench.training.evaluate import Quality
from ppdbench.training.heads import HeadsObjective
from ppdbench.training.hidden_transfer import TransferObjective, TransferPlan
from ppdbench.training.layerskip import LayerSkipObjective
from ppdbench.training.medusa import MedusaObjective, MedusaPlan
from ppdbench.training.objective import Objective
from ppdbench.training.prompt_tokens import PromptPlan, PromptsObjective, ordinary_words
from ppdbench.training.recipe import Recipe, fitted
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
        self, objective: Objective, model: Any, tokenizer: Any, job: Job, facts: dict[str, Any]
    ) -> None:
        self.objective, self.model, self.tokenizer, self.job = objective, model, tokenizer, job
        self.processes = _processes(model)
        self.ids = ids = self._tokenized(job.text, TOKENS)
        self.blocks = Blocks(ids, job.config.sequence + 1, job.config.seed)
        self.config = job.config
        if job.epochs is not None:
            steps = round(job.epochs * self.blocks.count / job.config.batch_size)
            self.config = replace(job.config, steps=max(1, steps) * job.config.phases)
        # What is measured in the end is read in the beginning, where a wrong name costs nothing.
        self.held_out = None if job.held_out is None else self._tokenized(job.held_out, HELD_OUT)
        text = {name: value for name, value in asdict(job.text).items() if name != "offline"}
        words = vocabulary_hash(tokenizer)
        self.facts = {"text": text, "tokens": len(ids), "vocabulary": words, **facts}

    def _tokenized(self, text: TextSpec, name: str) -> npt.NDArray[Any]:
        return _tokenized(text, self.tokenizer, self.model, self.job.out / name)

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and prints."""
        main: bool = self.processes.is_main_process
        return main

    def plan(self) -> Plan:
        """Counts, memory, and time from a few steps that change nothing on disk."""
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
        """Of this process's share, at the beginning, in the middle and at the end of the run."""
        config = self.config
        share: int = max(1, config.batch_size // self.processes.num_processes)
        micro = min(config.micro_batch or share, share)
        device = next(self.objective.parameters()).device
        rows = torch.from_numpy(self.blocks.batch(0, micro)).to(device)
        low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
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

    def carry_out(self, *, resume: bool, watch: Report) -> Any:
        """Train to the end; the trained objective."""
        trainer = Trainer(self.objective, self.blocks, self.config, self.job.out, self.facts)
        trainer.run(resume=resume, watch=watch)
        return trainer.trained()

    def quality(self) -> Sequence[Quality]:
        """What was trained, measured on the held-out text if there is any."""
        ids = self.held_out
        if ids is None:
            return []
        return self.objective.quality(ids, min(self.config.sequence, len(ids) - 1))


def _processes(model: Any) -> Any:
    """The processes of this run, where `torchrun` started several."""
    from accelerate import PartialState

    return PartialState(cpu=next(model.parameters()).device.type == "cpu")


def _tokenized(text: TextSpec, tokenizer: Any, model: Any, path: Path) -> npt.NDArray[Any]:
    """The tokens of a text, written by the first process and read by all."""
    with _processes(model).main_process_first():
        return tokenized(text, tokenizer, int(model.config.vocab_size), path)


def _load(spec: ModelSpec) -> tuple[Any, Any]:
    """The model that is trained, or that something is trained beside."""
    if spec.quantize is not None:
        raise ConfigError(
            f"--quantize {spec.quantize}: training runs on plain weights; leave it out, what is "
            "trained then serves the quantised model too"
        )
    if spec.device_map is not None:
        raise ConfigError(
            f"--device-map {spec.device_map}: training runs on one device per process; leave it "
            "out, or start one process per device with torchrun"
        )
    return load_stock(spec)


def heads(
    spec: ModelSpec, layers: Sequence[int], job: Job, *, loss: str, rank: int | None
) -> Training:
    """Heads for exit `layers` (none: all but the last) of a frozen model."""
    model, tokenizer = _load(spec)
    torch.manual_seed(job.config.seed)
    chosen = list(layers) or list(range(1, int(model.config.num_hidden_layers)))
    config = job.config
    objective = HeadsObjective(
        model, chosen, config.sequence, loss=loss, rank=rank, compiled=config.compile
    )
    facts = {"kind": "heads", "layers": chosen, "loss": loss, "rank": rank}
    return _beside(spec, model, tokenizer, objective, job, facts)


def medusa(spec: ModelSpec, plan: MedusaPlan, job: Job) -> Training:
    """Medusa heads of a frozen model."""
    model, tokenizer = _load(spec)
    torch.manual_seed(job.config.seed)
    objective = MedusaObjective(model, plan, job.config.sequence, compiled=job.config.compile)
    return _beside(spec, model, tokenizer, objective, job, {"kind": "medusa", **asdict(plan)})


def eagle(spec: ModelSpec, plan: EaglePlan, job: Job) -> Training:
    """A draft network of a frozen model; its own vocabulary are the commonest words of the text."""
    model, tokenizer = _load(spec)
    config, words = job.config, None
    if plan.draft_vocab:
        ids = _tokenized(job.text, tokenizer, model, job.out / TOKENS)
        words = commonest(ids, plan.draft_vocab, int(model.config.vocab_size))
    objective = EagleObjective(
        model, plan, config.sequence, config.seed, words=words, compiled=config.compile
    )
    return _beside(spec, model, tokenizer, objective, job, {"kind": "eagle", **asdict(plan)})


def hidden_transfer(spec: ModelSpec, plan: TransferPlan, job: Job) -> Training:
    """Matrices of a frozen model; steps and epochs of the job are for each of them."""
    model, tokenizer = _load(spec)
    plan, config = plan.settled(int(model.config.num_hidden_layers)), job.config
    phases = len(plan.jobs)
    job = replace(job, config=replace(config, steps=config.steps * phases, phases=phases))
    objective = TransferObjective(model, plan, config.sequence, compiled=config.compile)
    facts = {"kind": "hidden-transfer", **asdict(plan)}
    return _beside(spec, model, tokenizer, objective, job, facts)


def prompt_tokens(spec: ModelSpec, plan: PromptPlan, job: Job, start: str | None) -> Training:
    """Prompt tokens of a frozen model; `start` is an add-on to go on from."""
    model, tokenizer = _load(spec)
    config = job.config
    vocab = int(model.config.vocab_size)
    words = ordinary_words(tokenizer, vocab, plan.n_words, config.seed)
    objective = PromptsObjective(
        model, plan, config.sequence, words, config.seed, compiled=config.compile
    )
    facts = {"kind": "prompt-tokens", **asdict(plan)}
    if start is not None:
        loaded = take_over(spec, model, tokenizer, packed=False)
        addon = open_addon(start, PROMPT_TOKENS, loaded)
        facts["start"] = addon.fingerprint
        objective.start_from(addon)
    return _beside(spec, model, tokenizer, objective, job, facts)


def _beside(
    spec: ModelSpec,
    model: Any,
    tokenizer: Any,
    objective: Objective,
    job: Job,
    facts: dict[str, Any],
) -> Training:
    """The training of parts beside a model that stays as it is."""
    facts |= {"model": spec.name, "weight_hash": weight_fingerprint(model)}
    return Training(objective.to(next(model.parameters()).device), model, tokenizer, job, facts)


def layerskip(spec: ModelSpec, recipe: Recipe, job: Job, *, fit: bool = False) -> Training:
    """The recipe on a model that exists: continual pretraining or finetuning.

    With `fit` a rotation that is too long for the model is shortened; else it is refused.
    """
    model, tokenizer = _load(spec)
    facts = {"kind": "layerskip", "model": spec.name, "weight_hash": weight_fingerprint(model)}
    return _layerskip(model, tokenizer, recipe, job, facts, fit=fit)


def layerskip_from_scratch(
    shape: Shape, device: str, recipe: Recipe, job: Job, *, fit: bool = False
) -> Training:
    """The recipe on a new Llama of this shape, with a tokenizer trained on the same text."""
    tokenizer = trained_tokenizer(job.text, shape.vocab, shape.context)
    model = new_model(shape, job.config.seed).to(resolve_device(device))
    facts = {"kind": "layerskip", "shape": asdict(shape)}
    return _layerskip(model, tokenizer, recipe, job, facts, fit=fit)


def _layerskip(
    model: Any, tokenizer: Any, recipe: Recipe, job: Job, facts: dict[str, Any], *, fit: bool
) -> Training:
    # Trained in float32; mixed precision is the accelerator's business.
    model = model.float().train().requires_grad_(True)
    config = job.config
    if fit:
        recipe = fitted(recipe, int(model.config.num_hidden_layers))
    facts["recipe"] = asdict(recipe)
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


def saved_dtype(name: str) -> torch.dtype:
    """The type of that name; one that does not exist is refused before the training."""
    if name not in DTYPES:
        raise ConfigError(f"--save-dtype {name!r}: use {', '.join(DTYPES)}")
    return DTYPES[name]


def save_model(
    objective: LayerSkipObjective, tokenizer: Any, out: Path, dtype: torch.dtype
) -> None:
    """Write an ordinary transformers folder."""
    objective.model.to(dtype).save_pretrained(out)
    tokenizer.save_pretrained(out)
    objective.model.float()  # what is measured from here on are the weights that were saved
