"""mpi4py: its communicators are replaced by subclasses that write down what is called on them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .exceptions import describe_tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .process import SupervisedProcess

# Name: (place of the buffer or object, place of the operation, place of the root); -1 where there is none.
# With a capital the sizes and types of buffers must agree; without, objects are pickled and may differ.
COLLECTIVES = {
    "Barrier": (-1, -1, -1), "Bcast": (0, -1, 1), "Gather": (0, -1, 2), "Scatter": (1, -1, 2), "Allgather": (0, -1, -1),
    "Reduce": (0, 2, 3), "Allreduce": (0, 2, -1), "Scan": (0, 2, -1), "Exscan": (0, 2, -1),
    "Alltoall": (0, -1, -1), "Reduce_scatter_block": (1, 2, -1),
    "Gatherv": (-1, -1, 2), "Scatterv": (-1, -1, 2), "Allgatherv": (-1, -1, -1), "Alltoallv": (-1, -1, -1),
    "Alltoallw": (-1, -1, -1), "Reduce_scatter": (-1, 3, -1),
    "barrier": (-1, -1, -1), "bcast": (-1, -1, 1), "gather": (-1, -1, 1), "scatter": (-1, -1, 1),
    "allgather": (-1, -1, -1), "reduce": (-1, 1, 2), "allreduce": (-1, 1, -1), "alltoall": (-1, -1, -1),
    "scan": (-1, 1, -1), "exscan": (-1, 1, -1),
}  # fmt: skip
# Name: place of the other side. Two places for what sends and receives.
MESSAGES = {
    "Send": (1,), "Ssend": (1,), "Bsend": (1,), "Recv": (1,), "Isend": (1,), "Irecv": (1,), "Probe": (0,),
    "send": (1,), "ssend": (1,), "bsend": (1,), "recv": (1,), "isend": (1,), "irecv": (1,), "probe": (0,),
    "Sendrecv": (1, 4), "sendrecv": (1, 4),
}  # fmt: skip
PEER_WORDS = {"dest", "source"}
CREATORS = (
    "Dup", "Clone", "Split", "Split_type", "Create", "Create_group", "Create_cart", "Sub", "Create_graph",
    "Create_dist_graph", "Create_dist_graph_adjacent",
)  # fmt: skip
KINDS = ("Intracomm", "Cartcomm", "Graphcomm", "Distgraphcomm")


def watch_mpi(process: SupervisedProcess) -> None:
    process.imports.when_imported("mpi4py.MPI", lambda module: _replace_world(process, module))


def _replace_world(process: SupervisedProcess, module: ModuleType) -> None:
    watched = _make_classes(process, module)
    if module.Is_initialized() and not module.Is_finalized():
        _enter_world(process, module, watched)
        return
    for name in ("Init", "Init_thread"):  # a program that initialises MPI itself
        setattr(module, name, _after_init(process, module, watched, getattr(module, name)))


def _after_init(process: Any, module: Any, watched: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def initialise(*args: Any, **options: Any) -> Any:
        result = call(*args, **options)
        process.imports.run_action(lambda module: _enter_world(process, module, watched), module)
        return result

    return initialise


def _enter_world(process: SupervisedProcess, module: Any, watched: Any) -> None:
    world = module.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    process.set_world("mpi4py", rank, size)
    process.collectives.add_group("world", list(range(size)))
    replacement = watched[module.Intracomm](world)
    replacement._trtdx_group, replacement._trtdx_members = "world", list(range(size))
    module.COMM_WORLD = replacement


def _make_classes(process: SupervisedProcess, module: Any) -> Any:
    """Return mpi4py's kinds of communicators, each with the subclass that stands for it."""
    classes: dict[Any, Any] = {}
    for base in (getattr(module, kind) for kind in KINDS):
        classes[base] = _make_class(process, module, base, classes)
    return classes


def _make_class(process: SupervisedProcess, module: Any, base: Any, classes: Any) -> Any:
    operations = [(getattr(module, name), name) for name in ("SUM", "PROD", "MAX", "MIN", "LAND", "LOR", "BAND", "BOR")]
    body: dict[str, Any] = {"__module__": "mpi4py.MPI", "__qualname__": base.__name__, "_trtdx_group": ""}
    for name, places in COLLECTIVES.items():
        for spelling in (name, "I" + name):
            if hasattr(base, spelling):
                body[spelling] = _collective(process, module, spelling, name, places, operations)
    for name, peers in MESSAGES.items():
        if hasattr(base, name):
            body[name] = _message(process, module, name, peers)
    for name in CREATORS:
        if hasattr(base, name):
            body[name] = _creator(process, module, base, name, classes)
    body["Abort"] = _watch_abort(process, module)
    return type(base.__name__, (base,), body)


def _watch_abort(process: SupervisedProcess, module: Any) -> Callable[..., Any]:
    call = module.Intracomm.Abort

    @functools.wraps(call)
    def abort(self: Any, *args: Any, **options: Any) -> Any:
        process.note_abort(args[0] if args else options.get("errorcode", 0))
        return call(self, *args, **options)

    return abort


