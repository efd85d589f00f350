"""Everything that `run.json` and `samples.jsonl` hold, as types that are checked on reading.

A field stands here once: with its type, its limits and a sentence that says what it is. What
is written is checked against it, what is read as well, and `docs/records.md` is made from it.

To store something new, add a field to the record of its line, with its sentence below it.
Earlier runs lack it, so it needs a default that says what holds for them; None means that
nobody knows. Fields that have their default are not written. A name that no record knows is an
error, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ppdbench.errors import DataError

SCHEMA_VERSION = 1

Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=1 << 60)]
AtLeastOne = Annotated[int, Meta(ge=1, le=1 << 60)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e12)]
Figure = Annotated[float, Meta(ge=-1e30, le=1e30)]  # a number without limits of its own
Cosine = Annotated[float, Meta(ge=-1.001, le=1.001)]  # rounding leads out of -1..1
Plain = str | bool | int | Figure | None  # an option's value
Verdict = Literal["identical", "tie", "mismatch", "inexact", "sampled"]
ByLayer = dict[Annotated[str, Meta(pattern="^[0-9]+$")], Sequence[Count]]


# The fields of samples that two runs of the same thing differ in.
TIMES = frozenset(
    {
        *("elapsed_ms", "prefill_ms", "step_ms", "draft_ms", "wall_ms", "prompt_ms"),
        *("baseline_prefill_ms", "baseline_step_ms", "baseline_again_ms"),
        *("baseline_wall_ms", "baseline_prompt_ms", "communication_ms", "greedy_by_threads"),
        *("events", "profile", "peak_memory_bytes", "load", "alone"),
        *("full", "baseline_full", "baseline_again_full", "time_to_first_token_ms"),
    }
)


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One object of a stored file."""


# Samples: the lines of samples.jsonl


class SampleHead(Record, frozen=True, kw_only=True):
    """The beginning of every line of `samples.jsonl`: whose result it is."""

    example_id: str
    """The example, as its task names it; a later turn of a question adds `/2`, `/3`, ..."""
    task: Name
    """The name of the task."""
    method: Name
    """The method's label in this run: its name, with its options where those tell it apart."""
    target: Name | None = None
    """The way to pick the final layer's token (`greedy`, `top-k`, `top-p`, `min-p`), in
    probes."""
    verdict: str | None
    """The output compared with greedy decoding's; null where nothing was compared."""
    number: Count | None = None
    """The example's place among all of the run, from 0; lines are put in this order."""


class Load(Record, frozen=True, kw_only=True):
    """A machine's load: what it did besides while all methods decoded an example."""

    seconds: Figure
    """The time that took."""
    cores: AtLeastOne
    """Cores that this process may use."""
    others_s: Figure
    """Seconds of all cores together that other programs used."""
    stolen_s: Figure
    """Seconds of all cores together that the host of a virtual machine took."""
    load_average: Figure | None
    """Of the last minute, this run included."""


class Asked(SampleHead, frozen=True, kw_only=True):
    """The question of an example, the same for every kind of result."""

    cut_tokens: Count
    """Tokens of a prompt that was too long which were left out."""
    prompt_ids: Sequence[TokenId]
    """The prompt as token ids."""
    output_ids: Sequence[TokenId]
    """The output as token ids, up to and including the end of the text."""
    processes: AtLeastOne | UnsetType | None = UNSET
    """Processes of the run that shared this machine; null where jobs came and went."""

    @property
    def is_later(self) -> bool:
        """True of a turn of a question after its first."""
        return False

    @property
    def question(self) -> str:
        """The id of the question; what has no turns is one of its own."""
        return self.example_id

    @property
    def shared_by(self) -> int | None:
        """Processes at once; one in runs of versions that did not say."""
        return 1 if isinstance(self.processes, UnsetType) else self.processes


class Turn(Asked, frozen=True, kw_only=True):
    """A question, or a turn of one."""

    turn: AtLeastOne | None = None
    """The turn of its question that this is, from 1, in tasks with turns."""
    turns: AtLeastOne | None = None
    """Turns that the question has."""

    @property
    def is_later(self) -> bool:
        """True where another turn of its question comes before it."""
        return self.turn not in (None, 1)

    @property
    def question(self) -> str:
        """The id of the question that a turn belongs to."""
        return self.example_id.removesuffix(f"/{self.turn}") if self.is_later else self.example_id


