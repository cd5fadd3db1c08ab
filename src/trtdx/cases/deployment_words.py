"""The release, the GPUs and the models that a text names."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from importlib import resources

import msgspec

from trtdx.knowledge.versions import gpu_names, sm_of_gpu

MAX_GPUS, MAX_MODELS = 4, 4
# Names of families that are words of other things too; they count with a version or a size behind them only.
_COMMON_WORDS = frozenset(
    {"bart", "bert", "opt", "phi", "mpt", "glm", "t5", "mt5", "step3", "aria", "cwm", "solar", "laguna", "mellum"}
    | {
        "youtu",
        "helium",
        "persimmon",
        "bamba",
        "eagle",
        "refinedweb",
        "whisper",
        "gptj",
        "gpt2",
        "hy_v3",
        "mimo",
        "dots1",
    }
)
_RELEASE = re.compile(
    r"(?i)\btensorrt[-_ ]?llm(?:[-_ ]version)?['\"]?(?:\]| |:|=|@|v|/|-|release|version|of){1,12}"
    r"(?P<release>\d+\.\d+\.\d+(?:\.?(?:rc|post|dev)\d+)?)\b"
)


def stated_release(text: str) -> str:
    """Return the release of TensorRT-LLM that a text names most often; empty where it names none."""
    counts = Counter(match["release"] for match in _RELEASE.finditer(text))
    return counts.most_common(1)[0][0] if counts else ""


@cache
def _gpu_pattern() -> re.Pattern[str]:
    names = sorted(gpu_names(), key=len, reverse=True)
    spelt = "|".join(re.escape(name).replace(r"\ ", "[ -]?") for name in names)
    return re.compile(rf"(?<![A-Za-z0-9])({spelt})(?![A-Za-z0-9])")


def named_gpus(text: str) -> tuple[str, ...]:
    """Return the GPUs that a text names, the most often named first."""
    spelt = Counter(match[1].upper().replace("-", " ") for match in _gpu_pattern().finditer(text))
    return tuple(name for name, _ in spelt.most_common(MAX_GPUS))


@cache
def compute_capability(gpu: str) -> int | None:
    """Return the compute capability of a GPU; a search asks for the same few again and again."""
    return sm_of_gpu(gpu)


class _FamilyNames(msgspec.Struct, frozen=True):
    counted: tuple[str, ...]


@cache
def _model_pattern() -> re.Pattern[str]:
    data = resources.files("trtdx").joinpath("data/model_families.toml").read_bytes()
    families = {name.replace("_", "") for name in msgspec.toml.decode(data, type=_FamilyNames).counted}
    plain = {re.sub(r"\d.*$", "", name) for name in families - _COMMON_WORDS} | {"qwen", "gpt-oss"}
    alone = "|".join(sorted((name for name in plain if len(name) > 2), key=len, reverse=True))
    sized = "|".join(sorted(_COMMON_WORDS, key=len, reverse=True))
    version = r"(?:[-_ ]?[vVrRkK]?(?P<version{n}>\d{{1,2}}(?:[._]\d{{1,2}})?)(?![\d.]*(?:[xX]\d+)?[bB]))"
    size = r"(?:[-_ ]?(?P<size{n}>\d{{1,4}}(?:\.\d)?(?:[xX]\d+)?[bB])(?![A-Za-z]))"
    return re.compile(
        rf"(?<![a-z])(?P<name1>{alone}){version.format(n=1)}?{size.format(n=1)}?|"
        rf"(?<![A-Za-z])(?P<name2>{sized})(?:{version.format(n=2)}{size.format(n=2)}?|{size.format(n=3)})",
        re.IGNORECASE,
    )


def named_models(text: str) -> tuple[str, ...]:
    """Return the models that a text names: the most often named, most particular first, and its family last."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for match in _model_pattern().finditer(text):
        name = (match["name1"] or match["name2"]).lower()
        version = (match["version1"] or match["version2"] or "").replace("_", ".")
        size = (match["size1"] or match["size2"] or match["size3"] or "").lower()
        counts[name, version, size] += 1
    if not counts:
        return ()
    families = Counter[str]()
    for (name, _, _), count in counts.items():
        families[name] += count
    family = families.most_common(1)[0][0]
    named = [key for key, _ in counts.most_common() if key[0] == family]
    names = ["-".join(filter(None, key)) for key in sorted(named, key=lambda key: -len("".join(key)))]
    return tuple(dict.fromkeys([*names[: MAX_MODELS - 1], family]))
