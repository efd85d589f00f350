"""From what `--model` says to a model that is ready to run, or one clear line why not."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from ppdbench.engine import held_family, lora, synthetic, text_part
from ppdbench.engine.flat.choice import FASTER
from ppdbench.engine.folders import check_config, check_family, check_model_folder, check_sizes
from ppdbench.engine.footprint import on_meta
from ppdbench.engine.gguf import settings, source, weights, words
from ppdbench.engine.gguf.file import GgufFile, read
from ppdbench.engine.offload import NOTHING, StoredWeights
from ppdbench.engine.own_settings import warn_of_own_settings
from ppdbench.engine.packed_levels import Packing, plain_weights
from ppdbench.engine.pass_check import TEXT
from ppdbench.engine.placement import DISK, Placement, check_asked, place_parts, refuse_too_large
from ppdbench.engine.quantized import check_scheme, check_stored, keep_types, plain_again, quantize
from ppdbench.engine.shapes import PREFIX, ModelShape, parse
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.weights import parts
from ppdbench.errors import ConfigError, PpdbenchError
from ppdbench.files.resources import reference_is_there, reference_model
from ppdbench.machine.pages import trim

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
REFERENCE = "reference"
# Models that travel with the package, and where in its folder.
EMBEDDED = {REFERENCE: "", "reference-draft": "draft"}
STAND_IN = "synthetic:demo"
# Where a stock model keeps the file that all of its weights came from.
FILE = "_gguf_file"
# The same for the hash of an adapter that was merged into its weights.
MERGED = "_adapter_hash"
# And for the number of modules that the adapter has and the model, a part of another, has not.
LEFT_OUT = "_adapter_left_out"
# And for the `model_type` of the model for text and more that it was a part of.
PART_OF = "_part_of"
# And for the format of weights that became plain ones.
STORED_AS = "_stored_as"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model as the user asked for it."""

    name: str = REFERENCE
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    offline: bool = False
    trust_remote_code: bool = False
    quantize: str | None = None
    device_map: str | None = None
    max_memory: str | None = None
    gguf: str | None = None
    adapter: str | None = None
    family_check: bool = True
    as_stored: bool = False

    def __post_init__(self) -> None:
        if self.as_stored and self.quantize is not None:
            raise ConfigError("--as-stored and --quantize both hold weights in few bits; give one")
        if self.quantize is not None:
            check_scheme(self.quantize)
        if self.device_map is not None:
            check_asked(self.device_map)
            if self.quantize is not None:
                raise ConfigError("--quantize is for models on one device; leave --device-map out")
        elif self.max_memory is not None:
            raise ConfigError("--max-memory limits what --device-map distributes; give both")
        if self.as_stored and not self.is_gguf:
            raise ConfigError(
                f"--as-stored is for weights of a GGUF file, and {self.name} has none; leave it out"
            )
        if self.gguf is not None and (self.name == REFERENCE or self.is_synthetic):
            raise ConfigError(
                f"--gguf {self.gguf}: it names a file of a hub model or of a folder, and "
                f"{self.name} has none; leave it out"
            )
        if self.adapter is not None and self.is_synthetic:
            raise ConfigError(f"--adapter {self.adapter}: none was trained for random weights")
        if self.adapter is not None and self.is_gguf:
            raise ConfigError(
                f"--adapter {self.adapter}: it was trained beside weights that a GGUF file holds "
                "rounded; give --model the folder or hub id of the plain model"
            )

    @property
    def is_synthetic(self) -> bool:
        """True if the weights are random."""
        return self.name.startswith(PREFIX)

    @property
    def is_gguf(self) -> bool:
        """True if the weights come from a GGUF file."""
        return not self.is_synthetic and source.names_file(self.name, self.gguf)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to run, with all that decoding needs to know of it."""

    spec: ModelSpec
    staged: StagedModel
    tokenizer: Any
    eos_ids: frozenset[int]
    pad_id: int
    fingerprint: str
    gguf: GgufFile | None = None
    adapter_hash: str | None = None
    part_of: str | None = None
    stored_as: str | None = None
    adapter_left_out: int | None = None

    @property
    def max_positions(self) -> int:
        """The longest sequence the model handles."""
        return self.staged.adapter.max_positions


def resolve_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` to a device that exists."""
    if name == "auto":
        return _own_gpu() if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r} is not known; use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cpu" and device.index:
        raise ConfigError(f"device {name!r}: there is one cpu; use cpu")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ConfigError(f"device {name!r} asked for, but this machine has {count} CUDA GPUs")
    return device