class FailedSample(Turn, frozen=True, kw_only=True):
    """An example that a method could not do; the next resume tries it again."""

    verdict: Literal["failed"]
    """`failed`."""
    error: str
    """The error in words."""
    references: Sequence[str] | None = None
    """Right answers, as the data set has them, in decoding."""
    peak_memory_bytes: Count | None = None
    """Most memory in use so far, in decoding."""
    load: Load | None = None
    """The machine's other work meanwhile, in decoding with one process."""


class GreedyTimes(Record, frozen=True, kw_only=True):
    """The times of greedy decoding of the same prompt in another setting."""

    prefill_ms: Milliseconds
    """The pass over the prompt."""
    step_ms: Milliseconds
    """All steps together."""
    steps: Count
    """The number of steps."""


class FullBatch(Record, frozen=True, kw_only=True):
    """The part of an output during which its batch was full: each of its sequences took steps."""

    ms: Milliseconds
    """The steps of this sequence then."""
    steps: Count
    """The number of these steps."""
    tokens: Count
    """The tokens that they gave."""


class Profile(Record, frozen=True, kw_only=True):
    """The steps of one output: where they spent their time, and what their passes read."""

    draft_pass_ms: Figure
    """Passes that draft."""
    draft_ms: Figure
    """The rest of drafting."""
    pass_ms: Figure
    """Passes that verify."""
    bookkeeping_ms: Figure
    """The time that is left."""
    draft_pass_bytes: Figure
    """Weights and cache rows that drafting passes read."""
    pass_bytes: Figure
    """Weights and cache rows that verifying passes read."""


class RoundingOrigin(Record, frozen=True, kw_only=True):
    """The origin of the bound on rounding."""

    stock_noise: Figure
    """The distance of the stock model's own passes of one row and of many from its wider type."""
    slack: Figure
    """The factor by which two logits may part."""
    written: Figure
    """The cost of writing two such logits in the run's type."""
    at_most: Figure | None = None
    """The most that is allowed, where that decided: a share of the logits' spread in float32."""


class Margins(Record, frozen=True, kw_only=True):
    """The margins by which greedy decoding's token is preferred to the method's, in logits."""

    stock: Figure
    """By the stock model in a wider type, without code of ours."""
    one_row: Figure
    """By our passes of one row."""
    as_run: Figure
    """By the method's passes, made once more."""


class Judged(Record, frozen=True, kw_only=True):
    """The grounds of a verdict: what a tie rests on, or why a difference is none."""

    by: Name | None = None
    """The judge: `stock` and the type that it computed in."""
    bound: Figure | None = None
    """The largest difference of two logits that rounding explains."""
    origin: RoundingOrigin | None = None
    """The origin of the bound."""
    margins: Margins | None = None
    """The margins of the two tokens in each of the three."""
    why: str | None = None
    """The reason why it is no tie."""


