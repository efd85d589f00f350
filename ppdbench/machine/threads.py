"""The threads that compute, and who has them: torch, or kernels of our own.

Behind each product or sum that torch shares out, its threads wait awake for more to do, for some
milliseconds. A pass of our kernels that comes meanwhile has the cores with nobody but them: a pass
of 12 ms takes 17 then. So in a loop whose passes are ours torch computes with one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Threads:
    """The number of threads that kernels of our own have, and torch unless they are lent."""

    def __init__(self) -> None:
        self._borrowers = 0  # loops of a batch take turns, so that the first in may be first out
        self._all = 0
        self.cores: tuple[int, ...] = ()
        """The core of each thread that kernels of our own run on, where each has one of its own."""

    @property
    def count(self) -> int:
        """The threads that kernels of our own run on."""
        return self._all if self._borrowers else torch.get_num_threads()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let torch compute with one thread for a while; kernels of our own have all of them."""
        if not self._borrowers:
            self._all = torch.get_num_threads()
            torch.set_num_threads(1)
        self._borrowers += 1
        try:
            yield
        finally:
            self._borrowers -= 1
            if not self._borrowers:
                torch.set_num_threads(self._all)

    @contextmanager
    def returned(self) -> Iterator[None]:
        """Let torch have all of them meanwhile, for a pass that it runs."""
        if not self._borrowers:
            yield
            return
        torch.set_num_threads(self._all)
        try:
            yield
        finally:
            torch.set_num_threads(1)


threads = Threads()
