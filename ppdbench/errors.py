"""The errors that this package raises on purpose, and how messages count.

PpdbenchError
├── ConfigError           an option, a file or a combination of them that cannot work
│   └── UnknownName       a name that no registry holds
├── DataError             a data set, a prompt or a run folder that cannot be used
├── UnsupportedModel      a model family, shape or file this package does not run
├── NumericalError        NaN or infinity where a number was needed
├── ExactnessError        the engine does not compute what the stock model does
├── DraftError            a strategy proposed what no pass could verify
├── UnitError             a process that computes a part of the model died, hung or failed
└── Interrupted           stopped from outside, with everything finished so far kept

Each message says what was wrong, what is allowed and what to try, in one line.
The command line turns them into that line and an exit code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches

LIKE, OF_BEST = 0.5, 0.8  # how like names are that are offered; and as part of the nearest one


class PpdbenchError(Exception):
    """Root of the errors a user can cause or cure."""

    exit_code = 2


class ConfigError(PpdbenchError):
    """An option, a configuration file or a combination of them cannot work."""


class UnknownName(ConfigError):
    """A name that is not registered; the message offers the near ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = _near(name, names)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}")


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Up to three names that may have been meant: none that is far less like it than the first."""
    near = get_close_matches(name, names, n=3, cutoff=LIKE)
    if not near:
        return []
    best = SequenceMatcher(None, near[0], name).ratio()
    return get_close_matches(name, near, n=3, cutoff=max(LIKE, OF_BEST * best))


class DataError(PpdbenchError):
    """A data set, a prompt or a run folder cannot be used as it is."""


class UnsupportedModel(PpdbenchError):
    """The model's family, shape or files are not something this package runs."""


class NumericalError(PpdbenchError):
    """NaN or infinity where a number was needed."""


class ExactnessError(PpdbenchError):
    """The engine does not compute what the stock model does: no number of this run would hold."""

    exit_code = 1


class DraftError(PpdbenchError):
    """A strategy proposed something that no pass could verify."""


class UnitError(PpdbenchError):
    """A process that computes a part of the model died, hung or failed: the run cannot go on."""


class Interrupted(PpdbenchError):
    """Stopped from outside; what was finished is kept."""

    exit_code = 130


class PpdbenchWarning(UserWarning):
    """Something that a user should know of, and that runs all the same; one line."""


def one_line(error: BaseException, most: int | None = 200) -> str:
    """The first so many characters of what an error of another library says, on one line."""
    return " ".join(str(error).split())[:most]


def counted(n: int, what: str) -> str:
    """Return a number and what there is of it, as messages say it: `1 example`, `2 examples`."""
    return f"{n} {what}{'s' * (n != 1)}"