class DecodedSample(Turn, frozen=True, kw_only=True):
    """An example that a method has decoded, timed beside the baseline."""

    verdict: Verdict
    """`identical`, `tie` (rounding explains the difference), `mismatch` (a bug), `inexact` (by a
    method that does not promise more) or `sampled` (drawn, so not compared)."""
    references: Sequence[str]
    """Right answers, as the data set has them."""
    peak_memory_bytes: Count
    """Most memory that the process (on a CPU) or the device had in use so far."""
    finish: Name
    """The end of the output: `eos`, `stop` (a stop string) or `length`."""
    text: str
    """The output as text, less its end marks."""
    accepted: Sequence[Count]
    """Drafted tokens that each step kept."""
    proposed: Sequence[Count]
    """Drafted tokens that each step verified."""
    rows: Sequence[Count]
    """Rows of each step's verifying pass."""
    prefill_ms: Milliseconds
    """The pass over the prompt, and the choice of the first token."""
    step_ms: Sequence[Milliseconds]
    """Each step, drafting included."""
    draft_ms: Sequence[Milliseconds]
    """The part of each step that drafting took; empty for methods that do not draft apart."""
    baseline_prefill_ms: Milliseconds
    """Greedy decoding's pass over the prompt."""
    baseline_step_ms: Sequence[Milliseconds]
    """Greedy decoding's steps."""
    baseline_again_ms: Milliseconds
    """All of greedy decoding's steps when it was run once more: what it gains is noise."""
    baseline_again_steps: Count | None = None
    """The number of those steps."""
    wall_ms: Milliseconds | None = None
    """All of it up to the last token, seen from outside: what prefill and steps must add up to."""
    prompt_ms: Milliseconds | None = None
    """The pass over the prompt at least, seen from outside; 0 where nobody sees it."""
    baseline_wall_ms: Milliseconds | None = None
    """The same of greedy decoding as a whole."""
    baseline_prompt_ms: Milliseconds | None = None
    """The same of greedy decoding's pass over the prompt."""
    scores: dict[str, Figure | Sequence[Figure] | None] | None = None
    """The output's part of each metric: its score, or the counts that corpus metrics add up."""
    profile: Profile | None = None
    """The time by parts, with `--profile`."""
    exits: Sequence[Count] | None = None
    """Layers that ran for each token, where that differs."""
    experts: dict[str, tuple[Count, Count]] | None = None
    """By a pass's rows: layers of experts that such passes ran, and experts touched in all."""
    matches: Sequence[Annotated[int, Meta(ge=0, le=1)]] | None = None
    """1 for each token that was guessed right below, 0 for others, where units share the work."""
    communication_ms: Milliseconds | None = None
    """Waiting for messages between units."""
    greedy_by_threads: dict[str, GreedyTimes] | None = None
    """Greedy decoding with the threads of one unit and of all, by their number."""
    events: Sequence[tuple[str, str, Count, Figure, Figure]] | None = None
    """The first tokens' timeline: unit, what it did, for which token, from when to when (ms)."""
    first_difference: Count | None = None
    """The first output token that is not greedy's."""
    baseline_ids: Sequence[TokenId] | None = None
    """Greedy's output, where this one differs."""
    margin: Figure | None = None
    """By how much greedy decoding preferred its own token there, in logits."""
    discrepancy: Figure | None = None
    """The distance, in logits, by which passes of several rows and of one moved the two tokens."""
    judged: Judged | None = None
    """The stock model's word on the difference."""
    load: Load | None = None
    """The machine's other work meanwhile, in decoding with one process."""
    batch: AtLeastOne = 1
    """The number of sequences that were decoded together, this one and greedy's beside it."""
    time_to_first_token_ms: Milliseconds | None = None
    """The time from taking its place in the batch to the first token, others' work included."""
    full: FullBatch | None = None
    """The part that counts for the speed of a batch; what is left out is in `step_ms` alone."""
    baseline_full: FullBatch | None = None
    """The same of greedy decoding in a batch of this size."""
    baseline_again_full: FullBatch | None = None
    """The same when it was run once more."""
    alone: GreedyTimes | None = None
    """Greedy decoding of this prompt alone: the output that one from a batch is compared with."""
    passed: bool | None = None
    """True if the generated program passed its tests."""
    execution: str | None = None
    """The end of the generated program."""
    raised: str | None = None
    """The exception that ended it."""
    protection: Sequence[str] | None = None
    """The layers that held the generated program."""

    def __post_init__(self) -> None:
        steps = len(self.step_ms)
        for name, per_step in (
            ("accepted", self.accepted),
            ("proposed", self.proposed),
            ("rows", self.rows),
            ("draft_ms", self.draft_ms or self.step_ms),
        ):
            if len(per_step) != steps:
                raise ValueError(f"{name} has {len(per_step)} entries, step_ms has {steps}")


class ProbedSample(Asked, frozen=True, kw_only=True):
    """An example whose greedy or drawn tokens were looked for below the final layer."""

    elapsed_ms: Milliseconds | None = None
    """Probing this example."""
    ranks: ByLayer
    """By layers run: for each output token, how many tokens score strictly higher there."""
    head_ranks: ByLayer | None = None
    """The same with the trained head of that layer."""
    predictions: dict[str, Sequence[TokenId]] | None = None
    """The likeliest tokens by layers run, of the example that was to be shown."""

    def __post_init__(self) -> None:
        wanted = len(self.output_ids)
        for found in (self.ranks, self.head_ranks or {}, self.predictions or {}):
            for layer, per_token in found.items():
                if len(per_token) != wanted:
                    raise ValueError(
                        f"layer {layer} has {len(per_token)} entries, output_ids has {wanted}"
                    )