def _own_gpu() -> torch.device:
    """The GPU of this process: of several that torchrun started on a machine each has its own."""
    rank = os.environ.get("LOCAL_RANK")
    return torch.device("cuda" if rank is None else f"cuda:{int(rank) % torch.cuda.device_count()}")


def resolve_dtype(name: str, stored: torch.dtype, device: torch.device) -> torch.dtype:
    """`auto` keeps the stored type, except for float16 on a CPU, which has no kernels for it."""
    if name != "auto":
        if name not in DTYPES:
            raise ConfigError(f"dtype {name!r} is not known; use auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    if stored == torch.float16 and device.type == "cpu":
        return torch.float32
    return stored


def load(
    spec: ModelSpec, *, keep: range | None = None, context: int = 0, passes: str = FASTER
) -> Loaded:
    """The model behind `spec`, its weights laid out for this machine.

    `keep` are the layers that this process runs, all of them unless told. There must be room
    for sequences of `context` tokens beside the weights. `passes` are as `StagedModel` takes them.
    """
    if keep is not None and spec.device_map is not None:
        raise ConfigError(
            f"--device-map {spec.device_map}: a unit of ppd on its own loads the layers that the "
            "form gives it; leave it out or use --set form=inline"
        )
    model, tokenizer = load_stock(spec, context)
    return take_over(spec, model, tokenizer, keep=keep, passes=passes)


def take_over(
    spec: ModelSpec,
    model: Any,
    tokenizer: Any,
    *,
    keep: range | None = None,
    packed: bool = True,
    passes: str = FASTER,
) -> Loaded:
    """Turn a stock transformers model into one the engine runs."""
    stored = NOTHING if spec.device_map is None else StoredWeights.of(model)
    fingerprint = weight_fingerprint(model, stored)  # of what was stored, whatever is made of it
    names = (FILE, MERGED, PART_OF, STORED_AS, LEFT_OUT)
    file, *facts = (getattr(model, name, None) for name in names)
    model = laid_out(spec, model)
    warn_of_own_settings(model, spec.name)
    eos, pad = token_ids(model)
    # Of a model in pieces no process has all; what lies on disk would be read twice more.
    complete = keep is None and spec.device_map is None
    stock = held_family.stock_pass(model) if spec.family_check and complete else None
    text = () if tokenizer is None else tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    staged = StagedModel(model, packed=packed, keep=keep, stored=stored, text=text, passes=passes)
    if stock is not None:
        held_family.hold(staged, stock, spec.name)
    trim()
    return Loaded(spec, staged, tokenizer, eos, pad, fingerprint, file, *facts)


def laid_out(spec: ModelSpec, model: Any) -> Any:
    """The model with its weights as `spec` wants them, on its device."""
    if spec.quantize is not None:
        device = resolve_device(spec.device)
        quantize(model, spec.quantize, device)
        model = model.to(device)
    keep_types(model)
    return model


def check_there(spec: ModelSpec, *, words_alone: bool = False) -> None:
    """Refuse a model that cannot be loaded, as far as this machine's files tell.

    `words_alone`: its weights are not needed.
    """
    resolve_dtype(spec.dtype, torch.float32, resolve_device(spec.device))
    if spec.is_synthetic:
        _shape(spec)
        return
    if spec.is_gguf:
        _check_gguf(spec)
        return
    if spec.adapter is not None:
        _adapter(spec.adapter)
    path = _source(spec)
    if not Path(path).is_dir():
        if _hub_is_off(spec) and not _is_cached(path, spec):
            raise _off_limits(spec)
    elif words_alone:
        check_config(Path(path))
    else:
        check_model_folder(Path(path))


def _shape(spec: ModelSpec) -> ModelShape:
    if spec.revision is not None:
        raise ConfigError(f"--revision {spec.revision}: a synthetic model has none; use seed=N")
    return parse(spec.name)


def _hub_is_off(spec: ModelSpec) -> bool:
    return spec.offline or os.environ.get("HF_HUB_OFFLINE") == "1"


def _is_cached(path: str, spec: ModelSpec, file: str = "config.json") -> bool:
    """True if a file of a hub model, its configuration unless told, was fetched before."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(path, file, revision=spec.revision)
    except HFValidationError:
        return False
    return isinstance(found, str)


def _off_limits(spec: ModelSpec) -> ConfigError:
    return ConfigError(
        f"model {spec.name!r} is not on this machine and the hub is off limits (offline); "
        "give --model the path of a local folder"
    )


def load_stock(spec: ModelSpec, context: int = 0) -> tuple[Any, Any]:
    """The transformers model and tokenizer as any user would load them.

    A model that is to be quantised waits on the CPU for `laid_out`.
    """
    device = resolve_device(spec.device)
    _allow_exact_kernels(device)
    if spec.is_synthetic:
        shape = _shape(spec)
        dtype = resolve_dtype(spec.dtype, torch.float32, device)
        placement = reckon(spec, context)
        refuse_too_large(spec, placement)
        return (
            synthetic.build(shape, dtype, _first_place(spec, device), placement.places),
            synthetic.tokenizer(shape.vocab, shape.context),
        )
    if spec.is_gguf:
        return _from_gguf(spec, device, context)
    path = _source(spec)
    if Path(path).is_dir():
        check_model_folder(Path(path))
    found = None if spec.adapter is None else _adapter(spec.adapter)
    with _one_line_errors(spec):
        model, tokenizer = _from_pretrained(path, spec, device, context)
    if found is not None:
        setattr(model, LEFT_OUT, lora.merge(model, found))
        setattr(model, MERGED, found.fingerprint())
    return model, tokenizer


def _adapter(folder: str) -> lora.Lora:
    return lora.read(Path(folder).expanduser())


def _allow_exact_kernels(device: torch.device) -> None:
    """Let a GPU use only kernels that round as the model's type says, in every pass.

    float32 products are made of float32, not of TF32 with its 10 bits. cuDNN's attention is
    left out: it plans anew for each length of the keys, which in decoding is every step.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.enable_cudnn_sdp(False)


def reckon(spec: ModelSpec, context: int) -> Placement:
    """Work out a model's memory and where its parts would go, from its configuration alone."""
    return place_parts(spec, outline(spec), resolve_device(spec.device), context)


def outline(spec: ModelSpec) -> Any:
    """The model without its weights: on the meta device, of the type that it would have."""
    device = resolve_device(spec.device)
    if spec.is_synthetic:
        config = synthetic.configuration(parse(spec.name))
        return on_meta(config, resolve_dtype(spec.dtype, torch.float32, device))
    if spec.is_gguf:
        file = gguf_file(spec)
        with _one_line_errors(spec):
            dtype = resolve_dtype(spec.dtype, DTYPES[file.dtype], device)
            return on_meta(settings.configuration(file), dtype)
    path = _source(spec)
    with _one_line_errors(spec):
        from transformers import AutoConfig

        config = text_part.configuration(AutoConfig.from_pretrained(path, **_how(spec)))
        _check_config(config, spec.name)
        plain_again(config)
        dtype = resolve_dtype(spec.dtype, config.dtype or torch.float32, device)
        return on_meta(config, dtype, trust_remote_code=spec.trust_remote_code)


def _placed(config: Any, spec: ModelSpec, dtype: torch.dtype, context: int) -> Placement:
    model = on_meta(config, dtype, trust_remote_code=spec.trust_remote_code)
    return place_parts(spec, model, resolve_device(spec.device), context)


def load_words(spec: ModelSpec) -> tuple[Any, int]:
    """The tokenizer and the vocabulary size of a model, without its weights."""
    if spec.is_synthetic:
        shape = parse(spec.name)
        return synthetic.tokenizer(shape.vocab, shape.context), shape.vocab
    if spec.is_gguf:
        file = gguf_file(spec)
        with _one_line_errors(spec):
            return words.tokenizer(file), int(settings.configuration(file).vocab_size)
    path, shared = _source(spec), _how(spec)
    with _one_line_errors(spec):
        from transformers import AutoConfig, AutoTokenizer

        config = text_part.configuration(AutoConfig.from_pretrained(path, **shared))
        check_sizes(config.to_dict(), f"{spec.name}: config.json")
        return AutoTokenizer.from_pretrained(path, **shared), int(config.vocab_size)


def load_depth(spec: ModelSpec) -> int:
    """Return the number of a model's layers, without its weights."""
    if spec.is_synthetic:
        return parse(spec.name).layers
    if spec.is_gguf:
        return int(gguf_file(spec).setting("block_count"))
    path, shared = _source(spec), _how(spec)
    with _one_line_errors(spec):
        from transformers import AutoConfig

        config = text_part.configuration(AutoConfig.from_pretrained(path, **shared))
        return int(config.get_text_config().num_hidden_layers)


def _source(spec: ModelSpec) -> str:
    """The folder or hub id behind a name; a folder must be there."""
    if not spec.name.strip():
        raise ConfigError("--model is empty; give a hub id, a local folder or synthetic:SPEC")
    if spec.name in EMBEDDED and not reference_is_there():
        raise ConfigError(
            "this copy of ppdbench carries no trained reference model; use "
            f"--model {STAND_IN}, a hub id or a local folder"
        )
    if spec.name in EMBEDDED:
        return str(reference_model(EMBEDDED[spec.name]))
    path = str(Path(spec.name).expanduser())
    is_path = spec.name.startswith((".", "/", "~")) or path.count("/") > 1
    if Path(path).is_file():
        raise ConfigError(
            f"{spec.name} is a file; give --model the folder that holds config.json and the "
            "weights, or a .gguf file"
        )
    if is_path and not Path(path).is_dir():
        raise ConfigError(f"model folder {spec.name} does not exist")
    return path


def _how(spec: ModelSpec) -> dict[str, Any]:
    """Return the arguments that every `from_pretrained` gets."""
    return {
        "revision": spec.revision,
        "local_files_only": spec.offline or spec.name in EMBEDDED,
        "trust_remote_code": spec.trust_remote_code,
    }


def _from_pretrained(
    path: str, spec: ModelSpec, device: torch.device, context: int
) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    shared = _how(spec)
    stored = AutoConfig.from_pretrained(path, **shared)
    config, mixed = text_part.configuration(stored), text_part.is_mixed(stored)
    _check_config(config, spec.name)
    is_quantised = check_stored(config, spec.name, spec.quantize, spec.adapter)
    if mixed:
        _check_whole(spec, getattr(config, "quantization_config", None) is not None)
    format_of, made_plain = None, None
    if (plain := plain_again(config)) is not None:
        format_of, made_plain = plain
        if spec.device_map is not None:
            raise ConfigError(
                f"{spec.name} holds weights in {format_of}, which become plain ones on one device; "
                "leave --device-map out"
            )
    dtype = resolve_dtype(spec.dtype, config.dtype or torch.float32, device)
    tokenizer = AutoTokenizer.from_pretrained(path, **shared)
    placement = _placed(config, spec, dtype, context)
    refuse_too_large(spec, placement)
    if is_quantised and placement.places is None:  # made for the device that they load on
        shared["device_map"] = {"": device}
    elif placement.places is not None:
        _check_disk(path, spec, placement)
        shared["device_map"] = placement.places
    if made_plain is not None and not isinstance(made_plain, Packing):
        shared["quantization_config"] = made_plain
    if isinstance(made_plain, Packing):
        model, report = _made_plain(path, spec, config, made_plain, dtype)
    elif mixed:
        model, report = text_part.load(path, stored, dtype, check=spec.family_check, **shared)
        setattr(model, PART_OF, stored.model_type)
    else:
        model, report = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, output_loading_info=True, **shared
        )
    setattr(model, STORED_AS, format_of)
    _check_complete(report["missing_keys"], spec.name)
    if not is_quantised:
        _check_made_plain(model, spec.name)
    _check_vocabulary(tokenizer, int(config.vocab_size), spec.name)
    if "device_map" not in shared:
        model = model.to(_first_place(spec, device))
    return model.eval(), tokenizer


