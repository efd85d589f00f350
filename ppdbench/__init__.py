"""Match rates and speedups of exact LLM decoding, with every output checked against greedy.

`load`, `probe`, `decode`, `bench` and `read` are there for notebooks and scripts, see
`ppdbench.api`; nothing heavy is imported before one of them is asked for.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"
__all__ = ["Model", "PpdbenchError", "Result", "bench", "decode", "load", "probe", "read"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ppdbench.api"), name)


class Verb(ModuleType):
    """A package that can be called like the function of its name: `ppdbench.bench(...)`.

    Once it is imported, it stands in that function's place.
    """

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function()(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def _function(self) -> Any:
        return getattr(import_module("ppdbench.api"), self.__name__.rpartition(".")[2])
