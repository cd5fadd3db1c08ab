"""Hugging Face models from a local folder: nothing is downloaded, no code of the folder runs, no weight is made up."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.errors import InputError, UnknownNameError
from trtdx.formats.safetensors import read_safetensors_header
from trtdx.host import RealHost
from trtdx.installation import install_packages
from trtdx.optional import import_optional
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONFIG_FILE = "config.json"
MOST_LAYERS = 10_000
SHARD_INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


class LoadedModel(NamedTuple):
    """A model, and what its reader should know about how it was loaded."""

    model: Any
    notes: list[str]


class RefusedWeightsError(InputError):
    """Weights that do not fit the config: which are missing, left over, or of another size."""

    def __init__(
        self,
        message: str,
        *,
        fix: str,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        mismatched: Sequence[str] = (),
    ) -> None:
        super().__init__(message, fix=fix)
        self.missing, self.unexpected, self.mismatched = missing, unexpected, mismatched


class _ShardIndex(msgspec.Struct, frozen=True):
    """What of an index of shards matters here: the file of each tensor."""

    weight_map: dict[str, str]


def load_model(
    path: str | Path, *, dtype: str = "auto", attention: str = "", device: str = "cpu", strict: bool = True
) -> LoadedModel:
    """Return the causal language model of a Hugging Face folder, ready to be run, with notes on its weights.

    Args:
        path: a local folder with config.json and weights (safetensors, else torch files without code in them).
        dtype: what to compute in, such as "float32" or "bfloat16"; "auto" is what the config says.
        attention: "eager", "sdpa" or another that transformers knows; where it is empty, transformers chooses.
        device: where the weights go.
        strict: whether weights that no part of the model wants are an error.

    Raises:
        InputError: the folder holds no model that can be computed as it is. A weight that is missing or has
            another size is always an error: transformers would fill it with random numbers.
    """
    transformers = import_optional("transformers", extra="torch", purpose="load a Hugging Face model")
    folder = Path(path)
    options = {
        "dtype": _torch_dtype(dtype), "use_safetensors": _check_folder(folder), "local_files_only": True, "trust_remote_code": False,
        "weights_only": True, "output_loading_info": True, "ignore_mismatched_sizes": True,
    }  # fmt: skip
    if attention:
        options["attn_implementation"] = attention
    with _silence_transformers(transformers):
        try:
            model, loading_info = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
            model = model.to(device).eval()
        except Exception as err:  # each of the many things transformers checks raises its own kind
            raise _error_from_transformers(folder, err) from err
    notes = [] if options["use_safetensors"] else ["the weights are torch files, read without running code in them"]
    return LoadedModel(model, notes + _check_loading_info(folder, model, loading_info, strict=strict))


def load_outline(path: str | Path) -> Any:
    """Return the modules of a Hugging Face folder without their weights: to be looked at, not to be run.

    Raises:
        InputError: the folder says no architecture that can be made.
    """
    transformers = import_optional("transformers", extra="torch", purpose="load a Hugging Face model")
    torch = import_optional("torch", extra="torch", purpose="load a model")
    folder = Path(path)
    _check_config(folder)
    with _silence_transformers(transformers), torch.device("meta"):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False).eval()
        except Exception as err:  # each of the many things transformers checks raises its own kind
            raise _error_from_transformers(folder, err) from err


def _torch_dtype(name: str) -> Any:
    if name == "auto":
        return name
    torch = import_optional("torch", extra="torch", purpose="load a model")
    floats = [dtype for dtype in ("float32", "bfloat16", "float16", "float64") if hasattr(torch, dtype)]
    if name not in floats:
        raise UnknownNameError("type to compute in", name, ["auto", *floats])
    return getattr(torch, name)


def _check_folder(folder: Path) -> bool:
    """Raise if something of the model is not there or not whole; returns whether its weights are safetensors."""
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {state}, not a Hugging Face folder", fix="name the folder that holds config.json")
    _check_config(folder)
    for name in SHARD_INDEX_FILES:
        if (folder / name).is_file():
            _check_shards(folder, name)
            return name == SHARD_INDEX_FILES[0]
    safe = sorted(folder.glob("*.safetensors"))
    for file in safe:
        _check_safetensors(file)
    if not safe and not sorted(folder.glob("*.bin")):
        raise InputError(
            f"{folder} holds no weights", fix="put model.safetensors, or all its shards, beside config.json"
        )
    return bool(safe)


def _check_config(folder: Path) -> None:
    try:
        config = msgspec.json.decode((folder / CONFIG_FILE).read_bytes())
    except FileNotFoundError:
        raise InputError(f"{folder} has no {CONFIG_FILE}", fix="name the folder that holds config.json") from None
    except OSError as err:
        raise InputError(f"{folder / CONFIG_FILE} cannot be read: {err.strerror or err}") from err
    except msgspec.MsgspecError as err:
        raise InputError(f"{folder / CONFIG_FILE} is not JSON: {err}") from err
    if isinstance(config, dict) and ("pretrained_config" in config or "architecture" in config):
        raise InputError(
            f"{folder} is {'an engine' if 'pretrained_config' in config else 'a checkpoint'} of TensorRT-LLM, "
            "which cannot be computed here",
            fix=f"name the Hugging Face folder it was made from; `trtdx inspect {folder}` shows what is in it",
        )
    if not isinstance(config, dict) or not config.get("model_type"):
        raise InputError(
            f"{folder / CONFIG_FILE} does not say its model_type", fix="use the config the model came with"
        )
    for name in ("num_hidden_layers", "num_layers", "n_layer"):
        layers = config.get(name)
        if isinstance(layers, int) and not 0 <= layers <= MOST_LAYERS:  # transformers would make them all
            raise InputError(
                f"{folder / CONFIG_FILE} says {name} is {layers}", fix="use the config the model came with"
            )


def _check_shards(folder: Path, index: str) -> None:
    try:
        names = sorted(set(msgspec.json.decode((folder / index).read_bytes(), type=_ShardIndex).weight_map.values()))
    except (OSError, msgspec.MsgspecError) as err:
        raise InputError(f"{folder / index} cannot be read: {err}") from err
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise InputError(f"{folder / index} names {outside[0]!r}, which is not a file beside it")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        count_text = f"{format_count(len(missing), 'file')} of {len(names)} that {index} names"
        raise InputError(f"{folder} lacks {count_text}: {abbreviate_list(missing)}", fix="fetch the missing shards")
    for name in names:
        if name.endswith(".safetensors"):
            _check_safetensors(folder / name)


def _check_safetensors(path: Path) -> None:
    """Raise if a safetensors file is cut off, is a pointer to a file elsewhere, or is damaged."""
    header = read_safetensors_header(RealHost(), str(path))
    if header.problem:
        raise InputError(f"{path} {header.problem}", fix="fetch the file again")


def _check_loading_info(folder: Path, model: Any, loading_info: dict[str, Any], *, strict: bool) -> list[str]:
    """Return what is to be noted of the weights, or raise."""
    architecture = type(model).__name__
    wrong = sorted(loading_info["mismatched_keys"])
    if wrong:
        texts = [f"{name} is {list(actual)} and should be {list(expected)}" for name, actual, expected in wrong]
        raise RefusedWeightsError(
            f"{format_count(len(wrong), 'weight')} in {folder} of another size than {CONFIG_FILE} says: {abbreviate_list(texts, 3, '; ')}",
            fix="use the config and the weights of one and the same model",
            mismatched=[name for name, _, _ in wrong],
        )
    if loading_info["missing_keys"]:
        names = sorted(loading_info["missing_keys"])
        raise RefusedWeightsError(
            f"{format_count(len(names), 'weight')} of {architecture} not in {folder}: {abbreviate_list(names, 3)}",
            fix=_fix_for_missing(model, architecture),
            missing=names,
        )
    if loading_info.get("error_msgs"):
        raise InputError(f"{folder} cannot be loaded: {abbreviate_list(loading_info['error_msgs'], 2, '; ')}")
    if not loading_info["unexpected_keys"]:
        return []
    names = sorted(loading_info["unexpected_keys"])
    note = f"{format_count(len(names), 'weight')} in {folder} not wanted by {architecture}: {abbreviate_list(names, 3)}"
    if strict:
        raise RefusedWeightsError(
            note,
            fix="check model_type and architectures, or pass strict=False to leave them out",
            unexpected=names,
        )
    return [note]


def _fix_for_missing(model: Any, architecture: str) -> str:
    declared = getattr(model.config, "architectures", None) or [architecture]
    if architecture not in declared:
        return (
            f"{CONFIG_FILE} says that it is a {declared[0]}, which does not generate: run it from Python inside "
            "trtdx.capture.session.live.capturing(model, ...), or export it to ONNX"
        )
    return "fetch the whole checkpoint; missing weights would be random numbers"


def _error_from_transformers(folder: Path, err: Exception) -> InputError:
    """Return what transformers refused, in our words where it is a thing users meet."""
    text = str(err).strip() or type(err).__name__
    first = " ".join(line.strip() for line in text.splitlines()[:2])
    if "custom code" in text or "trust_remote_code" in text:
        return InputError(
            f"{folder} needs code of its own, which is not run",
            fix="load the model yourself after reading that code, and pass the module instead of its folder",
        )
    if "Weights only load failed" in text:  # torch's own words advise to run the code
        return InputError(
            f"{folder} has torch files that hold more than weights; code in them is not run",
            fix="use the model's safetensors, or convert it where you trust it",
        )
    if "does not recognize this architecture" in text:
        version = import_optional("transformers", extra="torch", purpose="load a model").__version__
        return InputError(
            f"{first.partition('. ')[0]} (transformers {version})", fix=install_packages("-U", "transformers")
        )
    if "Unrecognized configuration class" in text:
        kind = text.partition("configuration_")[2].partition(".")[0] or "this one"
        return InputError(
            f"{folder} is not a causal language model: transformers has none of type {kind}",
            fix="run it from Python inside trtdx.capture.session.live.capturing(model, ...), or export it to ONNX",
        )
    return InputError(f"{folder} cannot be loaded: {first}")


@contextlib.contextmanager
def _silence_transformers(transformers: Any) -> Iterator[None]:
    """Keep transformers from writing its reports and progress to the terminal: what matters is raised or noted."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
