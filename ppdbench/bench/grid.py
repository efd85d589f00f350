"""The grid of a sweep: every combination of some values of a method's options.

The temperature may be one of them, though it is no option of a method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from ppdbench.errors import ConfigError
from ppdbench.methods import method
from ppdbench.methods.base import Method, Strategy, option_values

TEMPERATURE = "temperature"
LENGTHS = ("draft_length", "max_draft")  # options that say how many tokens are drafted at most
COUNTS = (*LENGTHS, "k")  # options of which 0 is no value of a grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid over some options of one method; `fixed` ones are the same in all cells."""

    method: str
    axes: Mapping[str, tuple[str, ...]]
    fixed: Mapping[str, str]

    @classmethod
    def parse(cls, name: str, grid: tuple[str, ...], pairs: tuple[str, ...]) -> Grid:
        """Read words such as `exit_layer=2,4,6`, and `key=value` for what stays."""
        axes = {key: tuple(values.split(",")) for key, values in option_values(grid).items()}
        fixed = option_values(pairs)
        if not axes:
            raise ConfigError(
                "a sweep needs an option with values to try: --grid KEY=VALUE,VALUE; "
                f"`ppdbench list methods {name}` shows the options"
            )
        both = sorted(axes.keys() & fixed.keys())
        if both:
            raise ConfigError(f"{both[0]} is given by both --grid and --set; leave one out")
        return cls(method=name, axes=axes, fixed=fixed)

    def cells(self) -> dict[str, dict[str, str]]:
        """The options of each cell, under a label that names what varies."""
        return {
            label: {**self.fixed, **{k: v for k, v in varied.items() if k != TEMPERATURE}}
            for label, varied in self._varied()
        }

    def temperatures(self) -> dict[str, float]:
        """The temperature of each cell by its label, where the grid is over temperatures."""
        if TEMPERATURE not in self.axes:
            return {}
        return {label: _temperature(varied[TEMPERATURE]) for label, varied in self._varied()}

    def _varied(self) -> Iterator[tuple[str, dict[str, str]]]:
        for values in product(*self.axes.values()):
            varied = dict(zip(self.axes, values, strict=True))
            pairs = ",".join(f"{key}={value}" for key, value in varied.items())
            yield f"{self.method}:{pairs}", varied

    def build(self, model: str = "") -> dict[str, tuple[Method, Strategy]]:
        """The strategy of each cell for `model`, or an error that says what is wrong with one."""
        found = method(self.method)
        for name, values in self.axes.items():
            read = [_temperature(v) if name == TEMPERATURE else found.read(name, v) for v in values]
            twice = next((v for v, r in zip(values, read, strict=True) if read.count(r) > 1), None)
            if twice is not None:
                raise ConfigError(f"--grid {name} has the value {twice} twice; give each once")
            if name in COUNTS and 0 in read:
                raise ConfigError(
                    f"--grid {name}=0; use 1 or more: 0 leaves the choice to the method"
                )
        cells = self.cells().items()
        return {label: (found, found.build(options, model)) for label, options in cells}


def _temperature(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--grid {TEMPERATURE}={text}: use numbers such as 0.3,0.6,1") from None
