"""The decoding loop: prefill, then one step after another until a limit is reached.

Every step ends by reading its token, which is the only point where host and device meet;
the clock is read there and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ppdbench.bench.clock import Clock
from ppdbench.decoding.limits import Finish, Limits
from ppdbench.engine.session import Session
from ppdbench.errors import NumericalError


@dataclass(frozen=True, slots=True)
class Decoded:
    """One output and how it came about.

    The prefill yields the first token and each step `1 + accepted` more, so
    `len(output_ids) == 1 + sum(accepted) + len(accepted)`, less what the last step
    committed beyond a limit.
    """

    output_ids: tuple[int, ...]
    proposed: tuple[int, ...]
    accepted: tuple[int, ...]
    prefill_ms: float
    step_ms: tuple[float, ...]
    finish: Finish


@torch.inference_mode()
def autoregressive(
    session: Session, prompt_ids: list[int], limits: Limits, clock: Clock
) -> Decoded:
    """Plain greedy decoding: the reference every other strategy is compared with."""
    session.reset(prompt_ids)
    clock.synchronize()
    before = clock.now()
    logits = session.prefill()
    token = logits.argmax(-1)
    output = [int(token)]
    after = clock.now()
    prefill_ms, step_ms = 1e3 * (after - before), []
    session.tokens.append(output[-1])
    # Collected, not read: a NaN anywhere in the logits is what argmax picks.
    peaks = [logits.amax()]
    while (finish := limits.finish(output)) is None:
        before = clock.now()
        logits = session.advance(token)
        token = logits.argmax(-1)
        output.append(int(token))
        step_ms.append(1e3 * (clock.now() - before))
        session.tokens.append(output[-1])
        peaks.append(logits.amax())
    try:
        check_finite(torch.stack(peaks), session.model.n_layers)
    except NumericalError:
        session.cache.wipe()
        raise
    none = (0,) * len(step_ms)
    return Decoded(tuple(output), none, none, prefill_ms, tuple(step_ms), finish)


def check_finite(peaks: torch.Tensor, layer: int) -> None:
    """Refuse outputs that came from NaN or infinite logits."""
    if not bool(torch.isfinite(peaks).all()):
        position = int((~torch.isfinite(peaks)).nonzero()[0, 0]) + 1
        raise NumericalError(
            f"NaN or infinite logits after layer {layer} at output position {position}; "
            "try --dtype float32 or check the weights"
        )
