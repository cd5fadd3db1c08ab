"""Empty TensorRT networks for tests, on any machine that has a TensorRT which makes builders there."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.tensorrt.bindings import create_builder, load_bindings
from trtdx.errors import BrokenExtraError, MissingExtraError
from trtdx.host import RealHost
from trtdx.installation import install_packages
from trtdx.testing.tensorrt_packages import list_tensorrt_packages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

MAX_MESSAGES = 1000


class BuilderNetwork(NamedTuple):
    """A network, and what has to live as long."""

    network: Any
    builder: Any
    trt: ModuleType


def new_network() -> BuilderNetwork:
    """Return an empty, strongly typed network.

    Raises:
        MissingExtraError: no TensorRT is installed.
        BrokenExtraError: there is one, and it makes no builder here.
    """
    problems = []
    for package in list_tensorrt_packages(RealHost()):
        network = _try_new_network(package)
        if isinstance(network, BuilderNetwork):
            return network
        problems.append(network)
    if problems:
        raise BrokenExtraError(
            "; ".join(problems), fix=f"{install_packages('tensorrt-rtx')}   # makes networks without a GPU"
        )
    raise MissingExtraError(
        "neither tensorrt nor tensorrt_rtx is installed, and one is needed to make a network",
        fix=f"{install_packages('tensorrt-rtx')}   # makes networks without a GPU",
    )


def _try_new_network(package: str) -> BuilderNetwork | str:
    """Return an empty network, or why this package makes none here."""
    try:
        trt = load_bindings(package)
        builder = create_builder(trt, shared_logger(trt))
        return BuilderNetwork(builder.create_network(_network_flags(trt)), builder, trt)
    except BrokenExtraError as err:
        return err.message
    except (RuntimeError, TypeError) as err:  # no driver: a null pointer, told in either way
        return f"{package} makes no builder: {' '.join(str(err).split())}"


def _network_flags(trt: ModuleType) -> int:
    """Return the flags of a strongly typed network; TensorRT before 10 wants to be told of the batch."""
    flags = trt.NetworkDefinitionCreationFlag
    names = ("EXPLICIT_BATCH", "STRONGLY_TYPED")
    return sum(1 << int(getattr(flags, name)) for name in names if hasattr(flags, name))


@cache
def shared_logger(trt: ModuleType) -> Any:
    """Return the logger that keeps what TensorRT says; TensorRT takes one in a process, the first."""

    class Log(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.told: deque[str] = deque(maxlen=MAX_MESSAGES)
            self.count = 0

        def log(self, severity: Any, message: str) -> None:
            if severity.value <= trt.ILogger.Severity.WARNING.value:
                self.told.append(f"{severity.name.lower()}: {message}")
                self.count += 1

    return Log()


def messages_since(log: Any, count: int) -> Iterator[str]:
    """Yield what was said after the first so many messages."""
    fresh = min(log.count - count, len(log.told))
    yield from list(log.told)[len(log.told) - fresh :]