def _made_plain(
    path: str, spec: ModelSpec, config: Any, packing: Packing, dtype: torch.dtype
) -> tuple[Any, Any]:
    """A model whose packed weights are made plain, and what transformers reports of loading it."""
    from transformers import GenerationConfig

    tensors = plain_weights(_weight_files(path, spec), packing, dtype, spec.name)
    kind: Any = type(on_meta(config, dtype, trust_remote_code=spec.trust_remote_code))
    loaded: tuple[Any, Any] = kind.from_pretrained(
        None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
    )
    with suppress(OSError):  # some have none
        shared = {"revision": spec.revision, "local_files_only": _how(spec)["local_files_only"]}
        loaded[0].generation_config = GenerationConfig.from_pretrained(path, **shared)
    return loaded


def _weight_files(path: str, spec: ModelSpec) -> list[Path]:
    """The safetensors files of a model, fetched from the hub where they have to be."""
    if not Path(path).is_dir():
        from huggingface_hub import snapshot_download

        shared = _how(spec)
        offline = shared["local_files_only"] or os.environ.get("HF_HUB_OFFLINE") == "1"
        path = snapshot_download(
            path,
            revision=spec.revision,
            allow_patterns="*.safetensors",
            local_files_only=offline,
        )
    return sorted(Path(path).glob("*.safetensors"))