class GuessedSample(Asked, frozen=True, kw_only=True):
    """An example at each place of whose output a method guessed."""

    ranks: ByLayer
    """By distance: at each place, how many guesses score strictly higher than the true token."""


class ComparedSample(Asked, frozen=True, kw_only=True):
    """An example at each place of whose output pseudo states were compared with true ones."""

    similarity: dict[str, dict[str, Sequence[Cosine]]]
    """By step, then by layers run: the cosine at each place."""


Decoding = DecodedSample | FailedSample  # a line of a run that decodes
Sample = Decoding | ProbedSample | GuessedSample | ComparedSample


# The header: run.json


class AskedModel(Record, frozen=True, kw_only=True):
    """The model as it was asked for."""

    name: Name
    """Hub id, folder, `reference` or `synthetic:...`."""
    revision: str | None
    """The revision of the hub."""
    dtype: Name
    """`auto`, or the type of the weights."""
    device: Name
    """`auto`, or where it runs."""
    trust_remote_code: bool
    """True if code that comes with the model may run."""
    quantize: str | None
    """The scheme of weights stored in fewer bits."""
    device_map: str | None
    """The map of layers to devices."""
    max_memory: str | None
    """The most that each device may hold."""
    gguf: str | None = None
    """The GGUF file of a hub model or a folder."""
    as_stored: bool = False
    """True if products were to multiply by the few bits of a GGUF file."""
    adapter: str | None = None
    """The folder of an adapter that was to be merged into the weights."""
    family_check: bool = True
    """False if what was read of the model was not to be held against transformers."""


class AskedTarget(Record, frozen=True, kw_only=True):
    """The way to pick the final layer's token."""

    kind: Name
    """`greedy`, `top-k`, `top-p` or `min-p`."""
    top_k: AtLeastOne
    """Tokens that are drawn from with `top-k`."""
    top_p: Figure
    """Probability that they share with `top-p`."""
    temperature: Figure
    """The divisor of logits before drawing."""
    min_p: Figure = 0.05
    """Part of the likeliest token's probability that a token has at least with `min-p`."""
    repetition_penalty: Figure = 1.0
    """The divisor, for tokens of the text so far, of logits above 0, and factor of others."""
    logit_bias: Sequence[tuple[Count, Figure]] = ()
    """Tokens and what is added to their logits."""


class AskedMethod(Record, frozen=True, kw_only=True):
    """A method as it was asked for."""

    name: Name
    """Its key in `list methods`."""
    options: dict[str, str]
    """Options as they were typed."""


class AskedChat(Record, frozen=True, kw_only=True):
    """The choice of plain or chat prompts as it was asked for."""

    mode: Name
    """`auto`, `on` or `off`."""


class Settings(Record, frozen=True, kw_only=True):
    """The `config` of every run's header."""

    model: AskedModel
    """The model."""
    tasks: Sequence[str]
    """Tasks by name or file."""
    data: str
    """`hub`, `builtin` or a path."""
    split: str | None
    """The part of the data set; null for the task's own."""
    limit: AtLeastOne | None
    """Examples of each task; null for all."""
    shots: Count
    """Worked examples in front of each prompt."""
    max_new_tokens: AtLeastOne | None
    """Tokens of an output at most; null for the task's own."""
    seed: int
    """The seed of everything drawn at random."""
    threads: AtLeastOne | None
    """Threads of the CPU; null for all."""
    chat: AskedChat | None = None
    """The choice of plain or chat prompts; null in runs of versions that gave none."""


class DecodeSettings(Settings, frozen=True, kw_only=True):
    """The options of `decode` and `bench`."""

    methods: Sequence[AskedMethod]
    """The methods in their order."""
    target: AskedTarget
    """The way to pick tokens."""
    strict: bool
    """True if rounding excuses no difference: all passes had one shape, or they were flat."""
    warmup: Count
    """Untimed rounds before the first."""
    compile: Name
    """`auto`, `on` or `off`."""
    profile: bool
    """True if the parts of steps were timed."""
    allow_code_execution: bool | Literal["unprotected"]
    """True if generated programs may run; `unprotected`: also where not everything can be held."""
    batch: Sequence[AtLeastOne] | None = None
    """The numbers of sequences decoded together; null for one at a time."""
    prefill: AtLeastOne | None = None
    """Rows of a newcomer's prompt that run beside the others' steps; null for a pass apart."""


