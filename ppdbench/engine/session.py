"""One sequence being decoded: its tokens, its cache rows, forward and back."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from torch import Tensor
from torch.nn.functional import pad

from ppdbench.engine.cache import KVCache
from ppdbench.engine.logit_watch import LogitWatch
from ppdbench.engine.masks import Joined, Step, numbers
from ppdbench.engine.reading import Reading
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.taps import Tap


class Session:
    """Tokens so far and the cache rows behind them; the buffers serve one example after another.

    `tokens` are all known tokens. The cache holds a prefix of them: after `prefill` all,
    during decoding all but the newest. `fixed_rows` makes every pass after the prefill one of
    that many query rows over one key length; callers still hand in and get only theirs.
    `layers` are those that this process runs, all of them unless told. Loops tell `watch`, where
    there is one, which logits chose the tokens of the output. `prompt_ms` is how long
    the pass over the prompt took at least, whatever anybody's clock says.
    """

    def __init__(
        self,
        model: StagedModel,
        capacity: int,
        *,
        spare: int = 0,
        fixed_rows: int | None = None,
        layers: range | None = None,
    ) -> None:
        self.model = model
        self.capacity = capacity
        self.fixed_rows = fixed_rows
        self.cache, self.steps = model.new_cache(
            capacity, layers=layers, spare=spare, fixed_rows=fixed_rows
        )
        self.tokens: list[int] = []
        self.watch: LogitWatch | None = None
        self.prompt_ms = 0.0

    @property
    def cached(self) -> int:
        """The number of tokens that every layer has in its cache."""
        return self.cache.shortest

    def reset(self, prompt_ids: list[int]) -> None:
        """Start over with a prompt; nothing is computed yet."""
        self.tokens = list(prompt_ids)
        self.cache.truncate(0)
        self.prompt_ms = 0.0

    def wipe(self) -> None:
        """Forget the numbers that were written, too: those of a pass that gave NaN."""
        self.cache.wipe()

    def ids(self, tokens: Sequence[int]) -> Tensor:
        """Tokens on the device: [1, n]."""
        return numbers(tokens, self.model.device)

    # Passes over the rows that follow

    def chain(self, n: int, start: int | None = None) -> Step:
        """The pass over the next `n` tokens, from row `start` (the first that is not cached)."""
        return self.steps.chain(self.cached if start is None else start, n)

    def tree(
        self, parents: Sequence[int], start: int | None = None, joined: Sequence[Joined] = ()
    ) -> Step:
        """The pass over a tree that hangs on the rows before `start` (all that are cached).

        `joined` are rows behind it that are no tokens.
        """
        start = self.cached if start is None else start
        return self.steps.tree(start, parents, self.capacity - 1, joined)

    def embed(self, tokens: Tensor, step: Step) -> Tensor:
        """Tokens [1, n] to what layer 0 takes."""
        if not step.idle:
            return self.model.embed(tokens, step)
        n = tokens.shape[1]
        return self.model.embed(pad(tokens, (0, step.idle)), step)[:, :n]

    def run(
        self,
        hidden: Tensor,
        first: int,
        last: int,
        step: Step,
        *,
        tap: Tap | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Layers [first, last) over `hidden` [1, n, hidden].

        Their rows go into another `cache` if that is given.
        """
        n, cache = hidden.shape[1], cache or self.cache
        if not step.idle:
            return self.model.run(hidden, first, last, step, cache, tap=tap)
        seen = None if tap is None else lambda layer, hidden: tap(layer, hidden[:, :n])
        filled = pad(hidden, (0, 0, 0, step.idle))
        return self.model.run(filled, first, last, step, cache, tap=seen)[:, :n]

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head over `hidden` [1, n, hidden], after whichever layer."""
        if self.fixed_rows is None:
            return self.model.logits(hidden)
        return self.model.logits(self._filled(hidden))[:, : hidden.shape[1]]

    def read(self, hidden: Tensor) -> Reading:
        """The same with the likeliest token of each row."""
        if self.fixed_rows is None:
            return self.model.read(hidden)
        return self.model.read(self._filled(hidden)).first(hidden.shape[1])

    def _filled(self, hidden: Tensor) -> Tensor:
        """Hidden states with idle rows behind them, up to the fixed number of rows."""
        idle = max(0, (self.fixed_rows or 0) - hidden.shape[1])
        return pad(hidden, (0, 0, 0, idle)) if idle else hidden

    def forward(
        self, tokens: Tensor, step: Step | None = None, *, tap: Tap | None = None
    ) -> Tensor:
        """Run all layers over `tokens` [1, n], a chain unless told: states [1, n, hidden]."""
        step = self.chain(tokens.shape[1]) if step is None else step
        return self.run(self.embed(tokens, step), 0, self.model.n_layers, step, tap=tap)

    def run_and_read(
        self, tokens: Sequence[int], step: Step | None = None, *, tap: Tap | None = None
    ) -> tuple[Tensor, Reading]:
        """Run all layers over `tokens` behind the prompt, and read out each row."""
        step = self.chain(len(tokens)) if step is None else step
        if self.fixed_rows is None:
            return self.model.run_and_read(tokens, step, self.cache, tap=tap)
        hidden = self.forward(self.ids(tokens), step, tap=tap)
        return hidden, self.read(hidden)

    def run_to_exit(
        self, ids: Tensor, last: int, step: Step, *, cache: KVCache | None = None
    ) -> tuple[Tensor, Reading]:
        """Run the layers before `last` over `ids` [1, n] behind the prompt; read out each row.

        Their rows go into another `cache` if that is given.
        """
        if self.fixed_rows is None:
            return self.model.run_to_exit(ids, last, step, cache or self.cache)
        hidden = self.run(self.embed(ids, step), 0, last, step, cache=cache)
        return hidden, self.read(hidden)

    def run_prompt(self, *, tap: Tap | None = None) -> Tensor:
        """Run the prompt; hidden states [1, 1, hidden] after its last token."""
        began = perf_counter()
        step = self.steps.prefill(len(self.tokens))
        hidden = self.forward(self.ids(self.tokens), step, tap=tap)[:, -1:]
        self.prompt_ms = 1e3 * (perf_counter() - began)
        return hidden

    def prefill(self, *, tap: Tap | None = None) -> Tensor:
        """Run the prompt; logits [1, 1, vocab] after its last token."""
        return self.logits(self.run_prompt(tap=tap))

    def advance(self, token: Tensor, *, tap: Tap | None = None) -> Tensor:
        """Run one token [1, 1] (already on the device); logits [1, 1, vocab] after it."""
        return self.logits(self.forward(token, tap=tap))

    def rollback(self, length: int) -> None:
        """Back to the first `length` tokens."""
        del self.tokens[length:]
        self.cache.truncate(length)
