"""Which options TensorRT-LLM has in which release, what they are called now, and who wins when two places set one.

The names are those of the inventory and of `data/option_notes.toml` (`option_table.py`).
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.version import Version

from trtdx.inspect.facts.option_table import CommandFlag, LlmOption, option_table
from trtdx.knowledge.versions import parse_release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


class OptionVerdict(NamedTuple):
    """Why a key does not do what its writer hopes."""

    key: str
    problem: str  # unknown, renamed, removed, newer, engine-only
    instead: str  # the name to write, where there is one
    words: str  # "use_cuda_graph: known up to 0.21.0; now cuda_graph_config"


LAST_STABLE = Version("1.2.1")


def is_option(name: str) -> bool:
    """Tell whether any release knows a top-level key, under its old or its new name."""
    options = option_table()
    return name in options.option or name in options.renamed or name in options.meant


def is_for_autodeploy(keys: Iterable[str], backend: str) -> bool:
    """Tell whether options are for the AutoDeploy backend, which has many keys of its own."""
    autodeploy_keys = option_table().autodeploy
    return backend == "_autodeploy" or (backend == "" and any(key.partition(".")[0] in autodeploy_keys for key in keys))


def judge_options(keys: Iterable[str], version: str | None = None, backend: str = "") -> Iterator[OptionVerdict]:
    """Yield what is wrong with dotted keys; without a version only what no release or not the newest knows."""
    release = parse_release(version or "")
    written = sorted({parent for key in keys for parent in _with_parents(key)})
    bad: set[str] = set()
    for key in written:
        if any(parent in bad for parent in _with_parents(key)):
            continue  # a key below one that is wrong says nothing of its own
        verdict = _judge_option(key, release, backend)
        has_children = any(other.startswith(f"{key}.") for other in written)
        if verdict is None or (verdict.problem == "removed" and has_children):
            continue  # the keys of a section that is gone have names elsewhere
        bad.add(key)
        yield verdict


def _with_parents(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _judge_option(key: str, release: Version | None, backend: str) -> OptionVerdict | None:
    options = option_table()
    option = options.option.get(key)
    if option is None:
        return None if _is_in_free_table(key) else _unknown_verdict(key, release)
    if is_known_in(option, release, options.releases):
        return _engine_only_verdict(key, option, release, backend)
    if option.since and release and release < Version(option.since):
        return _newer_verdict(key, option, release)
    return _removed_verdict(key, option.until, release)


def _newer_verdict(key: str, option: LlmOption, release: Version) -> OptionVerdict:
    options = option_table()
    old = [name for name, new in options.renamed.items() if new.to == key and name in options.option]
    here = [name for name in old if is_known_in(options.option[name], release, options.releases)]
    hint = f"; {release} calls it {here[-1]}" if here else ""
    return OptionVerdict(key, "newer", here[-1] if here else "", f"{key}: since {option.since}, not in {release}{hint}")


def is_known_in(entry: LlmOption | CommandFlag, release: Version | None, releases: tuple[str, ...]) -> bool:
    """Tell whether a release has it; between two releases of the table either of them may speak for it."""
    names = [name for name in releases if _is_in_release(entry, name)]
    if release is None:
        return any(Version(name) >= LAST_STABLE for name in names)
    if release > Version(releases[-1]):
        return releases[-1] in names
    before = [name for name in releases if Version(name) <= release]
    after = [name for name in releases if Version(name) >= release]
    return bool({before[-1] if before else after[0], after[0]} & set(names))


def _is_in_release(entry: LlmOption | CommandFlag, name: str) -> bool:
    here = Version(name)
    if name in entry.absent:
        return False
    return not (entry.since and here < Version(entry.since)) and not (entry.until and here > Version(entry.until))


def _engine_only_verdict(key: str, option: LlmOption, release: Version | None, backend: str) -> OptionVerdict | None:
    """Return the verdict on a key of the TensorRT engine backend that the PyTorch backend is given."""
    if backend not in ("pytorch", "") or (backend == "" and not (release and release >= Version("1.0.0"))):
        return None
    if option.backend == "tensorrt":
        return OptionVerdict(key, "engine-only", "", f"{key}: of the TensorRT engine backend only")
    if option.pytorch_until and (release is None or release > Version(option.pytorch_until)):
        return OptionVerdict(
            key, "engine-only", "", f"{key}: of the TensorRT engine backend only after {option.pytorch_until}"
        )
    return None


def _removed_verdict(key: str, last: str, release: Version | None) -> OptionVerdict:
    new = _new_name(key, release)
    words = f"{key}: " + (f"known up to {last}" if last else "known") + (f", not in {release}" if release else "")
    if not new:
        return OptionVerdict(key, "removed", "", words)
    rename = option_table().renamed.get(key)
    note = rename.note if rename and new.endswith(rename.to) else ""
    return OptionVerdict(key, "renamed", new, f"{words}; now {new}" + (f" ({note})" if note else ""))


def _new_name(key: str, release: Version | None) -> str:
    """Return what a key is called in a release: an old section's key may have moved up before it was renamed."""
    options = option_table()
    section, _, leaf = key.rpartition(".")
    names = [options.renamed[key].to, f"{section}.{options.renamed[key].to}"] if key in options.renamed else []
    names.append(leaf)
    for name in names:
        option = options.option.get(name)
        if name != key and option is not None and is_known_in(option, release, options.releases):
            return name
    return ""


