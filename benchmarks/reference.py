"""From the folders that `make reference` trains in to the model inside the package.

    python -m benchmarks.reference assemble WORK    copy what ships into ppdbench/reference/
    python -m benchmarks.reference addons WORK [MODEL]   the same for what was trained beside it,
                                                         or beside another model of the package
    python -m benchmarks.reference texts FILE       the builtin prompts, which its datastore is of
    python -m benchmarks.reference measure          how it speaks: loops, continuations

What is copied is what was trained; only two facts in config.json are changed: the type that
the weights are run in by default (stored in half the space, run in float32) and the longest
sequence (the longest it was trained on).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

from ppdbench.decoding.decoder import Request
from ppdbench.files.resources import PACKAGE, trained_part

HOME = PACKAGE / "reference"
MODEL = ("config.json", "generation_config.json", "model.safetensors")
WORDS = ("tokenizer.json", "tokenizer_config.json")
TRAINING = "training.json"
HEADS = ("heads.json", "heads.safetensors", TRAINING)
STAGES = ("skip1", "skip2")  # of the model's training
ADDONS = ("medusa", "hidden-transfer", "prompt-tokens", "eagle")
QUALITY = "quality.json"
ADDON = ("addon.json", "addon.safetensors", QUALITY, "calibration.json", "tree.json")
STORE = "datastore"
TRAINED_POSITIONS = 2048

MEASURED = {"reference": "skip2", "twin": "twin2", "heads": "heads", "draft": "draft"}
SMOOTH = 160_000  # tokens per point of the loss curves

# A loop: the end of an output repeats a cycle of at most CYCLE tokens.
TAIL, CYCLE = 32, 8

PROSE = (
    "It was a dark and stormy night, and",
    "The old man walked slowly down to the river. He",
    "In 1905, the city council decided to",
    "The agency announced on Monday that",
    '"I do not think," said the captain,',
)


def assemble(work: Path) -> None:
    """Copy the trained model, its draft model and its heads into the package."""
    for source, target in (("skip2", HOME), ("draft", HOME / "draft")):
        target.mkdir(parents=True, exist_ok=True)
        for name in (*MODEL, *WORDS):
            shutil.copyfile(work / source / name, target / name)
        config = json.loads((target / "config.json").read_text("utf-8"))
        config["dtype"] = "float32"
        config["max_position_embeddings"] = TRAINED_POSITIONS
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    same = {(HOME / part / "tokenizer.json").read_bytes() for part in ("", "draft")}
    if len(same) != 1:
        raise SystemExit("the draft model has another tokenizer")
    measured = {name: work / run / "quality.json" for name, run in MEASURED.items()}
    quality = {n: json.loads(p.read_text("utf-8")) for n, p in measured.items() if p.is_file()}
    (HOME / "quality.json").write_text(json.dumps(quality, indent=1) + "\n", "utf-8")
    stages = [trained(work / name) for name in STAGES]
    (HOME / TRAINING).write_text(json.dumps(stages, indent=1) + "\n", "utf-8")
    draw_losses(work)
    copy_heads(work, HOME / "heads")
    finish()


def addons(work: Path, model: str = "reference") -> None:
    """Copy the trained add-ons, each with what was measured of it and the tree made from that."""
    for method in ADDONS:
        if not (work / method).is_dir():
            continue
        home = trained_part(model, method)
        home.mkdir(parents=True, exist_ok=True)
        for name in ADDON:
            if (work / method / name).is_file():
                shutil.copyfile(work / method / name, home / name)
        if (work / method / TRAINING).is_file():
            facts = json.dumps(trained(work / method), indent=1)
            (home / TRAINING).write_text(facts + "\n", "utf-8")
    if model != "reference" and (work / "heads").is_dir():
        copy_heads(work, trained_part(model, "heads"))
    if (work / STORE).is_dir():
        shutil.copytree(work / STORE, trained_part(model, STORE), dirs_exist_ok=True)
    finish(trained_part(model, ""))


def texts(file: Path) -> None:
    """All builtin prompts, one document each: text that is ours to ship."""
    from ppdbench.engine.loading import ModelSpec
    from ppdbench.runs.workload import RunConfig, Workload
    from ppdbench.tasks import task_names

    config = RunConfig(
        model=ModelSpec(name="reference", offline=True), tasks=tuple(task_names()), data="builtin"
    )
    prompts = [e.prompt.text for _, examples in Workload.read(config).examples for e in examples]
    file.write_text("\n\n".join("\n".join(filter(None, p.splitlines())) for p in prompts), "utf-8")


def finish(home: Path = HOME) -> None:
    """Everybody may read what ships; say how much it is."""
    for path in home.rglob("*.safetensors"):
        path.chmod(0o644)
    for folder in (home, *(home / part for part in (*ADDONS, "heads", STORE))):
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{folder.relative_to(PACKAGE)}: {size / 1e6:.1f} MB")


def trained(run: Path) -> dict[str, Any]:
    """Return a training's options, less where its files lay on the machine that trained."""
    facts: dict[str, Any] = json.loads((run / TRAINING).read_text("utf-8"))
    for name in ("text", "model"):
        facts.pop(name, None)
    return facts


