"""What files promise about each other: every one is there, whole, readable, and what the others say it is."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from trtdx.formats.safetensors import FACT_DTYPES
from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.serving import names_artifact
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence, Severity
from trtdx.words import abbreviate_list, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

ON_DISK_KINDS = ("hf", "tokenizer", "checkpoint", "engine", "lora")
LFS_WORDS = "Git-LFS pointer"
INCOMPLETE_FACTS = ("weights.missing", "weights.truncated", "weights.lfs_pointers", "weights.corrupt")
FLOAT_DTYPES = tuple(FACT_DTYPES.values())
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
MAIN_DTYPE_SHARE = 0.9  # norms and routers are often kept in another type
FILE_SUFFIXES = (".safetensors", ".gguf", ".onnx")


def quoted_folder(artifact: Artifact) -> str:
    """Return the artifact's directory as it can be pasted into a shell."""
    path = artifact.path.rpartition("/")[0] or "." if artifact.path.endswith(FILE_SUFFIXES) else artifact.path
    return shlex.quote(path.rstrip("/") or "/")


def problem_file(problem: str) -> str:
    """Return the file of a problem such as "model.safetensors: is empty"."""
    return problem.partition(": ")[0]


def remake_file_values(artifact: Artifact, file: str) -> dict[str, str]:
    """Return how a damaged file is made anew: what TensorRT-LLM wrote itself cannot be downloaded."""
    if artifact.kind == "checkpoint":
        command = "python3 convert_checkpoint.py --model_dir MODEL_DIR --output_dir EMPTY_DIRECTORY"
        return {"remedy": "convert the model again into an empty directory", "command": command}
    if artifact.kind == "engine":
        command = "trtllm-build --checkpoint_dir CHECKPOINT_DIR --output_dir EMPTY_DIRECTORY"
        return {"remedy": "build the engine again into an empty directory", "command": command}
    name = shlex.quote(file)
    command = f"hf download ORG/MODEL {name} --local-dir {quoted_folder(artifact)} --force-download"
    return {"remedy": f"download, copy or save {file} again", "command": command}


def is_fully_read(artifact: Artifact) -> bool:
    """Return whether everything was there and was read, so that what is absent is known to be absent."""
    return not artifact.unread and not any(artifact.items(name) for name in INCOMPLETE_FACTS)


@make_agreement("DX086", *ON_DISK_KINDS, "onnx", needs=("hf|tokenizer|checkpoint|engine|lora|onnx",))
def files_fetched(deployment: Deployment) -> Iterator[Violation]:
    """Files are the files themselves, not the pointers Git LFS leaves in their place."""
    for artifact in deployment.artifacts:
        weights = [problem_file(problem) for problem in artifact.items("weights.lfs_pointers")]
        others = [problem_file(problem) for problem in artifact.items("unparsed") if LFS_WORDS in problem]
        if weights or others:
            facts = [name for name in ("weights.lfs_pointers", "unparsed") if artifact.has(name)]
            yield Violation(
                artifact.evidence(*facts),
                {
                    "files": abbreviate_list(weights + others, 3),
                    "count": len(weights + others),
                    "folder": quoted_folder(artifact),
                },
            )


@make_agreement("DX087", *ON_DISK_KINDS, needs=("hf|tokenizer|checkpoint|engine|lora",))
def weights_whole(deployment: Deployment) -> Iterator[Violation]:
    """Files of weights are as long as their headers say, and their headers can be right."""
    for artifact in deployment.of_kinds(*ON_DISK_KINDS):
        faults = [*artifact.items("weights.truncated"), *artifact.items("weights.corrupt")]
        if not faults:
            continue
        file, _, problem = faults[0].partition(": ")
        more = f", and {format_count(len(faults) - 1, 'other file')} too" if len(faults) > 1 else ""
        yield Violation(
            tuple(_fault_evidence(artifact, fault) for fault in faults[:MAX_FAULTS]),
            {
                "file": file,
                "problem": problem + more,
                "folder": quoted_folder(artifact),
                **remake_file_values(artifact, file),
            },
        )


MAX_FAULTS = 4  # files named as evidence