def _check_whole(spec: ModelSpec, is_quantised: bool) -> None:
    """Refuse what a part of a model for text and more cannot be taken out of."""
    if is_quantised or spec.device_map is not None:
        what = "quantised weights" if is_quantised else f"--device-map {spec.device_map}"
        raise ConfigError(
            f"{spec.name} is a model for text and more, of which the text part is loaded, and "
            f"{what} cannot be taken apart; use plain weights on one device"
        )


def gguf_file(spec: ModelSpec) -> GgufFile:
    """The GGUF file that a model comes from, fetched where it has to be."""
    if spec.trust_remote_code:
        raise ConfigError("--trust-remote-code: a GGUF file holds no code; leave it out")
    with _one_line_errors(spec):
        return read(source.find(spec.name, spec.gguf, spec.revision, offline=spec.offline))


def _check_gguf(spec: ModelSpec) -> None:
    """Refuse what is wrong with a file that is here; one on the hub waits until it is needed."""
    if spec.gguf is not None and source.is_on_hub(spec.name):
        if _hub_is_off(spec) and not _is_cached(spec.name, spec, spec.gguf):
            raise _off_limits(spec)
        return
    file = gguf_file(spec)
    with _one_line_errors(spec):
        settings.configuration(file)


def _from_gguf(spec: ModelSpec, device: torch.device, context: int) -> tuple[Any, Any]:
    if spec.as_stored and device.type != "cpu":
        raise ConfigError(f"--as-stored: its kernels run on a CPU, not on {device}; leave it out")
    file = gguf_file(spec)
    with _one_line_errors(spec):
        config = settings.configuration(file)
        dtype = resolve_dtype(spec.dtype, DTYPES[file.dtype], device)
        placement = _placed(config, spec, dtype, context)
        refuse_too_large(spec, placement)
        tokenizer = words.tokenizer(file)
        _check_vocabulary(tokenizer, int(config.vocab_size), spec.name)
        places: Mapping[str, Any] = placement.places or {"": _first_place(spec, device)}
        model = weights.build(file, config, dtype, places, as_stored=spec.as_stored)
    setattr(model, FILE, file)
    return model, tokenizer


