"""`train`: from options to a folder that the rest of ppdbench reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from ppdbench.engine.addons import open_addon
from ppdbench.engine.footprint import on_meta
from ppdbench.engine.loading import (
    DTYPES,
    ModelSpec,
    load_depth,
    load_stock,
    load_words,
    outline,
    resolve_device,
    take_over,
    weight_fingerprint,
)
from ppdbench.engine.shapes import SPECIALS, ModelShape
from ppdbench.engine.synthetic import configuration, wrapped
from ppdbench.engine.vocabulary import vocabulary_hash
from ppdbench.errors import ConfigError, NumericalError
from ppdbench.methods.eagle.train import EagleObjective, EaglePlan, commonest
from ppdbench.methods.hidden_transfer.train import TransferObjective, TransferPlan
from ppdbench.methods.layerskip.train import LayerSkipObjective
from ppdbench.methods.medusa.train import MedusaObjective, MedusaPlan
from ppdbench.methods.prompt_tokens.network import METHOD as PROMPT_TOKENS
from ppdbench.methods.prompt_tokens.train import PromptPlan, PromptsObjective, ordinary_words
from ppdbench.runs.workload import Report, silent
from ppdbench.training.evaluate import Quality
from ppdbench.training.heads import HeadsObjective, some_exits
from ppdbench.training.memory import LOW, FreeRoom, MemoryNeed, check_held, held_by, measure_passes
from ppdbench.training.objective import Objective
from ppdbench.training.recipe import Recipe, fitted
from ppdbench.training.text import TextSpec, TokenBlocks, documents, tokenized
from ppdbench.training.trainer import TrainConfig, Trainer

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

    def __post_init__(self) -> None:
        if self.held_out_tokens < 0:
            raise ConfigError(f"--held-out-tokens {self.held_out_tokens}: use 0 (all) or more")


@dataclass(frozen=True, slots=True)
class TrainingPlan:
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
        text = {name: value for name, value in asdict(job.text).items() if name != "offline"}
        words = vocabulary_hash(tokenizer)
        self.facts = {"text": text, "tokens": len(ids), "vocabulary": words, **facts}

    def _tokenized(self, text: TextSpec, name: str) -> npt.NDArray[Any]:
        vocab = int(self.model.config.vocab_size)
        return _tokenized(text, self.tokenizer, vocab, self.processes, self.job.out / name)

    @property
    def is_main(self) -> bool:
        """True if this process is the one that writes and prints."""
        main: bool = self.processes.is_main_process
        return main

    def plan(self) -> TrainingPlan:
        """Counts, memory, and time from a few steps that change nothing on disk."""
        config, blocks, need = self.config, self.blocks, self.need()
        seconds = None if need.short else self._seconds_per_step()
        return TrainingPlan(
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

    def carry_out(self, *, resume: bool, watch: Report) -> Any:
        """Train to the end; the trained objective."""
        if (short := self.need().short) is not None:
            raise ConfigError(short)
        trainer = Trainer(self.objective, self.blocks, self.config, self.job.out, self.facts)
        trainer.run(resume=resume, watch=watch)
        return trainer.trained()

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


def check_plain(spec: ModelSpec) -> None:
    """Refuse weights that cannot be trained, or trained beside."""
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


# Makes what is trained beside a model, or around it, from the model and whether to compile it.
Make = Callable[[Any, bool], Objective]


def _prepared(spec: ModelSpec, job: Job, make: Make) -> tuple[Any, Any, Objective]:
    """Model, tokenizer and what is trained; refused before any weights load if it cannot fit."""
    check_plain(spec)
    _check_fits(outline(spec), make, resolve_device(spec.device))
    model, tokenizer = load_stock(spec)
    torch.manual_seed(job.config.seed)
    objective = make(model, job.config.compile)
    return model, tokenizer, objective.to(next(model.parameters()).device)


def _check_fits(model: Any, make: Make, device: torch.device) -> None:
    """`model` is one without weights, and so is what is made for it here."""
    check_held(held_by(model, make(model, False)), FreeRoom.found(device))


def heads(
    spec: ModelSpec,
    layers: Sequence[int],
    job: Job,
    *,
    loss: str = "ce",
    rank: int | None = None,
    every: bool = False,
) -> Training:
    """Heads for exit `layers` of a frozen model: if none are given a few, or `every` one."""
    chosen: list[int] = []

    def make(model: Any, compiled: bool) -> Objective:
        n_layers = int(model.config.num_hidden_layers)
        chosen[:] = layers or (range(1, n_layers) if every else some_exits(n_layers))
        return HeadsObjective(
            model, chosen, job.config.sequence, loss=loss, rank=rank, compiled=compiled
        )

    model, tokenizer, objective = _prepared(spec, job, make)
    facts = {"kind": "heads", "layers": chosen, "loss": loss, "rank": rank}
    return _beside(spec, model, tokenizer, objective, job, facts)


def medusa(spec: ModelSpec, plan: MedusaPlan, job: Job) -> Training:
    """Medusa heads of a frozen model."""

    def make(model: Any, compiled: bool) -> Objective:
        return MedusaObjective(model, plan, job.config.sequence, compiled=compiled)

    model, tokenizer, objective = _prepared(spec, job, make)
    facts = {"kind": "medusa", **asdict(plan)}
    return _beside(spec, model, tokenizer, objective, job, facts)


def eagle(spec: ModelSpec, plan: EaglePlan, job: Job) -> Training:
    """A draft network of a frozen model; its own vocabulary are the commonest words of the text."""
    config, words = job.config, None
    if plan.draft_vocab:
        tokenizer, vocab = load_words(spec)
        processes = _processes(resolve_device(spec.device))
        ids = _tokenized(job.text, tokenizer, vocab, processes, job.out / TOKENS)
        words = commonest(ids, plan.draft_vocab, vocab)

    def make(model: Any, compiled: bool) -> Objective:
        return EagleObjective(
            model, plan, config.sequence, config.seed, words=words, compiled=compiled
        )

    model, tokenizer, objective = _prepared(spec, job, make)
    facts = {"kind": "eagle", **asdict(plan)}
    return _beside(spec, model, tokenizer, objective, job, facts)


def hidden_transfer(spec: ModelSpec, plan: TransferPlan, job: Job) -> Training:
    """Matrices of a frozen model; steps and epochs of the job are for each of them."""
    plan, config = plan.settled(load_depth(spec)), job.config
    phases = len(plan.jobs)
    job = replace(job, config=replace(config, steps=config.steps * phases, phases=phases))

    def make(model: Any, compiled: bool) -> Objective:
        return TransferObjective(model, plan, config.sequence, compiled=compiled)

    model, tokenizer, objective = _prepared(spec, job, make)
    facts = {"kind": "hidden-transfer", **asdict(plan)}
    return _beside(spec, model, tokenizer, objective, job, facts)


def prompt_tokens(spec: ModelSpec, plan: PromptPlan, job: Job, start: str | None) -> Training:
    """Prompt tokens of a frozen model; `start` is an add-on to go on from."""
    config = job.config
    tokenizer, vocab = load_words(spec)
    words = ordinary_words(tokenizer, vocab, plan.n_words, config.seed)

    def make(model: Any, compiled: bool) -> PromptsObjective:
        return PromptsObjective(model, plan, config.sequence, words, config.seed, compiled=compiled)

    model, tokenizer, objective = _prepared(spec, job, make)
    facts = {"kind": "prompt-tokens", **asdict(plan)}
    if start is not None:
        loaded = take_over(spec, model, tokenizer, packed=False)
        addon = open_addon(start, PROMPT_TOKENS, loaded)
        facts["start"] = addon.fingerprint
        assert isinstance(objective, PromptsObjective)
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
    return Training(objective, model, tokenizer, job, facts)


def layerskip(spec: ModelSpec, recipe: Recipe, job: Job, *, fit: bool = False) -> Training:
    """The recipe on a model that exists: continual pretraining or finetuning.

    With `fit` a rotation that is too long for the model is shortened; else it is refused.
    """
    make = _recipe_on(recipe, job, fit=fit)
    check_plain(spec)
    _check_fits(outline(spec).float(), make, resolve_device(spec.device))
    model, tokenizer = load_stock(spec)
    facts = {"kind": "layerskip", "model": spec.name, "weight_hash": weight_fingerprint(model)}
    return _layerskip(model, tokenizer, make, job, facts)


def layerskip_from_scratch(
    shape: ModelShape, device: str, recipe: Recipe, job: Job, *, fit: bool = False
) -> Training:
    """The recipe on a new Llama of this shape, with a tokenizer trained on the same text."""
    make = _recipe_on(recipe, job, fit=fit)
    _check_fits(on_meta(configuration(shape), torch.float32), make, resolve_device(device))
    tokenizer = trained_tokenizer(job.text, shape.vocab, shape.context)
    model = new_model(shape, job.config.seed).to(resolve_device(device))
    facts = {"kind": "layerskip", "shape": asdict(shape)}
    return _layerskip(model, tokenizer, make, job, facts)


def _recipe_on(recipe: Recipe, job: Job, *, fit: bool) -> Callable[[Any, bool], LayerSkipObjective]:
    def make(model: Any, compiled: bool) -> LayerSkipObjective:
        n_layers = int(model.config.num_hidden_layers)
        chosen = fitted(recipe, n_layers) if fit else recipe
        config = job.config
        return LayerSkipObjective(model, chosen, config.sequence, config.seed, compiled=compiled)

    return make


def _layerskip(
    model: Any,
    tokenizer: Any,
    make: Callable[[Any, bool], LayerSkipObjective],
    job: Job,
    facts: dict[str, Any],
) -> Training:
    # Trained in float32; mixed precision is the accelerator's business.
    model = model.float().train().requires_grad_(True)
    objective = make(model, job.config.compile)
    facts["recipe"] = asdict(objective.recipe)
    return Training(objective, model, tokenizer, job, facts)


def new_model(shape: ModelShape, seed: int) -> Any:
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
