"""The training loop: steps, schedule, log, checkpoints, exact resume. `accelerate` underneath.

A step's data and its random draws follow from the seed and the step's number, so a run that
was killed goes on from its last checkpoint with the losses it would have had.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ppdbench.errors import ConfigError, DataError, Interrupted, NumericalError, one_line
from ppdbench.files.lock import writing_to, written_alone
from ppdbench.files.whole import write_whole
from ppdbench.machine.freed import Scattered
from ppdbench.runs.workload import Report
from ppdbench.training.marks import learned_places
from ppdbench.training.record import read_log, read_state
from ppdbench.training.text import TokenBlocks

SCHEDULES = ("cosine", "constant")
PRECISIONS = ("no", "bf16", "fp16")
LOG, STATE = "train.jsonl", "training.json"
CHECKPOINTS = "checkpoints"
# Beyond these a typing error would cost hours or all memory before anybody noticed.
MOST = {"steps": 10**9, "batch_size": 1 << 16, "sequence": 1 << 20}
STATES_KEPT = "states_kept"  # in STATE, whether states of the model lie on disk
KEEP = 2  # the newest one may be the one that was being written
BROKEN = "stopped"  # in STATE, why a run cannot go on as it was
MENDING = ("learning_rate", "clip")  # what may be changed then
UNTOLD = ("dtype", "of_state", STATES_KEPT)  # facts that earlier versions did not write down


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The options of training, whatever is trained.

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
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise ConfigError(f"{name}={getattr(self, name)}; use {most} or less")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= self.batch_size:
            raise ConfigError(f"micro_batch={self.micro_batch}; use 1..{self.batch_size}")
        if self.schedule not in SCHEDULES:
            raise ConfigError(f"schedule={self.schedule!r}; use {' or '.join(SCHEDULES)}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision={self.precision!r}; use {', '.join(PRECISIONS)}")
        if not 0 <= self.warmup_ratio <= 1:
            raise ConfigError(f"warmup_ratio={self.warmup_ratio}; use 0..1")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate={self.learning_rate}; use a value above 0")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay={self.weight_decay}; use 0 or more")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip={self.clip}; use a value above 0, or leave it out")
        if not 0 <= self.beta2 < 1:
            raise ConfigError(f"beta2={self.beta2}; use a value from 0 up to, not including, 1")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}; use 0 or more")

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
        self, objective: nn.Module, blocks: TokenBlocks, config: TrainConfig, out: Path, facts: Any
    ) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs

        self.config, self.out, self.blocks = config, out, blocks
        on_cpu = next(objective.parameters()).device.type == "cpu"
        if config.precision == "fp16" and on_cpu:
            raise ConfigError("--precision fp16 needs a GPU; use bf16 or no")
        # A sample may skip a layer on one process that all samples pass on another.
        kwargs = [DistributedDataParallelKwargs(find_unused_parameters=True)]
        self.accelerator = Accelerator(
            mixed_precision=config.precision,
            cpu=on_cpu,
            kwargs_handlers=kwargs,
        )
        self.share = self._share()
        # How many samples a process draws for at once decides what it draws.
        about = {"config": asdict(config), "processes": self.accelerator.num_processes, **facts}
        self.facts = json.loads(json.dumps(about))
        trained = [p for p in objective.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            trained,
            lr=config.learning_rate,
            betas=(0.9, config.beta2),
            weight_decay=config.weight_decay,
            fused=True,  # one pass over weights, gradients and moments instead of one per operation
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
        writes = self.accelerator.is_main_process
        with written_alone(self.out) if writes else nullcontext():
            self._run(resume=resume, watch=watch)

    def _run(self, *, resume: bool, watch: Report) -> None:
        first = self._begin(resume)
        self.objective.train()
        self.started, began = time.perf_counter(), first
        step, kept = first, Scattered()
        try:
            for step in range(first, self.config.steps):
                losses, norm = self._step(step)
                kept.look()
                self._log(step, losses, norm, began)
                loss, rate = losses["loss"], self._tokens_per_s(step, began)
                watch(f"loss {loss:.4f}, {rate:,.0f} tokens/s", step + 1, self.config.steps)
                if (step + 1) % self.config.checkpoint_every == 0:
                    self._checkpoint(step + 1)
        except KeyboardInterrupt:
            # No checkpoint now: the step may be half taken, here or on another process.
            newest = max(self._checkpoints(), default=0)
            where = (
                f"the last checkpoint, of step {newest}, is in {self.out}, continue with --resume"
                if newest
                else f"no checkpoint was due yet (--checkpoint-every "
                f"{self.config.checkpoint_every}), --resume begins again"
            )
            raise Interrupted(f"interrupted at step {step}; {where}") from None
        if self.config.steps % self.config.checkpoint_every:
            self._checkpoint(self.config.steps)

    def _step(self, step: int) -> tuple[dict[str, float], float | None]:
        """One optimizer step over this process's share of the batch, in micro-batches."""
        config, accelerator = self.config, self.accelerator
        rows = torch.from_numpy(self.blocks.batch(step, config.batch_size))
        # A place weighs the same in each piece and process; what processes have is averaged.
        places = learned_places(rows).double()
        weights = places * accelerator.num_processes / places.sum().clamp(min=1)
        pieces, shares = map(self._pieces, (rows, weights))
        sums: dict[str, Tensor] = {}
        done = 0
        for number, (piece, weight) in enumerate(zip(pieces, shares, strict=True)):
            self.trained().first_row, done = done, done + len(piece)
            with self._sync(last=number == len(pieces) - 1):
                losses = self.objective(piece.to(accelerator.device), step, config.steps)
                part = float(weight.sum())
                accelerator.backward(losses["loss"] * part)
            for name, value in losses.items():
                sums[name] = sums.get(name, torch.zeros(())) + part * value.detach().float().cpu()
        found = self._mean_over_processes(sums)
        if not math.isfinite(found["loss"]):
            raise self._broken(step, f"the loss turned {found['loss']}")
        norm = None
        if config.clip is not None:
            norm = float(accelerator.clip_grad_norm_(self.objective.parameters(), config.clip))
        fine = _finite(p.grad for p in self._parameters()) if norm is None else math.isfinite(norm)
        # A scaler skips such a step by itself.
        if accelerator.scaler is None and not fine:
            raise self._broken(step, "a gradient is no number any more")
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return found, norm

    def _pieces(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Split what there is of each sequence of a batch: our share, by micro-batches."""
        ours = rows[self.accelerator.process_index * self.share :][: self.share]
        return torch.split(ours, self.config.micro_batch or self.share)

    def _parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that are trained."""
        return (p for p in self.trained().parameters() if p.requires_grad)

    def _broken(self, step: int, what: str) -> NumericalError:
        """The error that ends the run, which it can go on from with gentler settings."""
        newest = max(self._checkpoints(), default=0)
        if self.accelerator.is_main_process:
            self._write_state({**self.facts, BROKEN: f"{what} at step {step}"})
        where = f"step {newest} in {self.out / CHECKPOINTS}" if newest else "none yet"
        return NumericalError(
            f"{what} at step {step}; last good checkpoint: {where}; go on from there with "
            "--resume and a lower --learning-rate or --clip 1"
        )

    def _sync(self, *, last: bool) -> Any:
        """Gradients meet once per step, after its last micro-batch."""

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
        line = {
            "step": step,
            **{name: round(value, 6) for name, value in losses.items()},
            "learning_rate": self.config.rate(step),
            "tokens": (step + 1) * self._tokens,
            "tokens_per_s": round(self._tokens_per_s(step, began), 1),
            **({} if norm is None else {"gradient_norm": round(norm, 6)}),
        }
        with writing_to(self.out), (self.out / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    @property
    def _tokens(self) -> int:
        """The tokens of a step."""
        return self.config.batch_size * (self.blocks.length - 1)

    def _tokens_per_s(self, step: int, began: int) -> float:
        """Since this process began."""
        return (step + 1 - began) * self._tokens / (time.perf_counter() - self.started)

    def _write_state(self, facts: Any) -> None:
        write_whole(self.out / STATE, json.dumps(facts, indent=2) + "\n")

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
        # One that was killed while it read its text has nothing to go on from, and begins.
        if resume and (there or self._checkpoints()):
            return self._load()
        if self.accelerator.is_main_process:
            with writing_to(self.out):
                self._write_state(self.facts)
        self.accelerator.wait_for_everyone()
        return 0

    def _load(self) -> int:
        stored = read_state(self.out / STATE)
        # What ended it would end it again.
        spared = MENDING if stored.get(BROKEN) else ()
        differing = sorted(
            name
            for name in {*self.facts, *stored} - {BROKEN}
            if (name in stored or name not in UNTOLD)
            and _without(stored.get(name), spared) != _without(self.facts.get(name), spared)
        )
        if differing:
            what = f"{', '.join(differing)} {'differs' if len(differing) == 1 else 'differ'}"
            raise ConfigError(
                f"cannot resume: {what} from the stored run in {self.out / STATE}; repeat its "
                "options or choose another --out"
            )
        newest = max(self._checkpoints(), default=0)
        if newest:
            self.accelerator.load_state(str(self._folder(newest)))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            self._write_state(self.facts)
            self._cut_log(newest)
        self.accelerator.wait_for_everyone()
        return newest

    def _cut_log(self, step: int) -> None:
        """Forget logged steps that the checkpoint has not seen; they are run again."""
        path = self.out / LOG
        if path.exists():
            kept = [json.dumps(line) for line in read_log(path) if line["step"] < step]
            write_whole(path, "".join(f"{line}\n" for line in kept))

    def _folder(self, step: int) -> Path:
        return self.out / CHECKPOINTS / f"step-{step:08d}"

    def _checkpoints(self) -> list[int]:
        found = (self.out / CHECKPOINTS).glob("step-????????")
        return sorted(int(path.name.removeprefix("step-")) for path in found)

    def _checkpoint(self, step: int) -> None:
        """Write everything that a resumed run needs; it counts once it has its name."""
        if step in self._checkpoints() or not step:
            return
        if not _finite(self._parameters()):
            raise self._broken(step, "a weight is no number any more")
        folder = self._folder(step)
        partial = folder.with_name("writing")
        if self.accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            self.accelerator.save_state(str(partial))
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)  # it may be what filled the disk
            raise DataError(
                f"cannot write a checkpoint to {self.out}: {one_line(error)}; "
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


def _finite(tensors: Iterable[Tensor | None]) -> bool:
    """True if all of them hold nothing but numbers."""
    norm = nn.utils.get_total_norm([tensor for tensor in tensors if tensor is not None])
    return math.isfinite(float(norm.detach()))


def _without(facts: Any, names: Sequence[str]) -> Any:
    """Settings less some of them; everything else as it is."""
    if not isinstance(facts, dict):
        return facts
    return {name: value for name, value in facts.items() if name not in names}
