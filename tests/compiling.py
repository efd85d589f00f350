"""What stands for a compiler in tests: the very functions that it is given, as plain Python."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ppdbench.engine.artefacts import Runner, Traced
from ppdbench.engine.compiled import TracedLayer


def watched(watch: Callable[[str], Callable[[list[Tensor]], object]]) -> Callable[..., Runner]:
    """What makes such runners; what `watch` gives for the name of one sees its inputs."""

    def runner(what: str, make: Callable[[], Traced]) -> Runner:
        run, see = uncompiled(what, make), watch(what)

        def noted(flat: list[Tensor]) -> list[Tensor]:
            see(flat)
            return list(run(flat))

        return noted

    return runner


def uncompiled(what: str, make: Callable[[], Traced]) -> Runner:
    """A runner of the traced module itself."""
    module, _, _ = make()
    first = 7 if isinstance(module, TracedLayer) else 1

    def run(flat: list[Tensor]) -> list[Tensor]:
        out = module(*flat[:first], flat[first:])
        return [out] if isinstance(out, Tensor) else list(out)

    return run
