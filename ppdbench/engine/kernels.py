"""The choice of a GPU's kernels: only those that round as the model's type says, in every pass."""

from __future__ import annotations

import torch


def allow_exact_ones(device: torch.device) -> None:
    """Settle what others may have left switched on in this process.

    float32 products are made of float32, not of TF32 with its 10 bits. cuDNN's attention is
    left out: it plans anew for each length of the keys, which in decoding is every step.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.enable_cudnn_sdp(False)