def copy_heads(work: Path, home: Path) -> None:
    """The heads in half the space; with another model's goes what was measured of them."""
    import torch
    from safetensors.torch import load_file, save_file

    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(work / "heads" / HEADS[0], home / HEADS[0])
    tensors = load_file(work / "heads" / HEADS[1])
    halved = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(halved, home / HEADS[1])
    facts = trained(work / "heads")
    (home / TRAINING).write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    if home != HOME / "heads":  # the embedded model's are told with those of its other parts
        shutil.copyfile(work / "heads" / QUALITY, home / QUALITY)


def draw_losses(work: Path) -> None:
    """The last layer's loss over both stages, with LayerSkip and without."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for name, label in (("skip", "LayerSkip"), ("twin", "without"), ("draft", "draft model")):
        stages = ("draft",) if name == "draft" else (f"{name}1", f"{name}2")
        logs = [work / stage / "train.jsonl" for stage in stages]
        tokens, losses, before = [], [], 0
        for log in filter(Path.is_file, logs):
            lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
            for _, part in groupby(lines, key=lambda line: int(line["tokens"] // SMOOTH)):
                points = list(part)
                tokens.append((before + points[-1]["tokens"]) / 1e6)
                losses.append(mean(line["last"] for line in points))
            before += lines[-1]["tokens"]
        axes.plot(tokens, losses, label=label, linewidth=1.2)
    axes.set(xlabel="million tokens", ylabel="training loss after the last layer", ylim=(3, 6))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(HOME / "loss.png", dpi=110, metadata={"Software": None})


def loops(output: Sequence[int]) -> bool:
    """True if the last TAIL tokens repeat a cycle of at most CYCLE."""
    tail = list(output[-TAIL:])
    if len(tail) < TAIL:
        return False
    return any(tail[n:] == tail[:-n] for n in range(1, CYCLE + 1))


def measure(model: str, new_tokens: int = 128) -> None:
    """The share of outputs that loop on every builtin task, and prose continued greedily."""
    from ppdbench.decoding.limits import Limits
    from ppdbench.decoding.loop import autoregressive
    from ppdbench.engine.loading import ModelSpec, load
    from ppdbench.engine.quiet import quiet
    from ppdbench.engine.session import Session
    from ppdbench.machine.clock import Clock
    from ppdbench.runs.workload import RunConfig, Workload, capacity
    from ppdbench.tasks import task_names

    quiet()
    spec = ModelSpec(name=model, offline=True)
    config = RunConfig(
        model=spec, tasks=tuple(task_names()), data="builtin", max_new_tokens=new_tokens
    )
    loaded = load(spec)
    items = Workload.read(config).encode(loaded)
    session = Session(loaded.staged, capacity(items))
    clock = Clock(loaded.staged.device)
    looping: dict[str, list[bool]] = {}
    for item in items:
        limits = Limits(new_tokens, loaded.eos_ids)
        output = autoregressive(session, Request(item.ids, limits, clock)).output_ids
        looping.setdefault(item.task.name, []).append(loops(output))
    every = [looped for task in looping.values() for looped in task]
    print("| task | outputs | end in a loop |\n| --- | ---: | ---: |")
    for task, found in [*looping.items(), ("all", every)]:
        print(f"| {task} | {len(found)} | {100 * sum(found) / len(found):.0f}% |")
    print()
    for text in PROSE:
        ids = loaded.tokenizer(text, add_special_tokens=False).input_ids
        output = autoregressive(session, Request(ids, Limits(48, loaded.eos_ids), clock)).output_ids
        print(f"> {text}**{loaded.tokenizer.decode(output, skip_special_tokens=True)}**\n")


def main() -> None:
    if sys.argv[1:2] == ["assemble"] and len(sys.argv) == 3:
        assemble(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["addons"] and len(sys.argv) in (3, 4):
        addons(Path(sys.argv[2]), *sys.argv[3:])
    elif sys.argv[1:2] == ["texts"] and len(sys.argv) == 3:
        texts(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["measure"]:
        measure(sys.argv[2] if len(sys.argv) > 2 else "reference")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