class GridSpace(Record, frozen=True, kw_only=True):
    """The cells of a sweep."""

    method: Name
    """The method."""
    axes: dict[str, Sequence[str]]
    """Options and their values, as typed."""
    fixed: dict[str, str]
    """Options that are the same in all cells."""


class SweepSettings(DecodeSettings, frozen=True, kw_only=True):
    """The options of `sweep`."""

    space: GridSpace
    """The grid."""
    search: Name
    """`grid` or `halving`."""


class ProbeSettings(Settings, frozen=True, kw_only=True):
    """The options of `probe`."""

    layers: Sequence[AtLeastOne]
    """Layers that were looked at, as numbers of layers run."""
    ks: Sequence[AtLeastOne]
    """The numbers of likeliest tokens that count as a match."""
    targets: Sequence[AskedTarget]
    """The ways to pick the final layer's tokens."""
    bucket: AtLeastOne | None
    """Output positions that are counted together; null for the task's own."""
    head: str | None
    """The file of trained heads."""
    stop_at_eos: bool
    """True if outputs end with the text."""
    batch_size: AtLeastOne
    """Examples that were probed together."""
    show_example: Count | None
    """The example whose predictions are kept."""
    compile: Name
    """`auto`, `on` or `off`."""


class DraftsSettings(Settings, frozen=True, kw_only=True):
    """The options of `probe --what drafts` and `--what similarity`."""

    methods: Sequence[AskedMethod]
    """The methods in their order."""


class ModelFacts(Record, frozen=True, kw_only=True):
    """The model as it was loaded."""

    name: Name
    """The name it was asked for by."""
    revision: str | None
    """The revision of the hub."""
    weight_hash: str
    """Hash of the weights."""
    family: Name
    """Its `model_type` in transformers."""
    n_layers: AtLeastOne
    """Decoder layers."""
    hidden_size: AtLeastOne
    """Width of the states between layers."""
    vocab_size: AtLeastOne
    """Tokens that it knows."""
    dtype: Name
    """The type of its weights."""
    device: Name
    """The device it ran on."""
    synthetic: bool
    """True if its weights are random."""
    gguf: Name | None = None
    """The quantisation that the layers' weights went through, if they come from a GGUF file."""
    gguf_weights: dict[str, Count] | None = None
    """The number of weights of each of the file's types."""
    adapter: Name | None = None
    """The folder of the adapter that was merged into the weights, which `weight_hash` is of."""
    adapter_hash: str | None = None
    """Hash of the adapter."""
    adapter_left_out: Count | None = None
    """Modules that it changes of other parts of a model for text and more, which do not run."""
    experts: Count | None = None
    """Experts of a layer, in models that have them and choose some of them for each token."""
    stored_as: Name | None = None
    """The format of the stored weights (fp8, mxfp4, gptq, awq), where they became plain ones."""
    part_of: Name | None = None
    """The `model_type` of the model for text and more whose text part ran."""
    layer_kinds: Sequence[Name] | None = None
    """The way each layer looks back: `attention`, `recurrent`, `convolution`, or `feed-forward`
    where it does not. None in models whose layers do not differ in it."""


class Chat(Record, frozen=True, kw_only=True):
    """The chat template that prompts went through."""

    template: Name
    """Hash of its text."""
    system: str | None
    """The system text that was asked for; null where the template had the say."""
    settings: dict[str, Plain]
    """The settings that it was given to read besides, as `enable_thinking`."""
    thinking: Name | None = None
    """The state of its switch for thinking: `on`, `off`, or `default` where nobody set it; null
    where it has none."""
    rendering: Name | None = None
    """Hash of what it makes of a greeting, and so of all else that it reads, such as the day; null
    in earlier versions."""


class Passes(Record, frozen=True, kw_only=True):
    """The path that a model's passes take."""

    kernels: str
    """The kernels that run them: flat ones and which, `attention flat` where all else is eager, or
    `eager`; `compiled` in runs of versions that compiled passes on a CPU."""
    why: str
    """The reason, with the times that were measured."""
    prepared_s: Figure
    """The time that choosing, checking and laying out took."""