def _is_in_free_table(key: str) -> bool:
    """Tell whether a key lies in a table whose keys are the user's own, such as model_kwargs."""
    parts = key.split(".")
    parents = (".".join(parts[:end]) for end in range(1, len(parts)))
    return any(
        option is not None and option.type in ("dict", "any") for option in map(option_table().option.get, parents)
    )


def _unknown_verdict(key: str, release: Version | None) -> OptionVerdict:
    if key in option_table().renamed:
        return _removed_verdict(key, f"pre-releases of {option_table().renamed[key].since}", release)
    near = nearest_option(key, release)
    hint = f"; did you mean {near}?" if near else ""
    return OptionVerdict(key, "unknown", near, f"{key}: no release up to {option_table().releases[-1]} has it{hint}")


def nearest_option(key: str, release: Version | None = None) -> str:
    """Return the key that was probably meant: a known confusion, the right name elsewhere, or a near spelling."""
    options = option_table()
    names = [name for name, option in options.option.items() if is_known_in(option, release, options.releases)]
    if options.meant.get(key) in names:
        return options.meant[key]
    section, _, leaf = key.rpartition(".")
    here = [name for name in names if name.rpartition(".")[0] == section]
    close = difflib.get_close_matches(key, here, n=1, cutoff=0.75)
    elsewhere = [name for name in names if name.rpartition(".")[2] == leaf]
    if close or len(elsewhere) == 1:
        return (close or elsewhere)[0]
    return ""


def wrong_value_reason(key: str, value: Any, version: str = "") -> str:
    """Return in words what the option takes instead, or "" where the value may be right."""
    option = option_table().option.get(key)
    if option is None or value is None or key.endswith("_choices"):  # choices may be a text to be parsed
        return ""
    if not TYPE_CHECKS.get(option.type, lambda _: True)(value):
        return f"takes {TYPE_WORDS[option.type]}"
    if option.least is not None and float(value) < option.least:
        return f"takes a number of at least {option.least:g}"
    return wrong_choice_reason(option, value, version)


def wrong_choice_reason(entry: LlmOption | CommandFlag, value: Any, version: str) -> str:
    """Return in words which values a release takes, or "" where the value may be one of them."""
    release, releases = parse_release(version), option_table().releases
    if not entry.values or not isinstance(value, str) or (release and release > Version(releases[-1])):
        return ""
    choices = [str(choice) for choice in entry.values if _is_value_taken(entry, str(choice), release)]
    comparable = [choice.lower() for choice in choices] if entry.any_case else choices
    if value in choices or value.lower() in comparable:
        return ""
    near = difflib.get_close_matches(value.lower(), [choice.lower() for choice in choices], n=1, cutoff=0.7)
    meant = next((choice for choice in choices if near and choice.lower() == near[0]), "")
    where = f" in {release}" if release and len(choices) < len(entry.values) else ""
    silence = f", and {entry.otherwise} in silence for any other" if entry.otherwise else ""
    return f"takes one of {', '.join(choices)}{where}{silence}" + (f"; did you mean {meant}?" if meant else "")


def _is_value_taken(entry: LlmOption | CommandFlag, value: str, release: Version | None) -> bool:
    span = LlmOption("str", since=entry.value_since.get(value, ""), until=entry.value_until.get(value, ""))
    return is_known_in(span, release, option_table().releases)


def _is_number(value: Any) -> bool:
    """Tell whether pydantic would make a number of it: texts with digits are numbers to it."""
    if isinstance(value, (int, float)):
        return True
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return isinstance(value, str)


def _is_bool_like(value: Any) -> bool:
    words = ("true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "1", "0")
    return (isinstance(value, (bool, int, float)) and value in (0, 1)) or str(value).lower() in words


TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: _is_number(value) and float(value) == float(value) // 1,
    "float": _is_number,
    "bool": _is_bool_like,
    "str": lambda value: isinstance(value, str),
    "list": lambda value: isinstance(value, list),
    "table": lambda value: isinstance(value, dict),
}
TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "list": "a list",
    "table": "a section with keys of its own",
}


