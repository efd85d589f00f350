"""From a plan and a job to a training run; what cannot fit is refused before any weights load."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from ppdbench.engine.footprint import on_meta
from ppdbench.engine.loading import (
    ModelSpec,
    forget_file,
    load_stock,
    load_words,
    outline,
    take_over,
    weight_fingerprint,
)
from ppdbench.engine.shapes import SPECIALS, ModelShape
from ppdbench.engine.synthetic import configuration, wrapped
from ppdbench.errors import ConfigError
from ppdbench.training.memory import FreeRoom, check_parts_fit, held_by
from ppdbench.training.objective import Objective
from ppdbench.training.plans import TrainingPlan
from ppdbench.training.run import Job, Material, Training
from ppdbench.training.text import TextSpec, documents


def training_beside(name: str, plan: TrainingPlan, spec: ModelSpec, job: Job) -> Training:
    """The training of parts beside a model that stays as it is."""
    check_plain(spec)
    empty = outline(spec)
    plan = plan.settled(int(empty.config.get_text_config().num_hidden_layers))
    config, phases = job.config, plan.phases
    job = replace(job, config=replace(config, steps=config.steps * phases, phases=phases))
    material = Material(job, spec.device, partial(load_words, spec))
    _check_fits(empty, plan, material)
    model, tokenizer = load_stock(spec)
    torch.manual_seed(config.seed)
    objective = plan.objective(model, material, compiled=config.compile)
    objective = objective.to(next(model.parameters()).device)
    begun = plan.begin(objective, lambda: take_over(spec, model, tokenizer, packed=False))
    facts = {"kind": name, **plan.facts(objective), **begun, **_facts_of(spec, model)}
    return Training(objective, model, tokenizer, job, facts)


def training_of_whole(name: str, plan: TrainingPlan, spec: ModelSpec, job: Job) -> Training:
    """The training of a model that exists: continual pretraining or finetuning."""
    check_plain(spec)
    material = Material(job, spec.device, partial(load_words, spec))
    _check_fits(outline(spec).float(), plan, material)
    model, tokenizer = load_stock(spec)
    facts = _facts_of(spec, model)
    forget_file(model)  # its weights are about to change
    return _whole(name, plan, model, tokenizer, material, facts)


def training_from_scratch(
    name: str, plan: TrainingPlan, shape: ModelShape, device: str, job: Job
) -> Training:
    """The training of a new Llama of this shape, with a tokenizer trained on the same text."""

    def find_words() -> tuple[Any, int]:
        return trained_tokenizer(job.text, shape.vocab, shape.context), shape.vocab

    material = Material(job, device, find_words)
    _check_fits(on_meta(configuration(shape), torch.float32), plan, material)
    tokenizer, _ = material.words
    model = new_model(shape, job.config.seed).to(material.device)
    return _whole(name, plan, model, tokenizer, material, {"shape": asdict(shape)})


def _whole(
    name: str,
    plan: TrainingPlan,
    model: Any,
    tokenizer: Any,
    material: Material,
    facts: dict[str, Any],
) -> Training:
    # Trained in float32; mixed precision is the accelerator's business.
    model = model.float().train().requires_grad_(True)
    job = material.job
    torch.manual_seed(job.config.seed)  # for dropout of the model's own, where it has any
    objective = plan.objective(model, material, compiled=job.config.compile)
    facts = {"kind": name, **facts, **plan.facts(objective)}
    return Training(objective, model, tokenizer, job, facts)


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


def _facts_of(spec: ModelSpec, model: Any) -> dict[str, Any]:
    dtype = str(model.dtype).removeprefix("torch.")
    return {"model": spec.name, "weight_hash": weight_fingerprint(model), "dtype": dtype}


def _check_fits(empty: Any, plan: TrainingPlan, material: Material) -> None:
    """`empty` is the model without weights, and so is what is made for it here."""
    objective: Objective = plan.objective(empty, material, compiled=False)
    check_parts_fit(held_by(empty, objective), FreeRoom.found(material.device))


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
