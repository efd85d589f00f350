"""The forms that Predictive Pipelined Decoding comes in, ready to decode prompt after prompt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request
from ppdbench.engine.session import Session
from ppdbench.machine.cores import confined, share_out, threads_per_unit
from ppdbench.methods.ppd import ranks
from ppdbench.methods.ppd.config import PipelineConfig
from ppdbench.methods.ppd.decode import LocalUpperHalf, UpperHalf, decode_pipelined
from ppdbench.methods.ppd.log import UnitLog
from ppdbench.methods.ppd.replicated import REPLICA_ROWS, MainProcess, Replicas
from ppdbench.methods.ppd.split import UpperUnit
from ppdbench.methods.ppd.times import layer_times
from ppdbench.methods.ppd.units import LowerLayers, UpperLayers


class Form(Decoder):
    """The base of all forms: its part of the cores for this process, and what reports need."""

    name: str
    knows_text = False
    alone = "its units share the cores and the work on one sequence"
    has_candidates = True
    """True if this process itself runs the first layers for candidates."""

    def __init__(self, config: PipelineConfig, units: int) -> None:
        if units > 1 and ranks.world() > 1:
            ranks.check_world(self.name, units)
        self.config, self.rows, self.units = config, config.k, units
        self.trees = config.k > 1
        self.threads = threads_per_unit(units)
        self._cores = share_out(units, self.threads)
        self._started = ExitStack()

    def begin(self) -> None:
        """Measure the parts and start the other units, which have the model as it is now."""
        config = self.config
        # After all candidates at once, while their token is on its way; else after that alone.
        read = config.k if self.has_candidates and config.in_the_middle else 1
        with confined(self._cores[0], self.threads):
            times = layer_times(
                *(config.target.staged, config.capacity, config.exit_after, config.k),
                head=config.early_head(),
                read=read,
            )
        self.facts = {
            **self.facts,
            "form": self.name,
            "n_layers": config.target.staged.n_layers,
            "exit_after": config.exit_after,
            "k": config.k,
            "units": self.units,
            "threads_per_unit": self.threads,
            "layer_times": times,
            "weight_bytes_per_unit": self._begin(),
        }

    def _begin(self) -> list[int]:
        """Start the other units; the weights that each unit needs, in bytes."""
        raise NotImplementedError

    @contextmanager
    def _halves(
        self, session: Session, request: Request
    ) -> Iterator[tuple[LowerLayers, UpperHalf]]:
        """Set up both halves of the model for one output."""
        raise NotImplementedError

    def decode(self, session: Session, request: Request) -> Decoded:
        """Decode one output."""
        clock = request.clock
        began = clock.now()
        with (
            confined(self._cores[0], self.threads),
            self._halves(session, request) as (lower, upper),
        ):
            ready = clock.now()
            decoded = decode_pipelined(lower, upper, request)
            done = clock.now()
        around_ms = 1e3 * (ready - began + clock.now() - done)
        return replace(decoded, aside_ms=decoded.aside_ms + around_ms)

    def close(self) -> None:
        """End the other units."""
        self._started.close()


class Inline(Form):
    """One process does everything, one thing after the other: tokens and matches, no gain.

    Its latency is what theory and this machine's layer times make of the matches.
    """

    name = "inline"

    def __init__(self, config: PipelineConfig) -> None:
        super().__init__(config, units=1)

    def _begin(self) -> list[int]:
        return [self.config.target.staged.weight_bytes() + self.config.head_bytes]

    @contextmanager
    def _halves(
        self, session: Session, request: Request
    ) -> Iterator[tuple[LowerLayers, UpperHalf]]:
        config, log = self.config, UnitLog("main")
        upper = LocalUpperHalf(UpperLayers(session, config.exit_after, request.chooser), log)
        yield LowerLayers(session, config.exit_after, config.k, log, config.early_head()), upper


class Split(Form):
    """Unit A, in this process, has the layers up to the exit; unit B those after it."""

    name = "split"

    def __init__(self, config: PipelineConfig) -> None:
        super().__init__(config, units=2)

    def _begin(self) -> list[int]:
        config = self.config
        self._upper = UpperUnit(config, self.threads, self._cores[1])
        self._started.callback(self._upper.close)
        lower = config.target.staged.part_bytes(range(config.exit_after)) + config.head_bytes
        return [lower, self._upper.weight_bytes]

    @contextmanager
    def _halves(
        self, session: Session, request: Request
    ) -> Iterator[tuple[LowerLayers, UpperHalf]]:
        config = self.config
        with self._upper.output(session, len(request.prompt), request.chooser) as upper:
            yield (
                LowerLayers(
                    session, config.exit_after, config.k, UnitLog("A"), config.early_head()
                ),
                upper,
            )


class Replicated(Form):
    """The paper's form: this process and one whole replica of the model per candidate."""

    name = "replicated"
    has_candidates = False

    def __init__(self, config: PipelineConfig) -> None:
        super().__init__(config, units=1 + config.k)
        self.rows = REPLICA_ROWS

    def _begin(self) -> list[int]:
        self._replicas = Replicas(self.config, self.threads, self._cores[1:])
        self._started.callback(self._replicas.close)
        main = self.config.target.staged.weight_bytes() + self.config.head_bytes
        return [main, *self._replicas.weight_bytes]

    @contextmanager
    def _halves(
        self, session: Session, request: Request
    ) -> Iterator[tuple[LowerLayers, UpperHalf]]:
        config, log = self.config, UnitLog("main")
        upper = LocalUpperHalf(UpperLayers(session, config.exit_after, request.chooser), log)
        with self._replicas.output(session, request.prompt) as links:
            yield MainProcess(session, config.exit_after, links, log, config.early_head()), upper


FORMS: dict[str, type[Inline] | type[Split] | type[Replicated]] = {
    form.name: form for form in (Inline, Split, Replicated)
}