def _fault_evidence(artifact: Artifact, fault: str) -> Evidence:
    """Return a damaged file and what is wrong with it."""
    file, _, problem = fault.partition(": ")
    inside = artifact.path.endswith(FILE_SUFFIXES)
    return Evidence(artifact.path if inside else f"{artifact.path.rstrip('/')}/{file}", problem)


@make_agreement("DX771", "hf", "checkpoint")
def dtype_as_stated(deployment: Deployment) -> Iterator[Violation]:
    """Weights have the data type the configuration states."""
    for model in deployment.of_kinds("hf", "checkpoint"):
        stated, stored = model.text("dtype"), stored_dtype(model)
        if stated not in FLOAT_DTYPES or not stored or stored == stated:
            continue
        size = sum(model.table("weights.bytes_by_dtype").values())
        yield Violation(
            model.evidence("dtype", "weights.bytes_by_dtype"),
            {
                "stated": stated,
                "stored": stored,
                "effect": _dtype_effect(stated, stored),
                **_dtype_remedy(model, stated, stored),
                "size": format_bytes(size),
                "folder": quoted_folder(model),
            },
            confidence=0.9,
        )


def _dtype_remedy(model: Artifact, stated: str, stored: str) -> dict[str, str]:
    """Return which side to change: weights that are too wide are made anew, others are right."""
    if model.kind == "checkpoint":
        command = f"python3 convert_checkpoint.py --model_dir MODEL_DIR --dtype {stated} --output_dir EMPTY_DIRECTORY"
        return {"remedy": f"convert the model again, all of it in {stated}", "command": command}
    folder = quoted_folder(model)
    if DTYPE_BYTES[stored] > DTYPE_BYTES[stated]:
        program = (
            "import sys; from transformers import AutoModelForCausalLM as M; "
            f"M.from_pretrained(sys.argv[1], torch_dtype='{stated}').save_pretrained(sys.argv[2])"
        )
        command = f'python3 -c "{program}" {folder} EMPTY_DIRECTORY'
        return {"remedy": f"save the model as {stated}, the type it is meant to run in", "command": command}
    return {
        "remedy": f'set torch_dtype (dtype since transformers 5) to "{stored}", the type of the weights',
        "command": f"grep -n dtype {folder}/config.json",
    }


def stored_dtype(model: Artifact) -> str:
    """Return the type nearly all weights have; none where they are quantised or mixed."""
    sizes = model.table("weights.bytes_by_dtype")
    if not sizes or any(model.has(name) for name in ("quant.algo", "quant.method", "quant.per_layer")):
        return ""
    numbers = {name: size for name, size in sizes.items() if isinstance(size, int)}
    main = max(numbers, key=lambda name: numbers[name], default="")
    enough = main in FLOAT_DTYPES and numbers[main] >= MAIN_DTYPE_SHARE * sum(numbers.values()) > 0
    return main if enough else ""


def _dtype_effect(stated: str, stored: str) -> str:
    if DTYPE_BYTES[stored] > DTYPE_BYTES[stated]:
        return "the files are larger than what is computed with, and every start reads and converts all of it"
    if DTYPE_BYTES[stored] < DTYPE_BYTES[stated]:
        return "the model takes more memory and time than its weights are precise"
    if stated == "float16":
        return "values above 65504, which bfloat16 holds, become infinite"
    return "three bits of each weight are rounded away"


@make_agreement("DX133", *ON_DISK_KINDS, needs=("hf|tokenizer|checkpoint|engine|lora",))
def files_parse(deployment: Deployment) -> Iterator[Violation]:
    """Configuration and tokenizer files can be parsed."""
    for artifact in deployment.of_kinds(*ON_DISK_KINDS):
        for problem in artifact.items("unparsed")[:8]:
            file, _, reason = problem.partition(": ")
            if LFS_WORDS not in reason:
                yield Violation(
                    (Evidence(f"{artifact.path.rstrip('/')}/{file}", reason),),
                    {
                        "file": file,
                        "reason": reason,
                        "folder": quoted_folder(artifact),
                        **(_reencode_remedy(artifact, file, reason) or remake_file_values(artifact, file)),
                    },
                )