def _collective(
    process: Any, module: Any, spelling: str, name: str, places: Any, operations: Any
) -> Callable[..., Any]:
    call = getattr(module.Intracomm, spelling)
    later = spelling != name

    @functools.wraps(call)
    def collective(self: Any, *args: Any, **options: Any) -> Any:
        if not self._trtdx_group:
            return call(self, *args, **options)
        try:
            data = _agreement(module, name, places, operations, self._trtdx_members, args, options)
        except Exception as err:
            process.note_failure(name, err)
            data = ""
        log = process.collectives
        return log.call_collective(spelling, self._trtdx_group, data, call, (self, *args), options, later)

    return collective


def _agreement(module: Any, name: str, places: Any, operations: Any, members: Any, args: Any, options: Any) -> str:
    """Return what all ranks must say alike: root, operation, and for buffers their number of elements and type."""
    buffer_place, operation_place, root_place = places
    words = []
    if root_place >= 0:
        root = options.get("root", args[root_place] if len(args) > root_place else 0)
        words.append("root=%s" % (members[root] if isinstance(root, int) and 0 <= root < len(members) else root))
    if operation_place >= 0:
        chosen = options.get("op", args[operation_place] if len(args) > operation_place else module.SUM)
        words.append("op={}".format(next((word for value, word in operations if value == chosen), "custom")))
    if buffer_place >= 0:
        buffers = [*args, *(options[key] for key in ("buf", "sendbuf", "recvbuf") if key in options)]
        buffer = buffers[buffer_place] if len(buffers) > buffer_place else None
        if (buffer is None or buffer is module.IN_PLACE) and len(buffers) > 1 and name not in ("Gather", "Reduce"):
            buffer = buffers[1 - buffer_place] if name in ("Allreduce", "Scan", "Exscan") else None
        words += buffer_words(buffer)
    return " ".join(words)


def buffer_words(buffer: Any) -> list[str]:
    """Return number of elements, type and shape of a buffer in any of mpi4py's spellings."""
    if isinstance(buffer, (list, tuple)):
        if not buffer or len(buffer) > 2:
            return []
        words = buffer_words(buffer[0])
        if len(buffer) == 2 and isinstance(buffer[1], int):
            words = [f"n={buffer[1]}"] + [word for word in words if word.startswith("dtype")]
        elif len(buffer) == 2 and isinstance(buffer[1], (list, tuple)):
            return []
        return words
    if not describe_tensor(buffer):
        return []
    shape = tuple(buffer.shape)
    count = 1
    for length in shape:
        count *= int(length)
    return [f"n={count}", f"dtype={buffer.dtype}", "shape={}".format(str(shape).replace(" ", ""))]


def _message(process: Any, module: Any, name: str, peers: Any) -> Callable[..., Any]:
    call = getattr(module.Intracomm, name)
    later = name in ("Isend", "Irecv", "isend", "irecv")

    @functools.wraps(call)
    def message(self: Any, *args: Any, **options: Any) -> Any:
        if not self._trtdx_group:
            return call(self, *args, **options)
        named = [options[key] for key in ("dest", "source") if key in options]
        chosen = named or [args[place] for place in peers if len(args) > place]
        members = self._trtdx_members
        words = [str(members[peer]) for peer in chosen if isinstance(peer, int) and 0 <= peer < len(members)]
        data = "peer=%s" % (",".join(words) or "any")
        if "tag" in options:
            data += " tag={}".format(options["tag"])
        return process.collectives.call_message(name, self._trtdx_group, data, call, (self, *args), options, later)

    return message


def _creator(process: Any, module: Any, base: Any, name: str, classes: Any) -> Callable[..., Any]:
    call = getattr(base, name)

    @functools.wraps(call)
    def create(self: Any, *args: Any, **options: Any) -> Any:
        if not self._trtdx_group:
            return call(self, *args, **options)
        # Counted before anybody is left out, so that the name is the same on all members.
        self._trtdx_children = getattr(self, "_trtdx_children", 0) + (name != "Create_group")
        created = process.collectives.call_collective(name, self._trtdx_group, "", call, (self, *args), options)
        if created == module.COMM_NULL:
            return created
        try:
            return _adopt(process, module, self, created, classes)
        except Exception as err:
            process.note_failure("communicator", err)
            return created

    return create


def _adopt(process: SupervisedProcess, module: Any, parent: Any, created: Any, classes: Any) -> Any:
    """Return a new communicator as one that writes down, with its members in the numbers of the world."""
    world = module.COMM_WORLD
    places = module.Group.Translate_ranks(created.Get_group(), list(range(created.Get_size())), world.Get_group())
    members = [int(place) for place in places]
    watched = classes[type(created)](created) if type(created) in classes else created
    name = f"{parent._trtdx_group}/{parent._trtdx_children}"
    watched._trtdx_group = f"{name}[{','.join(map(str, members))}]"[:100]
    watched._trtdx_members = members
    process.collectives.add_group(watched._trtdx_group, members)
    return watched
