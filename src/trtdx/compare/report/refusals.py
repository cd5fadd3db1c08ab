"""What is known before anything is compared: weights that do not fit their config, and two different architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.compare.attribute.files.hf_folders import read_config_json
from trtdx.compare.attribute.mistakes.config_settings import OTHER_SETTING, SILENT_SETTINGS, SettingDifference
from trtdx.compare.attribute.twin.stand_in import find_model_spec
from trtdx.compare.report.comparison_report import ComparisonReport
from trtdx.compare.report.finding import finding_at
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Summary, Where
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.compare.sides.side import Side, SideSpec
    from trtdx.engines.torch.hugging_face import RefusedWeightsError
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

NO_BIAS, UNFIT, OTHER_ARCHITECTURE = "DX987", "DX716", "DX715"
# Sizes that a model of the same architecture shares with what it was made from.
ARCHITECTURE_SIZES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "attention heads": ("num_attention_heads", "n_head"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"),
}


def refused_weights_report(
    err: RefusedWeightsError, specs: tuple[SideSpec, SideSpec], book: RuleBook, reference: Side
) -> ComparisonReport:
    """Return what a candidate's weights that do not fit its config say: the refusal is the finding."""
    settings = _different_settings(specs)
    stated = [
        f"{setting.name} is {_json_excerpt(setting.actual)}, in the reference {_json_excerpt(setting.expected)}"
        for setting in settings
    ]
    biases = bool(err.unexpected) and all(name.endswith("bias") for name in err.unexpected)
    named = [name.rpartition(".")[0] for name in (*err.unexpected, *err.missing, *err.mismatched)]
    order = [place.path for place in reference.capture.files(reference.capture.ranks[0]).places]
    module = next((path for path in order if path in named), named[0] if named else "")
    what = f"{err.message}; {abbreviate_list(stated, 3, '; ')}" if stated else err.message
    where = Where(step=0, tensor=f"{module}:out" if module else "the weights", module=module)
    evidence = (Evidence(str(where), err.message), *(Evidence("config.json", text) for text in stated[:3]))
    values = {"what": what, "module": module}
    code = NO_BIAS if biases else UNFIT
    if code == UNFIT and len(settings) == 1 and settings[0].code not in (NO_BIAS, OTHER_SETTING):
        code, stated_values = settings[0].code, settings[0].values  # what the configs state outright
        values = {**stated_values, "module": module, "what": f"{stated_values['what']}; {err.message}"}
    finding = finding_at(where, book.get(code), Violation(evidence, values, confidence=0.95))
    return ComparisonReport(summary=Summary(f"nothing was compared: {what}"), findings=(finding,))


def _different_settings(specs: tuple[SideSpec, SideSpec]) -> list[SettingDifference]:
    """Return what the two configs state differently, as they stand."""
    if any(spec.kind != "hf" for spec in specs):
        return []
    reference, candidate = (read_config_json(spec.path) for spec in specs)
    return [
        SettingDifference(name, reference[name], candidate.get(name))
        for name in reference
        if reference[name] != candidate.get(name) and not name.startswith("_") and name not in SILENT_SETTINGS
    ]


def _json_excerpt(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:60]


def find_other_architecture(reference: Side, candidate: Side, book: RuleBook) -> Finding | None:
    """Return that the two are different architectures, if their configs say so: of another width, depth or number of heads."""
    specs = find_model_spec(reference), find_model_spec(candidate)
    folders = [spec.path for spec in specs if spec is not None and spec.kind == "hf"]
    if len(folders) < 2:
        return None
    reference_settings, candidate_settings = (read_config_json(folder) for folder in folders)
    apart = [
        f"{_json_excerpt(value)} and {_json_excerpt(other)} {size_name}"
        for size_name, names in ARCHITECTURE_SIZES.items()
        if (value := _first_setting(reference_settings, names)) != (other := _first_setting(candidate_settings, names))
        and value
        and other
    ]
    if not apart:
        return None
    kinds = [str(settings.get("model_type", "?")) for settings in (reference_settings, candidate_settings)]
    what = "; ".join([*([f"{kinds[0]} and {kinds[1]}"] if kinds[0] != kinds[1] else []), *apart])
    evidence = tuple(Evidence(f"{folder}/config.json", str(kind)) for folder, kind in zip(folders, kinds, strict=True))
    return finding_from(book.get(OTHER_ARCHITECTURE), Violation(evidence, {"what": what}))


def _first_setting(settings: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    model_settings = settings.get("text_config") if isinstance(settings.get("text_config"), dict) else settings
    return next(
        (model_settings[name] for name in names if model_settings and model_settings.get(name) is not None),
        None,
    )
