"""torch.distributed: its functions are wrapped, in the module that defines them and where they are handed out."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from .exceptions import describe_tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .process import SupervisedProcess

# Name: whether all ranks must pass tensors of one shape and type.
COLLECTIVES = {
    "all_reduce": True, "broadcast": True, "reduce": True, "all_gather": True, "all_gather_into_tensor": True,
    "gather": True, "scatter": False, "reduce_scatter": False, "reduce_scatter_tensor": True, "all_to_all": False,
    "all_to_all_single": False, "barrier": False, "monitored_barrier": False, "broadcast_object_list": False,
    "all_gather_object": False, "gather_object": False, "scatter_object_list": False, "all_reduce_coalesced": False,
    "all_gather_coalesced": False, "new_group": False,
}  # fmt: skip
MESSAGES = {"send": "dst", "recv": "src", "isend": "dst", "irecv": "src"}


def watch_torch(process: SupervisedProcess) -> None:
    name = "torch.distributed.distributed_c10d"
    process.imports.when_imported(name, lambda module: _wrap_functions(process, module))
    process.imports.when_imported("torch.distributed", lambda module: _hand_out(module))


def _wrap_functions(process: SupervisedProcess, module: ModuleType) -> None:
    for name, must_agree in COLLECTIVES.items():
        if hasattr(module, name):
            setattr(module, name, _collective(process, module, name, must_agree))
    for name, peer in MESSAGES.items():
        if hasattr(module, name):
            setattr(module, name, _message(process, module, name, peer))
    setattr(module, "init_process_group", _watch_init(process, module))  # noqa: B010 -- mypy knows no such attribute


def _hand_out(module: Any) -> None:
    """Put the wrapped functions where `torch.distributed` has handed out the others."""
    source = sys.modules.get("torch.distributed.distributed_c10d")
    for name in (*COLLECTIVES, *MESSAGES, "init_process_group"):
        function = getattr(source, name, None)
        if function is not None and hasattr(function, "__wrapped__") and hasattr(module, name):
            setattr(module, name, function)


def _watch_init(process: SupervisedProcess, module: Any) -> Callable[..., Any]:
    call = module.init_process_group

    @functools.wraps(call)
    def init_process_group(*args: Any, **options: Any) -> Any:
        stated = " ".join(f"{key}={options[key]}" for key in ("rank", "world_size") if options.get(key, -1) != -1)
        log = process.collectives
        result = log.call_collective("init_process_group", "rendezvous", stated, call, args, options)
        try:
            process.set_world("torch", module.get_rank(), module.get_world_size())
            log.add_group("world", list(range(module.get_world_size())))
        except Exception as err:
            process.note_failure("init_process_group", err)
        return result

    return init_process_group


def _group_of(process: SupervisedProcess, module: Any, group: Any) -> str:
    """Return the name of a process group; the default group is the world."""
    default = getattr(module, "_get_default_group", None)
    if group is None or (default is not None and group is default()):
        return "world"
    name = str(getattr(group, "group_name", id(group)))
    process.collectives.add_group(name, list(module.get_process_group_ranks(group)))
    return name


def _group_argument(args: Any, options: Any) -> Any:
    groups = [value for value in args if "ProcessGroup" in type(value).__name__]
    return options.get("group", groups[0] if groups else None)


def _first_tensor(values: Any) -> Any:
    for value in values:
        if isinstance(value, (list, tuple)):
            value = value[0] if value else None
        if describe_tensor(value):
            return value
    return None


def _sent_tensor(name: str, args: Any, options: Any) -> Any:
    """Return the tensor whose shape the members must share: what each contributes, not what it collects."""
    if name == "all_gather":
        return options.get("tensor", args[1] if len(args) > 1 else None)
    if name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        key = "input_tensor" if name == "all_gather_into_tensor" else "input"
        return options.get(key, args[1] if len(args) > 1 else None)
    return _first_tensor([*args, *(options[key] for key in ("tensor", "tensor_list") if key in options)])


def _agreement(name: str, must_agree: bool, args: Any, options: Any) -> str:
    words = []
    place = {"broadcast": ("src", 1), "reduce": ("dst", 1), "gather": ("dst", 2), "scatter": ("src", 2)}.get(name)
    if place:
        words.append(f"root={options.get(place[0], args[place[1]] if len(args) > place[1] else 0)}")
    if name in ("all_reduce", "reduce"):
        spot = 1 if name == "all_reduce" else 2
        chosen = options.get("op", args[spot] if len(args) > spot else "SUM")
        words.append("op={}".format(str(chosen).rpartition(".")[2]))
    tensor = _sent_tensor(name, args, options)
    if must_agree and describe_tensor(tensor):
        shape = str(tuple(tensor.shape)).replace(" ", "")
        words += [f"n={tensor.numel()}", "dtype={}".format(str(tensor.dtype).rpartition(".")[2]), f"shape={shape}"]
    return " ".join(words)


def _is_compiling() -> bool:
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return bool(compiler is not None and compiler.is_compiling())


def _collective(process: Any, module: Any, name: str, must_agree: bool) -> Callable[..., Any]:
    call = getattr(module, name)

    @functools.wraps(call)
    def collective(*args: Any, **options: Any) -> Any:
        if _is_compiling():  # torch.compile must see its own function
            return call(*args, **options)
        try:
            group = "world" if name == "new_group" else _group_of(process, module, _group_argument(args, options))
            data = _agreement(name, must_agree, args, options)
        except Exception as err:
            process.note_failure(name, err)
            return call(*args, **options)
        later = bool(options.get("async_op"))
        return process.collectives.call_collective(name, group, data, call, args, options, later)

    return collective


def _message(process: Any, module: Any, name: str, peer_word: str) -> Callable[..., Any]:
    call = getattr(module, name)

    @functools.wraps(call)
    def message(*args: Any, **options: Any) -> Any:
        if _is_compiling():
            return call(*args, **options)
        peer = options.get(peer_word, args[1] if len(args) > 1 else None)
        group = "world" if options.get("group") is None else str(getattr(options["group"], "group_name", ""))
        data = "peer=%s" % ("any" if peer is None else peer)
        return process.collectives.call_message(name, group, data, call, args, options, name[0] == "i")

    return message