class Source(Record, frozen=True, kw_only=True):
    """The source of a task's examples."""

    version: int | str
    """The task's version."""
    metrics: Sequence[str]
    """The metrics of its outputs."""
    examples: Count
    """The number of examples."""
    sha256: str
    """Hash of their prompts."""
    turns: Count | None = None
    """The turns that they have together; null where each has one, or its run did not say."""
    unscored: Sequence[str] | None = None
    """Examples whose reference cannot be scored; they are decoded and have no score."""
    hub_id: str | None = None
    """The data set on the hub."""
    file: str | None = None
    """The file that they are in, or a pattern of several."""
    in_place_of: str | None = None
    """The split that the file stands in for."""
    tests_sha256: str | None = None
    """Hash of the programs' tests."""


class MethodRecord(Record, frozen=True, kw_only=True):
    """A method as it ran."""

    name: Name
    """Its key in `list methods`."""
    options: dict[str, Plain]
    """All options with their values."""
    loaded: dict[str, str]
    """The files it loaded, with hashes."""


class DecodingMethod(Record, frozen=True, kw_only=True):
    """A method as it decoded."""

    name: Name
    """Its key in `list methods`."""
    exact: bool
    """True if its outputs must be greedy's, with these options."""
    options: dict[str, Plain]
    """All options with their values."""
    loaded: dict[str, str]
    """The files it loaded, with hashes."""
    batch: AtLeastOne = 1
    """The number of sequences that it decoded together."""
    temperature: Figure | None = None
    """The temperature that its tokens were drawn at, where a sweep is over temperatures."""


class Compilation(Record, frozen=True, kw_only=True):
    """The outcome of `--compile`."""

    mode: Name
    """`auto`, `on` or `off`, as asked for."""
    rows: Sequence[Count]
    """Row counts of passes that a GPU captured, or that an earlier version compiled on a CPU; empty
    where there are none."""
    eager_rows: Sequence[Count] | None = None
    """Row counts of wider passes, which an earlier version ran eagerly."""
    seconds: Figure | None = None
    """The time that it took."""
    why: str | None = None
    """The reason why there are none."""
    saves_s: Figure | None = None
    """The time that compiling would have saved of this run, where an earlier version did not."""


class Memory(Record, frozen=True, kw_only=True):
    """Bytes that are held while decoding."""

    weights: Count
    """The model."""
    cache: Count
    """Its key-value cache."""
    methods: dict[str, Count]
    """The bytes that each method holds besides."""
    batches: dict[str, Count] | None = None
    """The key-value caches of batches by their sizes."""


class StepParts(Record, frozen=True, kw_only=True):
    """The parts of a method's step for one sequence alone, as means over some steps."""

    rows: Figure
    """Rows of a pass that verifies."""
    pass_ms: Milliseconds
    """Passes that verify."""
    draft_pass_ms: Milliseconds
    """Passes that draft."""
    draft_ms: Figure
    """The rest of drafting."""
    bookkeeping_ms: Figure
    """The time that is left."""


class PassModel(Record, frozen=True, kw_only=True):
    """Passes and steps timed before the run, from which speedups in batches are predicted."""

    context: Count
    """The rows of the cache before these passes."""
    rows: Sequence[AtLeastOne]
    """The rows of each pass that was timed, rising from 1."""
    ms: Sequence[Milliseconds]
    """The times of these passes, without dips."""
    steps: dict[str, StepParts]
    """The steps of each method, by the label that it has alone, and of the baseline."""
    seconds: Figure
    """The time that measuring took."""


class Stage(Record, frozen=True, kw_only=True):
    """One stage of a sweep."""

    cells: Count
    """Cells that get here."""
    examples: Count
    """Examples that they decode, those of earlier rungs included."""
    going: Sequence[str] | None = None
    """The cells that got here, once that is decided; whoever goes on with the run keeps to it."""


class Cpu(Record, frozen=True, kw_only=True):
    """The processor."""

    model: str | None
    """Its name."""
    physical_cores: Count | None
    """Cores."""
    logical_cores: Count | None
    """Threads that run at once on them."""
    usable_cores: Count | None
    """Logical cores that this process may use."""
    quota_cores: Figure | None
    """Cores' worth of time that control groups grant."""
    features: Sequence[str] | None
    """Instruction sets that matter here."""
    governor: str | None
    """The way its frequency is chosen."""
    load_average: Figure | None
    """Processes that wanted to run in the last minute."""


class MachineMemory(Record, frozen=True, kw_only=True):
    """Main memory."""

    total_bytes: Count
    """All of it."""
    available_bytes: Count
    """The memory that was free."""
    swap_used_bytes: Count
    """The bytes that lay on disk."""


