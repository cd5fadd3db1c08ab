"""One module of a torch candidate as a report that anyone can run: its weights, its inputs, a script.

There is no graph to cut, so the module is what `compare` found to be the first wrong one. What should come out is what
the reference's module makes of the same inputs.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.capture.session.replay import replay_module
from trtdx.compare.search.reduce_files import Reproducer
from trtdx.compare.search.reduce_graph import measure_error
from trtdx.compare.sides.side import open_side, parse_side
from trtdx.errors import InputError
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from trtdx.compare.run import ComparisonPlan
    from trtdx.compare.sides.side import Side, SideSpec
    from trtdx.engines.engine import Array
    from trtdx.host import Host
    from trtdx.model import Where

MOST_SECONDS = 300.0
LOCAL_KEYS = re.compile(r"^(_name_or_path|_commit_hash|transformers_version)$")
SCRIPT = '''"""Computes one module from stored weights and inputs, and says how far off the result is."""
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

here = Path(__file__).parent
config = AutoConfig.from_pretrained(here)
config._attn_implementation = {attention!r}
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.{dtype})
module = model.get_submodule({path!r}).to_empty(device="cpu").to(torch.{dtype}).eval()
stored = load_file(here / "module.safetensors")
for name in [name for name in stored if name.startswith("buffer:")]:
    parent, _, leaf = name.removeprefix("buffer:").rpartition(".")
    module.get_submodule(parent).register_buffer(leaf, stored.pop(name), persistent=False)
module.load_state_dict(stored)
args, kwargs = [], {{}}
for name, tensor in sorted(load_file(here / "inputs.safetensors").items()):
    called, _, item = name.partition(".")[2].partition(".")
    if not called:
        args.append(tensor)
    elif item:
        kwargs.setdefault(called, []).append(tensor)
    else:
        kwargs[called] = tensor
with torch.no_grad():
    result = module(*args, **kwargs)
result = result[0] if isinstance(result, tuple) else result
expected = load_file(here / "expected.safetensors")["out"]
error = (result.double() - expected.double()).norm() / expected.double().norm()
print(f"relative L2 {{error:.3g}}, where {{{allowed:.3g}:.3g}} is what precision explains")
sys.exit(bool(not error <= {limit:.3g}))
'''


def reduce_torch(host: Host, plan: ComparisonPlan, where: Where, target: Path) -> Reproducer:
    """Write a module of a torch candidate."""
    specs = parse_side(host, plan.reference), parse_side(host, plan.candidate)
    with tempfile.TemporaryDirectory(prefix="trtdx-reduce-") as scratch:
        side = open_side(host, specs[1], plan.question, Path(scratch) / "candidate")
        inputs = _module_inputs(side, where)
        observed = _module_output(side, where)
        if specs[0].is_model:
            right = _reference_output(specs[0], side, where)
        else:
            right = _module_output(open_side(host, specs[0], plan.question, Path(scratch) / "reference"), where)
    bad, error, allowed = measure_error(right, observed)
    if not bad:
        raise InputError(f"{where.module} is right by itself with the inputs it had")
    _write_module(specs[1], where, target, inputs, right, allowed, (error * max(allowed, 1e-30)) ** 0.5)
    shapes = {name: tuple(array.shape) for name, array in inputs.items()}
    done = host.run([sys.executable, str(target / "reproduce.py")], timeout_s=MOST_SECONDS)
    return Reproducer(
        str(target), "python reproduce.py", (where.module,), shapes, error, allowed, "the reference's module",
        runs=2, confirmed=done.status == 1,
    )  # fmt: skip


def _module_inputs(side: Side, where: Where) -> dict[str, Array]:
    records = side.kept_records(where.module, "in", where.step)
    inputs = {record.name.rpartition(":")[2]: side.capture.values(record) for record in records}
    if not inputs:
        raise InputError(f"what enters {where.module or 'the model'} is not there", fix="reduce an ONNX export of it")
    return inputs


def _module_output(side: Side, where: Where) -> Array:
    records = side.kept_records(where.module, "out", where.step)
    if not records:
        raise InputError(f"what leaves {where.module or 'the model'} is not there")
    return side.capture.values(records[0])


def _reference_output(spec: SideSpec, candidate: Side, where: Where) -> Array:
    """Return what the reference's module makes of the candidate's inputs."""
    engine = spec.open()
    try:
        return replay_module(candidate.capture, engine, where.module, step=where.step).outputs[0].replayed
    finally:
        engine.close()


def _write_module(
    spec: SideSpec,
    where: Where,
    target: Path,
    inputs: dict[str, Array],
    right: Array,
    allowed: float,
    limit: float,
) -> None:
    tensors = import_optional("safetensors.torch", extra="torch", purpose="write weights")
    engine: Any = spec.open()
    module = engine.model.get_submodule(where.module)
    weights = {name: value.detach().contiguous().clone() for name, value in module.state_dict().items()}
    weights |= {
        f"buffer:{name}": value.detach().contiguous().clone()
        for name, value in module.named_buffers()
        if name not in weights
    }
    tensors.save_file(weights, target / "module.safetensors")
    tensors.save_file({name: _torch_tensor(array) for name, array in inputs.items()}, target / "inputs.safetensors")
    tensors.save_file({"out": _torch_tensor(right)}, target / "expected.safetensors")
    settings = engine.model.config.to_dict()
    attention = str(getattr(engine.model.config, "_attn_implementation", "") or "eager")
    clean = {name: value for name, value in settings.items() if not LOCAL_KEYS.match(name)}
    (target / "config.json").write_text(json.dumps(clean, indent=1, default=str), encoding="utf-8")
    dtype = str(next(iter(engine.model.parameters())).dtype).removeprefix("torch.")
    text = SCRIPT.format(attention=attention, dtype=dtype, path=where.module, allowed=allowed, limit=limit)
    (target / "reproduce.py").write_text(text, encoding="utf-8")
    engine.close()


def _torch_tensor(array: Array) -> Any:
    from trtdx.engines.torch.values import tensor_from_array

    return tensor_from_array(array, "cpu").contiguous()