def _check_config(config: Any, name: str) -> None:
    """The same that a local config.json is asked, of one that came from anywhere."""
    check_family(config.model_type, name)
    check_sizes(config.to_dict(), f"{name}: config.json")


def _check_disk(path: str, spec: ModelSpec, placement: Placement) -> None:
    """Layers can only stay in files that can be mapped."""
    folder = Path(path)
    if DISK in placement.held and folder.is_dir() and not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{spec.name} has no safetensors files to read layers from; convert it, as "
            "save_pretrained does, or use --dtype bfloat16 or a device with more memory"
        )


def _first_place(spec: ModelSpec, device: torch.device) -> torch.device:
    """Return the device that plain weights go to first."""
    return device if spec.quantize is None else torch.device("cpu")


def _check_vocabulary(tokenizer: Any, vocab_size: int, name: str) -> None:
    # Added tokens may lie beyond: Gemma 3 1B has an image placeholder that no text turns into.
    largest = int(tokenizer.vocab_size) - 1
    if largest >= vocab_size:
        raise ConfigError(
            f"{name}: the tokenizer has ids up to {largest}, the model's vocabulary ends at "
            f"{vocab_size - 1}; they do not belong together"
        )


def _check_complete(missing: Iterable[str], name: str) -> None:
    """transformers makes up what a checkpoint lacks; we do not."""
    lacking = sorted(missing)
    if lacking:
        raise ConfigError(
            f"{name}: the weights lack {len(lacking)} tensors that config.json asks for, first "
            f"{lacking[0]}; fetch the model again"
        )