class TorchSettings(Record, frozen=True, kw_only=True):
    """The settings of PyTorch."""

    threads: Count
    """Threads of one operation."""
    interop_threads: Count
    """Operations at once."""
    mkldnn: bool
    """True if oneDNN is there."""
    cuda: str | None
    """The version of CUDA that it was built for."""
    deterministic: bool
    """True if only deterministic kernels may run."""
    anomaly_detection: bool
    """True if gradients are searched for NaN."""


class Device(Record, frozen=True, kw_only=True):
    """A CUDA device."""

    name: str
    """Its name."""
    memory_bytes: Count
    """Its memory."""
    capability: str
    """Compute capability."""
    driver: str | None
    """Version of the driver."""
    used_by_others: Figure
    """The part of its memory that other processes held."""


class Commit(Record, frozen=True, kw_only=True):
    """The checkout that the package ran from."""

    commit: str
    """Its commit."""
    modified: bool
    """True if files differed from it."""


class Environment(Record, frozen=True, kw_only=True):
    """The machine and the software that a measurement ran on."""

    python: str
    """Version of Python."""
    platform: str
    """The operating system."""
    machine: str
    """The architecture."""
    packages: dict[str, str | None]
    """Versions of packages that matter."""
    git: Commit | None
    """The checkout; null for an installed package."""
    cpu: Cpu
    """The processor."""
    memory: MachineMemory
    """Main memory."""
    on_battery: bool | None
    """True if it ran on a battery; null where nobody knows."""
    torch: TorchSettings
    """PyTorch."""
    devices: Sequence[Device]
    """CUDA devices."""
    dtypes: dict[str, dict[str, str] | None]
    """The speed of each number format, by kind of device."""
    variables: dict[str, str]
    """Environment variables that matter, where they are set."""


class Header(Record, frozen=True, kw_only=True):
    """The part of `run.json` that every run has."""

    schema_version: int
    """The version of this format."""
    kind: Name
    """`decode`, `bench`, `sweep`, `probe`, `drafts` or `similarity`."""
    ppdbench: str
    """The version that wrote it."""
    command: Sequence[str]
    """The command line."""
    started: str
    """The time when the run began (UTC)."""
    config: Settings
    """The options it was given."""
    model: ModelFacts
    """The model."""
    layers: dict[str, Count]
    """The number of layers on each device."""
    chat: Chat | UnsetType | None = UNSET
    """The chat template of all prompts; null where they are plain. Runs of versions that did not
    say have plain prompts, but of `alpaca`, `mt_bench` and `spec_bench` where there was one."""
    data: dict[str, Source]
    """The examples of each task."""
    environment: Environment
    """The machine and its software."""
    passes: Passes | None = None
    """The path that passes take; runs of earlier versions do not say it."""
    shards: AtLeastOne | None = None
    """The N of the `--shard I/N` that share the run, where jobs do; runs of earlier versions do
    not say it."""

    # What some kinds of runs have and others lack.

    @property
    def methods(self) -> Mapping[str, MethodRecord | DecodingMethod]:
        """The methods by label; a probe of layers has none."""
        return {}

    @property
    def not_run(self) -> Mapping[str, str]:
        """Methods that could not run, and why."""
        return {}

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Facts that were found out about each method."""
        return {}

    @property
    def used(self) -> Mapping[str, Mapping[str, str]] | None:
        """Words for what options came to that leave the choice to the method."""
        return None

    @property
    def chosen(self) -> Mapping[str, Mapping[str, int]] | None:
        """Numbers that methods chose for options which leave the choice to them."""
        return None

    @property
    def left_out(self) -> Mapping[str, str] | None:
        """Methods of `--method all` that this model cannot run, and why."""
        return None

    @property
    def added(self) -> Mapping[str, str] | None:
        """Methods that came into a stored run later, and when."""
        return None

    @property
    def compilation(self) -> Compilation | None:
        """Captured passes; compiled ones in runs of earlier versions."""
        return None

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Speed at which this machine reads its memory, where it was measured."""
        return None

    @property
    def memory(self) -> Memory | None:
        """Memory held, where it was measured."""
        return None

    @property
    def pass_model(self) -> PassModel | None:
        """Passes and steps timed before the run, where that was done."""
        return None


