"""Whether a file holds options of the LLM API, from its name and first keys alone."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from trtdx.formats.documents import UnreadableError, parse_json
from trtdx.formats.yaml_documents import parse_yaml
from trtdx.inspect.facts.option_table import option_table
from trtdx.inspect.facts.options import is_option
from trtdx.inspect.readers import START_BYTES, PathProbe

if TYPE_CHECKING:
    from trtdx.host import Host


TRITON_SECTION = "triton_config"  # of Triton's llmapi/tensorrt_llm/1/model.yaml


OPTIONS_SUFFIXES = (".yaml", ".yml", ".json")


# Of other configurations that share some names: `trtllm-serve disaggregated` (several servers in one file), and
# visual generation (--visual_gen_args).
OTHER_CONFIG_KEYS = {
    "context_servers", "generation_servers", "attention_config", "parallel_config", "compilation_config",
}  # fmt: skip
LOG_LINE = re.compile(r"\[(?:TRT-LLM|TensorRT-LLM|TRT|[IWEVD])\]")


def is_options_file(host: Host, probe: PathProbe) -> bool:
    """Return whether at least half of a file's top-level keys are options, or nearly so."""
    if probe.is_directory or not probe.path.lower().endswith(OPTIONS_SUFFIXES):
        return False
    keys = _top_level_keys(probe)
    if OTHER_CONFIG_KEYS & set(keys):
        return False
    option_keys = [key for key in keys if key == TRITON_SECTION or is_option(key) or _resembles_option(key)]
    return bool(option_keys) and 2 * len(option_keys) >= len(keys)


def _top_level_keys(probe: PathProbe) -> list[str]:
    """Return a file's top-level keys, from a broken file too: it is to be told what is wrong with it."""
    if not probe.path.lower().endswith(".json") and not probe.start.lstrip().startswith(b"{"):
        text = probe.start.decode("utf-8", "replace")
        return list(dict.fromkeys(re.findall(r"^([A-Za-z_]\w{0,80})[ \t]*:(?:\s|$)", text, re.MULTILINE)))[:500]
    if len(probe.start) >= START_BYTES:
        return []
    is_json = probe.path.lower().endswith(".json")
    try:  # YAML may be one table in braces, as JSON is
        return list(parse_json(probe.start) if is_json else parse_yaml(probe.start, "").data)[:500]
    except UnreadableError:
        return []


def _resembles_option(key: str) -> bool:
    names = [name for name in option_table().option if "." not in name]
    return bool(get_close_matches(key, names, n=1, cutoff=0.85))
