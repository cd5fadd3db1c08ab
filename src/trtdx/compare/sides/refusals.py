"""What is known before anything is compared: weights that do not fit their config, and two different architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.compare.attribute.files.hf_folders import raw_settings
from trtdx.compare.attribute.ideas.config_settings import OTHER_SETTING, SILENT, Setting
from trtdx.compare.attribute.twin.twin import model_of
from trtdx.compare.report.finding import finding_at
from trtdx.compare.report.report import ComparisonReport
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Summary, Where
from trtdx.words import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.compare.sides.side import Side, Spec
    from trtdx.engines.torch.load import RefusedWeightsError
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

NO_BIAS, UNFIT, OTHER_ARCHITECTURE = "DX987", "DX716", "DX715"
# Sizes that a model of the same architecture shares with what it was made from.
SIZES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "attention heads": ("num_attention_heads", "n_head"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"),
}


def refused_report(
    err: RefusedWeightsError, specs: tuple[Spec, Spec], book: RuleBook, reference: Side
) -> ComparisonReport:
    """Return what a candidate's weights that do not fit its config say: the refusal is the finding."""
    settings = _settings(specs)
    stated = [
        f"{setting.name} is {_short(setting.found)}, in the reference {_short(setting.expected)}"
        for setting in settings
    ]
    biases = bool(err.unexpected) and all(name.endswith("bias") for name in err.unexpected)
    named = [name.rpartition(".")[0] for name in (*err.unexpected, *err.missing, *err.mismatched)]
    order = [place.path for place in reference.capture.files(reference.capture.ranks[0]).places]
    module = next((path for path in order if path in named), named[0] if named else "")
    what = f"{err.message}; {listed(stated, 3, '; ')}" if stated else err.message
    where = Where(step=0, tensor=f"{module}:out" if module else "the weights", module=module)
    evidence = (Evidence(str(where), err.message), *(Evidence("config.json", text) for text in stated[:3]))
    values = {"what": what, "module": module}
    code = NO_BIAS if biases else UNFIT
    if code == UNFIT and len(settings) == 1 and settings[0].code not in (NO_BIAS, OTHER_SETTING):
        code, stated_values = settings[0].code, settings[0].values  # what the configs state outright
        values = {**stated_values, "module": module, "what": f"{stated_values['what']}; {err.message}"}
    finding = finding_at(where, book.get(code), Violation(evidence, values, confidence=0.95))
    return ComparisonReport(summary=Summary(f"nothing was compared: {what}"), findings=(finding,))


def _settings(specs: tuple[Spec, Spec]) -> list[Setting]:
    """Return what the two configs state differently, as they stand."""
    if any(spec.kind != "hf" for spec in specs):
        return []
    reference, candidate = (raw_settings(spec.path) for spec in specs)
    return [
        Setting(name, reference[name], candidate.get(name))
        for name in reference
        if reference[name] != candidate.get(name) and not name.startswith("_") and name not in SILENT
    ]


def _short(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:60]


def other_architecture(reference: Side, candidate: Side, book: RuleBook) -> Finding | None:
    """Return that the two are different architectures, if their configs say so: of another width, depth or number of heads."""
    specs = model_of(reference), model_of(candidate)
    folders = [spec.path for spec in specs if spec is not None and spec.kind == "hf"]
    if len(folders) < 2:
        return None
    reference_settings, candidate_settings = (raw_settings(folder) for folder in folders)
    apart = [
        f"{_short(value)} and {_short(other)} {size_name}"
        for size_name, names in SIZES.items()
        if (value := _first(reference_settings, names)) != (other := _first(candidate_settings, names))
        and value
        and other
    ]
    if not apart:
        return None
    kinds = [str(settings.get("model_type", "?")) for settings in (reference_settings, candidate_settings)]
    what = "; ".join([*([f"{kinds[0]} and {kinds[1]}"] if kinds[0] != kinds[1] else []), *apart])
    evidence = tuple(
        Evidence(f"{folder}/config.json", str(kind)) for folder, kind in zip(folders, kinds, strict=True)
    )
    return finding_from(book.get(OTHER_ARCHITECTURE), Violation(evidence, {"what": what}))


def _first(settings: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    model_settings = (
        settings.get("text_config") if isinstance(settings.get("text_config"), dict) else settings
    )
    return next(
        (model_settings[name] for name in names if model_settings and model_settings.get(name) is not None),
        None,
    )