class DecodingHeader(Header, frozen=True, kw_only=True):
    """The part of `run.json` that all runs that decode share."""

    config: DecodeSettings
    """The options it was given."""
    methods: dict[str, DecodingMethod]
    """The methods by label, in their order; in sweeps the cells."""
    not_run: dict[str, str]
    """Methods that could not run, and why."""
    facts: dict[str, dict[str, Any]]
    """The facts found out about each method when it was prepared."""
    used: dict[str, dict[str, str]] | None = None
    """The values, in words, of options that leave the choice to the method."""
    chosen: dict[str, dict[str, int]] | None = None
    """The numbers that each method chose for options which leave the choice to it; `--resume`
    keeps them."""


class DecodeHeader(DecodingHeader, frozen=True, kw_only=True):
    """`run.json` of `decode` and `bench`."""

    left_out: dict[str, str] | None = None
    """Methods of `--method all` that this model cannot run, and why."""
    added: dict[str, str] | None = None
    """Methods that `--resume` brought into a stored run, and when (UTC); null where there are
    none."""
    compilation: Compilation | None = None
    """Captured passes; compiled ones in runs of earlier versions."""
    bandwidth_bytes_per_s: Figure | None = None
    """The rate at which this machine reads its memory, with `--profile`."""
    memory: Memory | None = None
    """Memory held."""
    pass_model: PassModel | None = None
    """Passes and steps timed before the run, where batches are of several sizes."""

    def __post_init__(self) -> None:
        if lacking := (self.added or {}).keys() - self.methods.keys():
            raise ValueError(f"added names {', '.join(sorted(lacking))}, which methods lacks")


class SweepHeader(DecodingHeader, frozen=True, kw_only=True):
    """`run.json` of `sweep`."""

    config: SweepSettings
    """The options it was given."""
    rungs: Sequence[Stage]
    """The stages."""
    compilation: Compilation | None = None
    """Captured passes; compiled ones in runs of earlier versions."""

    def __post_init__(self) -> None:
        for label, cell in self.methods.items():
            told = {"temperature"} if cell.temperature is not None else set()
            if lacking := self.config.space.axes.keys() - cell.options.keys() - told:
                raise ValueError(f"methods[{label}].options lacks {', '.join(sorted(lacking))}")


class ProbeHeader(Header, frozen=True, kw_only=True):
    """`run.json` of `probe`."""

    config: ProbeSettings
    """The options it was given."""
    compilation: Compilation | None = None
    """Captured passes; compiled ones in runs of earlier versions."""
    heads: str | UnsetType | None = UNSET
    """Hash of the trained heads."""


class DraftsHeader(Header, frozen=True, kw_only=True):
    """`run.json` of `probe --what drafts` and `--what similarity`."""

    config: DraftsSettings
    """The options it was given."""
    methods: dict[str, MethodRecord]
    """The methods by label, in their order."""
    facts: dict[str, dict[str, Any]]
    """The facts found out about each method when it was prepared."""
    used: dict[str, dict[str, str]] | None = None
    """The values, in words, of options that leave the choice to the method."""


class Kind(Struct, frozen=True):
    """The types that the runs of one kind are made of."""

    header: type[Header]
    settings: type[Settings]
    sample: type[DecodedSample | ProbedSample | GuessedSample | ComparedSample]
    """Or a FailedSample."""


KINDS: Mapping[str, Kind] = {
    "decode": Kind(DecodeHeader, DecodeSettings, DecodedSample),
    "bench": Kind(DecodeHeader, DecodeSettings, DecodedSample),
    "sweep": Kind(SweepHeader, SweepSettings, DecodedSample),
    "probe": Kind(ProbeHeader, ProbeSettings, ProbedSample),
    "drafts": Kind(DraftsHeader, DraftsSettings, GuessedSample),
    "similarity": Kind(DraftsHeader, DraftsSettings, ComparedSample),
}


def decoding(header: Header) -> DecodingHeader:
    """The header of a run that decodes; any other is refused."""
    if not isinstance(header, DecodingHeader):
        raise DataError(f"a run of `ppdbench {header.kind}` decodes nothing")
    return header


def probing(header: Header) -> ProbeHeader:
    """The header of a probe of layers; any other is refused."""
    if not isinstance(header, ProbeHeader):
        raise DataError(f"a run of `ppdbench {header.kind}` probes no layers")
    return header
