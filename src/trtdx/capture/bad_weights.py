"""Weights that are not finite: where a NaN appears first although nothing that went in was one."""

from __future__ import annotations

from pathlib import Path

from trtdx.optional import import_optional, is_installed
from trtdx.words import format_count


def find_weights_not_finite(model: str | None, module: str) -> list[str] | None:
    """Return the weights of one module that hold a NaN or an infinity, in words; None where they cannot be read.

    Args:
        model: what was run; only a Hugging Face folder with safetensors is looked into.
        module: the path of the module.
    """
    files = sorted(Path(model).glob("*.safetensors")) if model else []
    if not (files and module and is_installed("torch") and is_installed("safetensors")):
        return None
    torch = import_optional("torch", extra="torch", purpose="read the weights of a model")
    opener = import_optional("safetensors", extra="torch", purpose="read the weights of a model").safe_open
    problems, has_weights = [], False
    for file in files:
        with opener(str(file), framework="pt") as weights:
            for name in (key for key in weights.keys() if key.rpartition(".")[0] == module):  # noqa: SIM118
                has_weights = True
                weight = weights.get_tensor(name)
                bad = int((~torch.isfinite(weight.float())).sum()) if weight.is_floating_point() else 0
                if bad:
                    problems.append(f"{name} in {file.name}: {format_count(bad, 'element')} not finite")
    return problems if has_weights else None
