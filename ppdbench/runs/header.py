"""Run headers: all that a run folder says about itself, enough to repeat the run."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import Any

import msgspec

from ppdbench import __version__
from ppdbench.engine.experts import experts_of_a_layer
from ppdbench.engine.loading import Loaded
from ppdbench.engine.staged import StagedModel
from ppdbench.machine.environment import describe
from ppdbench.runs.records import (
    KINDS,
    SCHEMA_VERSION,
    Chat,
    Environment,
    Header,
    ModelFacts,
    Passes,
)
from ppdbench.runs.workload import RunConfig, Workload


def _kinds(staged: StagedModel) -> tuple[str, ...] | None:
    """The kind of each layer; None where all are of one."""
    kinds = staged.adapter.anatomy.kinds
    return kinds if len(set(kinds)) > 1 else None


def run_header(
    kind: str, config: RunConfig, loaded: Loaded, work: Workload, **parts: Any
) -> Header:
    """The content of `run.json`; `parts` are what this kind of run says besides."""
    staged, file = loaded.staged, loaded.gguf
    chat = config.chat.template(loaded.tokenizer)
    return KINDS[kind].header(
        schema_version=SCHEMA_VERSION,
        kind=kind,
        ppdbench=__version__,
        command=["ppdbench", *sys.argv[1:]],
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        config=msgspec.convert(config, KINDS[kind].settings, from_attributes=True),
        model=ModelFacts(
            name=loaded.spec.name,
            revision=loaded.spec.revision,
            weight_hash=loaded.fingerprint,
            family=staged.model.config.model_type,
            n_layers=staged.n_layers,
            hidden_size=staged.hidden_size,
            vocab_size=staged.vocab_size,
            dtype=staged.precision,
            device=str(staged.device),
            synthetic=loaded.spec.is_synthetic,
            gguf=file.quantization if file else None,
            gguf_weights=file.weights_by_type if file else None,
            adapter=loaded.spec.adapter,
            adapter_hash=loaded.adapter_hash,
            adapter_left_out=loaded.adapter_left_out or None,
            experts=experts_of_a_layer(staged),
            stored_as=loaded.stored_as,
            part_of=loaded.part_of,
            layer_kinds=_kinds(staged),
        ),
        layers=staged.layers_by_place(),
        chat=None
        if chat is None
        else Chat(
            template=chat.fingerprint,
            system=chat.system,
            settings=dict(chat.settings),
            thinking=chat.thinking,
            rendering=chat.rendering(loaded.tokenizer),
        ),
        data=work.sources,
        environment=msgspec.convert(describe(), Environment),
        passes=msgspec.convert(staged.path, Passes, from_attributes=True),
        **parts,
    )