def judge_flags(
    program: str, flags: Iterable[str], version: str | None = None, subcommand: str = ""
) -> Iterator[OptionVerdict]:
    """Yield the flags of a command line that its program does not have, in a release or in any."""
    known_flags: Mapping[str, CommandFlag] = option_table().flag.get(program, {})
    releases = option_table().build_releases if program == "trtllm-build" else option_table().releases
    release = parse_release(version or "")
    if not known_flags or (release and release < Version(releases[0])):
        return
    usable = {
        name: flag
        for name, flag in known_flags.items()
        if is_known_in(flag, release, releases) and (not flag.only or subcommand in ("", *flag.only))
    }
    for name in flags:
        flag = known_flags.get(name) or _flag_by_prefix(program, name, known_flags)
        if flag is None:
            yield _unknown_flag_verdict(name, f"{program} has no such flag", known_flags, usable)
        elif flag.only and subcommand and subcommand not in flag.only:
            words = f"a flag of {program} {' and '.join(flag.only)}, not of {subcommand}"
            yield _unknown_flag_verdict(name, words, known_flags, usable)
        elif release and not is_known_in(flag, release, releases):
            problem = "newer" if flag.since and release < Version(flag.since) else "removed"
            span = f"since {flag.since}" if problem == "newer" else f"known up to {flag.until}"
            yield OptionVerdict(name, problem, "", f"{name}: {span}, not in {release}")


def _unknown_flag_verdict(
    name: str, words: str, known: Mapping[str, CommandFlag], usable: Mapping[str, CommandFlag]
) -> OptionVerdict:
    """Return the verdict on a flag that is not there, with what to write instead."""
    hint, advice = _intended_flag(name, known, usable), option_table().instead.get(name.replace("_", "-"), "")
    if hint and not advice:
        return OptionVerdict(name, "unknown", hint, f"{name}: {words}; did you mean {hint}?")
    return OptionVerdict(name, "unknown", "", f"{name}: {words}" + (f"; {advice}" if advice else ""))


def _intended_flag(name: str, known: Mapping[str, CommandFlag], usable: Mapping[str, CommandFlag]) -> str:
    """Return the flag that was probably meant: the same letters, the same option, or a near spelling.

    An option that has no flag is named as a key of the options file.
    """
    spelling = name.replace("-", "_")
    by_spelling = {flag_name.replace("-", "_"): flag_name for flag_name in reversed(list(usable))}
    if spelling in by_spelling:
        return by_spelling[spelling]
    key = spelling.lstrip("_")
    option = known[name].option if name in known else option_table().meant.get(key, key)
    alike = [flag_name for flag_name, flag in usable.items() if flag.option == option and flag_name.startswith("--")]
    if option and alike:  # what more releases have comes first
        return min(alike, key=lambda flag_name: Version(usable[flag_name].since or "0"))
    if option in option_table().option and "--config" in known:
        return f"{option} in the --config file"
    near = difflib.get_close_matches(spelling, list(by_spelling), n=1, cutoff=0.75)
    return by_spelling[near[0]] if near else ""


def _flag_by_prefix(program: str, name: str, flags: Mapping[str, CommandFlag]) -> CommandFlag | None:
    """Return the flag that a beginning stands for: trtllm-build takes one where it is the only one."""
    longer = [flag for flag in flags if flag.startswith(name)] if program == "trtllm-build" else []
    return flags[longer[0]] if len(longer) == 1 else None


LIMIT_OPTIONS = ("max_batch_size", "max_num_tokens", "max_beam_width", "max_seq_len")


def winning_side(key: str, version: str | None) -> str:
    """Return "yaml" or "flag": which of the two sets a key in a release; "" if that is not known.

    Up to 1.2.1 the YAML file wins, except that 0.21 and 1.0 take the four limits from the command line
    (through build_config). Explicit flags win since #14812, which went into 1.3.0rc18 or rc19.
    """
    release = parse_release(version or "")
    if release is None or Version("1.3.0rc17") < release < Version("1.3.0rc19"):
        return ""
    if release >= Version("1.3.0rc19"):
        return "flag"
    through_build_config = Version("0.21.0") <= release < Version("1.1.0rc0")
    return "flag" if key in LIMIT_OPTIONS and through_build_config else "yaml"


def are_sections_merged(version: str | None) -> bool | None:
    """Tell whether a kv_cache_config in YAML leaves the flags of that section alone (since 1.2); None: not known."""
    release = parse_release(version or "")
    return None if release is None else release >= Version("1.2.0rc0")
