"""The training loop: steps, schedule, log, checkpoints, exact resume. `accelerate` underneath.

A step's data and its random draws follow from the seed and the step's number, so a run that
was killed goes on from its last checkpoint with the losses it would have had.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.errors import ConfigError, DataError, Interrupted, NumericalError
from ppdbench.training.text import Blocks
from ppdbench.workload import Report

SCHEDULES = ("cosine", "constant")
PRECISIONS = ("no", "bf16", "fp16")
LOG, STATE = "train.jsonl", "training.json"
CHECKPOINTS = "checkpoints"
KEEP = 2  # the newest one may be the one that was being written


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How to train, whatever is trained.

    `phases` are equal shares of the steps that each have the learning rate's whole course.
    """

    steps: int
    phases: int = 1
    batch_size: int = 128
    micro_batch: int | None = None
    sequence: int = 2048
    learning_rate: float = 2e-5
    schedule: str = "cosine"
    warmup_ratio: float = 0.04
    weight_decay: float = 0.0
    beta2: float = 0.999
    clip: float | None = None
    seed: int = 0
    precision: str = "no"
    compile: bool = False
    checkpoint_every: int = 200

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "sequence", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}; use 1 or more")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= self.batch_size:
            raise ConfigError(f"micro_batch={self.micro_batch}; use 1..{self.batch_size}")
        if self.schedule not in SCHEDULES:
            raise ConfigError(f"schedule={self.schedule!r}; use {' or '.join(SCHEDULES)}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision={self.precision!r}; use {', '.join(PRECISIONS)}")
        if not 0 <= self.warmup_ratio <= 1:
            raise ConfigError(f"warmup_ratio={self.warmup_ratio}; use 0..1")
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate={self.learning_rate}; use a value above 0")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip={self.clip}; use a value above 0, or leave it out")

    def rate(self, step: int) -> float:
        """The learning rate of a step: linear warm-up, then a cosine to 0 or a constant."""
        steps = self.steps // self.phases
        step %= steps
        warmup = round(self.warmup_ratio * steps)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        if self.schedule == "constant":
            return self.learning_rate
        done = (step - warmup) / max(1, steps - warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


class Trainer:
    """Trains `objective`, a module that maps (blocks, step, steps) to a dict with its loss."""

    def __init__(
        self, objective: nn.Module, blocks: Blocks, config: TrainConfig, out: Path, facts: Any
    ) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs

        self.config, self.out, self.blocks = config, out, blocks
        # A sample may skip a layer on one process that all samples pass on another.
        kwargs = [DistributedDataParallelKwargs(find_unused_parameters=True)]
        self.accelerator = Accelerator(
            mixed_precision=config.precision,
            cpu=next(objective.parameters()).device.type == "cpu",
            kwargs_handlers=kwargs,
        )
        self.share = self._share()
        self.facts = json.loads(json.dumps({"config": asdict(config), **facts}))
        trained = [p for p in objective.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            trained,
            lr=config.learning_rate,
            betas=(0.9, config.beta2),
            weight_decay=config.weight_decay,
        )
        self.objective, self.optimizer = self.accelerator.prepare(objective, optimizer)
        self.started = 0.0

    def _share(self) -> int:
        processes: int = self.accelerator.num_processes
        if self.config.batch_size % processes:
            raise ConfigError(
                f"batch_size={self.config.batch_size} does not split over {processes} processes"
            )
        return self.config.batch_size // processes

    # Running

    def run(self, *, resume: bool, watch: Report) -> None:
        """Train from the beginning or from the newest checkpoint to the last step."""
        first = self._begin(resume)
        self.objective.train()
        self.started, began = time.perf_counter(), first
        step = first
        try:
            for step in range(first, self.config.steps):
                losses, norm = self._step(step)
                self._log(step, losses, norm, began)
                loss = losses["loss"]
                watch(f"loss {loss:.4f}", step + 1, self.config.steps)
                if (step + 1) % self.config.checkpoint_every == 0:
                    self._checkpoint(step + 1)
        except KeyboardInterrupt:
            # No checkpoint now: the step may be half taken, here or on another process.
            raise Interrupted(
                f"interrupted at step {step}; the last checkpoint is in {self.out}, continue with "
                "--resume"
            ) from None
        if self.config.steps % self.config.checkpoint_every:
            self._checkpoint(self.config.steps)

    def _step(self, step: int) -> tuple[dict[str, float], float | None]:
        """One optimizer step over this process's share of the batch, in micro-batches."""
        config, accelerator = self.config, self.accelerator
        rows = torch.from_numpy(self.blocks.batch(step, config.batch_size))
        mine = rows[accelerator.process_index * self.share :][: self.share]
        pieces = torch.split(mine, config.micro_batch or self.share)
        sums: dict[str, Tensor] = {}
        for number, piece in enumerate(pieces):
            with self._sync(last=number == len(pieces) - 1):
                losses = self.objective(piece.to(accelerator.device), step, config.steps)
                part = len(piece) / self.share
                accelerator.backward(losses["loss"] * part)
            for name, value in losses.items():
                sums[name] = sums.get(name, torch.zeros(())) + part * value.detach().float().cpu()
        found = self._mean_over_processes(sums)
        if not math.isfinite(found["loss"]):
            raise NumericalError(
                f"the loss turned {found['loss']} at step {step}; the last good checkpoint is in "
                f"{self.out / CHECKPOINTS}, try a lower learning rate or clip=1"
            )
        norm = None
        if config.clip is not None:
            norm = float(accelerator.clip_grad_norm_(self.objective.parameters(), config.clip))
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return found, norm

    def _sync(self, *, last: bool) -> Any:
        """Gradients meet once per step, after its last micro-batch."""
        from contextlib import nullcontext

        return nullcontext() if last else self.accelerator.no_sync(self.objective)

    def _mean_over_processes(self, sums: dict[str, Tensor]) -> dict[str, float]:
        if self.accelerator.num_processes == 1:
            return {name: float(value) for name, value in sums.items()}
        names = sorted(sums)
        stacked = torch.stack([sums[n] for n in names]).to(self.accelerator.device)
        means = self.accelerator.reduce(stacked, reduction="mean").tolist()
        return dict(zip(names, means, strict=True))

    # What is written

    def _log(self, step: int, losses: dict[str, float], norm: float | None, began: int) -> None:
        if not self.accelerator.is_main_process:
            return
        config = self.config
        elapsed = time.perf_counter() - self.started
        tokens = config.batch_size * (self.blocks.length - 1)
        line = {
            "step": step,
            **{name: round(value, 6) for name, value in losses.items()},
            "learning_rate": config.rate(step),
            "tokens": (step + 1) * tokens,
            "tokens_per_s": round((step + 1 - began) * tokens / elapsed, 1),
            **({} if norm is None else {"gradient_norm": round(norm, 6)}),
        }
        try:
            with (self.out / LOG).open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
        except OSError as error:
            raise DataError(f"cannot write to {self.out}: {error.strerror}") from error

    def _begin(self, resume: bool) -> int:
        """Prepare the folder; the step to start with."""
        state = self.out / STATE
        there = state.exists()
        # All look before the first one writes.
        self.accelerator.wait_for_everyone()
        if there and not resume:
            raise ConfigError(
                f"{self.out} already holds a training run; use --resume or another --out"
            )
        if resume:
            return self._load()
        if self.accelerator.is_main_process:
            try:
                self.out.mkdir(parents=True, exist_ok=True)
                state.write_text(json.dumps(self.facts, indent=2) + "\n", "utf-8")
            except OSError as error:
                raise ConfigError(f"cannot write to {self.out}: {error.strerror}") from error
        self.accelerator.wait_for_everyone()
        return 0

    def _load(self) -> int:
        try:
            stored = json.loads((self.out / STATE).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.out} holds no training run, so nothing to resume") from error
        differing = sorted(n for n in self.facts if stored.get(n) != self.facts[n])
        if differing:
            raise ConfigError(
                f"cannot resume: {', '.join(differing)} differs from the stored run; repeat its "
                "options or choose another --out"
            )
        newest = max(self._checkpoints(), default=0)
        if newest:
            self.accelerator.load_state(str(self._folder(newest)))
        if self.accelerator.is_main_process:
            self._cut_log(newest)
        self.accelerator.wait_for_everyone()
        return newest

    def _cut_log(self, step: int) -> None:
        """Forget logged steps that the checkpoint has not seen; they are run again."""
        path = self.out / LOG
        if path.exists():
            whole = [line for line in path.read_text("utf-8").splitlines() if line.endswith("}")]
            kept = [line for line in whole if json.loads(line)["step"] < step]
            path.write_text("".join(f"{line}\n" for line in kept), "utf-8")

    def _folder(self, step: int) -> Path:
        return self.out / CHECKPOINTS / f"step-{step:08d}"

    def _checkpoints(self) -> list[int]:
        found = (self.out / CHECKPOINTS).glob("step-????????")
        return sorted(int(path.name.removeprefix("step-")) for path in found)

    def _checkpoint(self, step: int) -> None:
        """Write everything that a resumed run needs; it counts once it has its name."""
        if step in self._checkpoints() or not step:
            return
        folder = self._folder(step)
        partial = folder.with_name("writing")
        if self.accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            self.accelerator.save_state(str(partial))
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"cannot write a checkpoint to {self.out}: {' '.join(str(error).split())[:200]}; "
                "the last good one is kept"
            ) from error
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            partial.replace(folder)
            for old in self._checkpoints()[:-KEEP]:
                shutil.rmtree(self._folder(old))
        self.accelerator.wait_for_everyone()

    def trained(self) -> Any:
        """The objective without what distribution wraps around it."""
        return self.accelerator.unwrap_model(self.objective)
