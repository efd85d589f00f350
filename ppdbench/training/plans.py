"""All that can be trained, by name, and the options of each.

A plan is a frozen dataclass. Its fields are the options of `ppdbench train NAME`, its docstring is
the help of that command, and `objective` makes what is trained. Modules of plans import torch only
inside functions, so that listing what can be trained stays instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ppdbench.errors import ConfigError
from ppdbench.registry import Registry
from ppdbench.registry import option as option

if TYPE_CHECKING:
    from ppdbench.engine.addons import Addon
    from ppdbench.engine.loading import Loaded
    from ppdbench.training.objective import Objective
    from ppdbench.training.run import Material

P = TypeVar("P", bound="TrainingPlan")
C = TypeVar("C", bound="type[TrainingPlan]")

LOSSES = ("ce", "kl")  # of parts that learn from the text, or from the model itself


def check_loss(loss: str) -> None:
    """Refuse a loss of that name."""
    if loss not in LOSSES:
        raise ConfigError(f"--loss {loss!r}: use {' or '.join(LOSSES)}")


def check_decay(decay: float) -> None:
    """Refuse a decay that would not lessen weights, or leave none."""
    if not 0 < decay <= 1:
        raise ConfigError(f"--decay {decay}: use a value above 0, up to 1")


class TrainingPlan:
    """Options of training something beside a model that stays as it is."""

    __slots__ = ()

    def usual(self) -> Mapping[str, Any]:
        """Settings of the steps where the command line leaves them open, by option."""
        return {}

    @property
    def phases(self) -> int:
        """The number of parts trained one after another, each for all steps asked for."""
        return 1

    def settled(self: P, n_layers: int) -> P:
        """The plan for a model of so many layers; refuses those that it does not fit."""
        return self

    def objective(self, model: Any, material: Material, *, compiled: bool) -> Objective:
        """A new objective around `model`, which may be one without weights."""
        raise NotImplementedError

    def begin(self, objective: Any, loaded: Callable[[], Loaded]) -> dict[str, Any]:
        """Fill a new objective with what was trained before; facts about that."""
        return {}

    def facts(self, objective: Any) -> dict[str, Any]:
        """Settings for the record of the run; those of a run to resume must be the same."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def notes(self, objective: Any) -> Sequence[str]:
        """Lines to tell before the training."""
        return ()


class GoingOn(TrainingPlan):
    """Options of training what may go on from an add-on of its `method`: the folder `start`."""

    __slots__ = ()
    method: ClassVar[str]
    start: str | None

    def begin(self, objective: Any, loaded: Callable[[], Loaded]) -> dict[str, Any]:
        if self.start is None:
            return {}
        from ppdbench.engine.addons import open_addon

        addon = open_addon(self.start, self.method, loaded())
        fingerprint = addon.fingerprint
        objective.start_from(addon)
        return {"start": fingerprint}

    def facts(self, objective: Any) -> dict[str, Any]:
        """All but where it starts from; what lies there says who it is."""
        settings = super().facts(objective)
        del settings["start"]
        return settings


def check_alike(addon: Addon, settings: Mapping[str, tuple[object, object]]) -> None:
    """Refuse an add-on to go on from that was made otherwise: by option, what it has and ours."""
    for name, (found, asked) in settings.items():
        if found == asked:
            continue
        option = f"--{name.replace('_', '-')}"
        if found is None:
            raise ConfigError(f"--start {addon.folder}: made without {option}; leave it out")
        instead = "" if asked is None else f", not {asked}"
        raise ConfigError(
            f"--start {addon.folder}: made with {option} {found}{instead}; give {option} {found}"
        )


class WholePlan(TrainingPlan):
    """Options of training a model itself: one that exists, or a new one of a `shape`."""

    __slots__ = ()
    shape: str | None

    def scored_with(self, n_layers: int) -> Sequence[str]:
        """The methods that score the trained model on tasks, as typed for `bench`."""
        return ("greedy",)


@dataclass(frozen=True, slots=True)
class Trainable:
    """A registered plan.

    `usual` are settings of the steps that its command has as defaults; `save_dtype` says that
    the type of what is saved can be chosen, `of_states` that only states of a frozen model are
    read, which can be kept.
    """

    name: str
    plan: type[TrainingPlan]
    usual: Mapping[str, Any]
    save_dtype: bool
    of_states: bool

    @property
    def whole(self) -> bool:
        """True if it is the model itself that is trained."""
        return issubclass(self.plan, WholePlan)


TRAINABLES: Registry[Trainable] = Registry("kind of training")


def training_plan(
    name: str, *, save_dtype: bool = True, of_states: bool = False, **usual: Any
) -> Callable[[C], C]:
    """Register a frozen dataclass as the options of `ppdbench train NAME`."""

    def register(plan: C) -> C:
        settings = MappingProxyType(usual)
        TRAINABLES.add(name, Trainable(name, plan, settings, save_dtype, of_states))
        return plan

    return register