def _reencode_remedy(artifact: Artifact, file: str, reason: str) -> dict[str, str]:
    """Return how a file that is only written in the wrong encoding is mended; nothing for others."""
    codecs_by_words = {"byte-order mark": "UTF-8-SIG", "UTF-16": "UTF-16"}
    encoding = next((codec for words, codec in codecs_by_words.items() if words in reason), "")
    if not encoding:
        return {}
    program = f"import sys, pathlib; p=pathlib.Path(sys.argv[1]); p.write_text(p.read_text('{encoding}'), 'UTF-8')"
    command = f'python3 -c "{program}" {quoted_folder(artifact)}/{shlex.quote(file)}'
    return {"remedy": f"save {file} as UTF-8 without a byte-order mark", "command": command}


@make_agreement("DX772", *ON_DISK_KINDS, needs=("hf|tokenizer|checkpoint|engine|lora",))
def values_of_their_type(deployment: Deployment) -> Iterator[Violation]:
    """Values are of the type that whoever reads them expects."""
    for artifact in deployment.of_kinds(*ON_DISK_KINDS):
        files: dict[str, list[tuple[str, str, str]]] = {}
        for item in artifact.items("malformed"):
            where, _, rest = item.partition(" = ")
            value, _, expected = rest.rpartition(": ")
            files.setdefault(where.partition(": ")[0], []).append((where, value, expected))
        for file, faults in files.items():
            keys = [f"{where.partition(': ')[2]} is {value} ({expected})" for where, value, expected in faults]
            yield Violation(
                tuple(Evidence(where, value) for where, value, _ in faults[:8]),
                {
                    "name": file.removeprefix(artifact.path).lstrip("/"),
                    "what": abbreviate_list(keys, 8),
                    "file": shlex.quote(file),
                },
            )


@make_agreement("DX776", "hf")
def config_there(deployment: Deployment) -> Iterator[Violation]:
    """A config.json lies beside the weights."""
    for model in deployment.of_kinds("hf"):
        if "config.json" in model.items("absent") and model.integer("weights.files"):
            yield Violation(
                model.evidence("absent", "weights.files"),
                {"path": model.path, "folder": quoted_folder(model)},
            )


@make_agreement("DX253", "hf", "tokenizer", "command", "llm-args", "triton", needs=("hf",))
def tokenizer_there(deployment: Deployment) -> Iterator[Violation]:
    """A tokenizer is among the files of a model, or is named elsewhere."""
    for model in deployment.of_kinds("hf"):
        stated = model.has("tokenizer.files", "architecture") and not model.items("tokenizer.files")
        lent = any(_brings_tokenizer(artifact) for artifact in deployment.artifacts if _may_lend(artifact, model))
        if stated and not lent and not model.get("encoder_decoder"):
            served = any(
                names_artifact(command, "runtime.model", model)
                and command.text("runtime.command").startswith("trtllm-serve")
                for command in deployment.of_kinds("command")
            )
            yield Violation(
                (Evidence(model.path, "no tokenizer.json, tokenizer.model, vocab.json or tokenizer_config.json"),),
                {"path": model.path, "folder": quoted_folder(model)},
                Severity.ERROR if served else Severity.WARNING,
                0.8,
            )


def _may_lend(artifact: Artifact, model: Artifact) -> bool:
    """Return whether a tokenizer of this artifact can be meant for a model: another model has its own."""
    return artifact.kind != "hf" or artifact.get("vocab_size") == model.get("vocab_size")


def _brings_tokenizer(artifact: Artifact) -> bool:
    return bool(
        artifact.items("tokenizer.files")
        or artifact.has("tokenizer.size")
        or artifact.has("runtime.tokenizer")
        or artifact.table("triton.tokenizer_dirs")
    )


@make_agreement("DX697", "lora")
def adapter_whole(deployment: Deployment) -> Iterator[Violation]:
    """An adapter has its configuration and its weights."""
    for adapter in deployment.of_kinds("lora"):
        absent = adapter.items("absent")
        if absent:
            yield Violation(
                adapter.evidence("absent"),
                {"files": abbreviate_list(absent, 3), "folder": quoted_folder(adapter)},
            )