def _check_made_plain(model: Any, name: str) -> None:
    """Weights that were to become plain ones may lack the scales that tell what they stand for."""
    left = [path for path, p in model.named_parameters() if p.is_floating_point() and _is_small(p)]
    if left:
        raise ConfigError(
            f"{name}: {len(left)} tensors in fp8 lack their scales, first {left[0]}; fetch the "
            "model again"
        )


def _is_small(weight: Tensor) -> bool:
    return weight.element_size() < 2


@contextmanager
def _one_line_errors(spec: ModelSpec) -> Iterator[None]:
    """Turn what transformers and the hub raise into one line with a way out."""
    try:
        yield
    except PpdbenchError:
        raise
    except Exception as error:  # these libraries' errors share no narrower root
        if any(isinstance(one, KeyboardInterrupt) for one in _causes(error)):
            raise KeyboardInterrupt from error  # one that came while they imported a part of theirs
        is_here = Path(spec.name).expanduser().exists() or spec.name in (*EMBEDDED, source.SMOLLM2)
        if isinstance(error, UnpicklingError):
            raise ConfigError(
                f"model {spec.name} does not load: its weights are pickled with more than plain "
                "tensors, which could run code when read, or damaged; use safetensors files"
            ) from error
        if not is_here and _hub_is_off(spec):
            raise _off_limits(spec) from error
        if not is_here and isinstance(error, OSError):
            raise ConfigError(_why_not_from_hub(spec, error)) from error
        text = " ".join(str(error).split())
        raise ConfigError(f"model {spec.name} does not load: {text[:300]}") from error


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and what led to it, the last first."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return causes


def _why_not_from_hub(spec: ModelSpec, error: BaseException) -> str:
    """Say why the hub gave no model, and what to do about it."""
    from huggingface_hub import errors

    causes = _causes(error)

    def is_any(kind: type[BaseException]) -> bool:
        return any(isinstance(one, kind) for one in causes)

    if is_any(errors.GatedRepoError):
        return (
            f"model {spec.name!r} is gated: accept its licence at https://huggingface.co/{spec.name}"
            ", make a token at https://huggingface.co/settings/tokens and run `hf auth login`"
        )
    if is_any(errors.RevisionNotFoundError):
        return f"model {spec.name!r} has no revision {spec.revision!r} on the hub; check --revision"
    if is_any(errors.RemoteEntryNotFoundError):
        wanted = spec.gguf or "config.json"
        return (
            f"model {spec.name!r} has no file {wanted} on the hub; where it holds GGUF files give "
            "--gguf the name of one of them"
        )
    if is_any(errors.RepositoryNotFoundError):
        return (
            f"model {spec.name!r} is no local folder and not on the hub, or private: check the "
            "name, or run `hf auth login` with a token that may read it"
        )
    return (
        f"model {spec.name!r} is no local folder and could not be fetched from the hub; check the "
        "name and the connection, or give --model the path of a local folder"
    )


def token_ids(model: Any) -> tuple[frozenset[int], int]:
    """The ids that end a sequence, and the one that fills a batch, as the model declares them."""
    declared = model.generation_config
    eos = declared.eos_token_id
    if eos is None:
        eos = model.config.eos_token_id
    ids = [eos] if isinstance(eos, int) else list(eos or [])
    pad = declared.pad_token_id
    if pad is None:
        pad = ids[0] if ids else 0
    return frozenset(ids), int(pad)


def forget_file(model: Any) -> None:
    """Take a model for one whose weights are its own, no longer those of a GGUF file."""
    setattr(model, FILE, None)


def weight_fingerprint(model: Any, stored: StoredWeights = NOTHING) -> str:
    """The fingerprint of all parameters of a model, those that stayed on disk included.

    Of a model that came from a GGUF file it is the file's.
    """
    file: GgufFile | None = getattr(model, FILE, None)
    if file is not None:
        return file.fingerprint
    return tensor_fingerprint(
        (name, part) for name, whole in stored.parameters(model) for part in parts(whole)
    )


@torch.no_grad()
def tensor_fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A hash over every tensor's name, shape and up to 4,096 evenly spaced values.

    Sampled, so that a 70B model does not take minutes; any retraining changes it. The values
    count, not their type: weights stored in bfloat16 are the same when loaded as float32.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=itemgetter(0)):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().reshape(-1)
        stride = max(1, -(-flat.numel() // 4096))
        digest.update(flat[::stride].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
