"""The pytest plugin: the fixture `dx`, and with `pytest --trtdx` goldens, tables and cases of failing tests.

It is loaded in every run of pytest in its environment, so that nothing heavy is imported before a test needs it.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shlex
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from trtdx.capture.goldens.store import GoldenFile
    from trtdx.testing.dx import Dx, Marked
    from trtdx.testing.judging import Judged
    from trtdx.testing.ledger import Ledger

NAMES = ("trtdx", __name__)  # of the entry point, and with -p
MARKER = (
    "trtdx(rtol=None, atol=None, taps='', golden=True): tolerances and taps of a test that uses dx, and whether "
    "its tensors are compared with a golden"
)
UNKNOWN_VERSION = "of unknown version"
OPTIONS = ("rtol", "atol", "taps", "golden")
STALE = "trtdx_stale"  # what a worker of pytest-xdist hands over at its end


class State:
    """What the plugin knows in one process of a session."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.getoption
        self.record: bool = option("trtdx_record") or option("trtdx_drop_stale")
        self.drop_stale: bool = option("trtdx_drop_stale")
        self.on: bool = option("trtdx") or self.record
        self.cases: str | None = option("trtdx_cases")
        self.root = config.invocation_params.dir
        self.is_worker = hasattr(config, "workerinput")
        self.stale: dict[str, list[str]] = {}
        self._files: dict[Path, GoldenFile] = {}

    @cached_property
    def ledger(self) -> Ledger:
        """What the tests told."""
        from trtdx.testing.ledger import Ledger

        return Ledger(self.root)

    def goldens(self, module: Path) -> GoldenFile:
        """Return the goldens of a module, read once."""
        if module not in self._files:
            from trtdx.capture.goldens.store import GoldenFile
            from trtdx.host import RealHost

            self._files[module] = GoldenFile(RealHost(), module)
        return self._files[module]


STATE = pytest.StashKey[State]()
DX = pytest.StashKey["Dx"]()
FACTORY = pytest.StashKey[pytest.TempPathFactory]()
JUDGED = pytest.StashKey["Judged"]()


# Starting


def pytest_plugin_registered(plugin: object, plugin_name: str, manager: pytest.PytestPluginManager) -> None:
    """Keep the entry point and `-p trtdx.pytest_plugin` from registering the same module twice."""
    if plugin is sys.modules[__name__] and plugin_name in NAMES:
        manager.set_blocked(NAMES[1 - NAMES.index(plugin_name)])


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trtdx", "tensors of networks, modules and ONNX graphs (trtdx)")
    add = group.addoption
    add(
        "--trtdx",
        action="store_true",
        help="compare with goldens; attach tensors and a case to failing tests",
    )
    add(
        "--trtdx-record",
        action="store_true",
        help="record the goldens of the tests that pass; implies --trtdx",
    )
    add(
        "--trtdx-drop-stale",
        action="store_true",
        help="record, and drop the goldens of tests that no longer exist",
    )
    add(
        "--trtdx-cases",
        metavar="DIR",
        help="where the cases of failing tests go; by default pytest's temporary folder",
    )
    parser.addini(
        "trtdx_golden_bytes", "values that the golden of a test keeps whole, in bytes", default="16384"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    state = config.stash[STATE] = State(config)
    if state.on and not state.is_worker:
        config.pluginmanager.register(Collector(state), "trtdx-collector")


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    """Return what computes, and whether goldens are recorded or compared."""
    state = config.stash[STATE]
    if not state.on:
        return None
    from trtdx.tensors.statistics import kernel_in_use
    from trtdx.version import __version__

    mode = "records goldens" if state.record else "compares with goldens"
    return [f"trtdx: {__version__}, {mode}, statistics kernel {kernel_in_use()}", f"trtdx: {_engines()}"]


def _engines() -> str:
    """Return in words what computes here; nothing is imported for it."""
    from trtdx.host import RealHost
    from trtdx.testing.machine import has_gpu, packages_here
    from trtdx.testing.subjects import version_of

    host = RealHost()
    why = "not executed, though a GPU is there" if has_gpu(host) else "no GPU found"
    trt = next(iter(packages_here(host)), "")
    packages = [
        f"{name} {version_of(name) or UNKNOWN_VERSION}"
        for name in ("torch", "onnxruntime")
        if importlib.util.find_spec(name)
    ]
    networks = (
        f"{trt} {version_of(trt) or UNKNOWN_VERSION}, networks by evaluate on the CPU: {why}"
        if trt
        else "no TensorRT"
    )
    return "; ".join([networks, *packages])


# One test


@pytest.fixture
def trtdx_dx(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Dx, None, None]:
    """The same as `dx`, for suites that have a `dx` of their own."""
    from trtdx.optional import need
    from trtdx.testing.dx import Dx

    for package in ("numpy", "xxhash"):
        need(package, extra="capture", to="look at tensors")
    bench = Dx(request.node.nodeid, _marked(request.node), lambda: tmp_path_factory.mktemp("trtdx"))
    request.node.stash[DX], request.node.stash[FACTORY] = bench, tmp_path_factory
    yield bench
    bench.close()


@pytest.fixture
def dx(trtdx_dx: Dx) -> Dx:
    """Define a network, module or ONNX graph, register tensors, run, and assert; see trtdx's docs/pytest.md."""
    return trtdx_dx


def _marked(item: pytest.Item) -> Marked:
    """Return what the markers of a test say, the nearest first."""
    from trtdx.errors import InputError, UnknownNameError
    from trtdx.testing.dx import Marked

    options: dict[str, Any] = {}
    for mark in item.iter_markers("trtdx"):
        if mark.args:
            raise InputError("@pytest.mark.trtdx takes keywords only", fix=MARKER)
        for name, value in mark.kwargs.items():
            if name not in OPTIONS:
                raise UnknownNameError("option of @pytest.mark.trtdx", name, OPTIONS)
            options.setdefault(name, value)
    return Marked(**options)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge a test's tensors once it has passed; a golden that changed makes it fail."""
    result = yield
    state, bench = item.config.stash[STATE], item.stash.get(DX, None)
    if not state.on or (bench is None and _test_of(item) not in state.goldens(item.path).goldens):
        return result
    judgement = item.stash[JUDGED] = _judged(item, state, bench)
    if judgement.problem:
        meant = f"if it is meant: pytest --trtdx-record {shlex.quote(item.nodeid)}"
        pytest.fail(f"{judgement.problem}\n  {meant}", pytrace=False)
    return result


def _judged(item: pytest.Item, state: State, bench: Dx | None) -> Judged:
    from trtdx.testing.judging import LEFT_OUT, Judged, Told, judged, not_finite

    message = Told(str(item.path), _test_of(item), LEFT_OUT)
    if bench is not None:
        message.not_finite = tuple(not_finite(bench))
    if not (_marked(item) if bench is None else bench.marked).golden:
        return Judged(message, None, "")
    budget = int(item.config.getini("trtdx_golden_bytes"))
    return judged(message, bench, state.goldens(item.path), record=state.record, values_bytes=budget)


def _test_of(item: pytest.Item) -> str:
    """Return a test's id in its module."""
    return item.nodeid.partition("::")[2].encode("utf-8", "backslashreplace").decode()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach to a test's report what it has to tell, and when it failed its tensors and a case."""
    report = yield
    state, bench = item.config.stash[STATE], item.stash.get(DX, None)
    judgement = item.stash.get(JUDGED, None)
    if report.when == "call" and state.on and judgement is not None:
        report.trtdx = judgement.told.packed()  # type: ignore[attr-defined]
    elif report.failed and state.record and bench is not None:
        report.trtdx = _failed(item)  # type: ignore[attr-defined]
    fix = _fix_of(call)
    if report.failed and fix:
        report.sections.append(("trtdx: fix", fix))
    if bench is None or not report.failed or report.when == "teardown":
        return report
    if state.on:
        from trtdx.testing.failing import attach

        comparison = judgement.comparison if judgement is not None else None
        attach(report, item.nodeid, bench, comparison, _folder_for_case(item, state))
    return report


def _fix_of(call: pytest.CallInfo[None]) -> str:
    """Return what an error of trtdx's says is to be done, which pytest does not print."""
    errors = sys.modules.get("trtdx.errors")
    error = call.excinfo.value if call.excinfo else None
    return error.fix if errors is not None and isinstance(error, errors.TrtdxError) else ""


def _failed(item: pytest.Item) -> str:
    from trtdx.testing.judging import LEFT_OUT, Told

    return Told(str(item.path), _test_of(item), LEFT_OUT).packed()


def _folder_for_case(item: pytest.Item, state: State) -> Callable[[], Path]:
    from trtdx.testing.failing import case_name

    name = case_name(_test_of(item))

    def make() -> Path:
        if state.cases is None:
            return item.stash[FACTORY].mktemp(f"case-{name}")
        root = Path(item.config.invocation_params.dir, state.cases)
        return next(path for path in _numbered(root / name) if _made(path))

    return make


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))


def _made(path: Path) -> bool:
    """Make a folder; returns whether it was not there."""
    try:
        os.makedirs(path)  # noqa: PTH103 - says what exists by raising, also among several workers
    except FileExistsError:
        return False
    return True


# The session


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Look for goldens of tests that are no more, before -k and -m take tests away."""
    state = config.stash[STATE]
    narrowed = any("::" in argument for argument in config.args) or config.getoption("lf", False)
    if not state.on or narrowed:
        return
    modules: dict[Path, set[str]] = {}
    for item in items:
        modules.setdefault(item.path, set()).add(_test_of(item))
    from trtdx.testing.ledger import stale_tests

    state.stale = stale_tests(modules)


class Collector:
    """Listens to reports in the process that writes: the only one, or the controller of pytest-xdist."""

    def __init__(self, state: State) -> None:
        self._state = state

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ledger, packed = self._state.ledger, getattr(report, "trtdx", "")
        if report.failed and (packed or report.when == "teardown"):
            gone = ledger.told.pop(report.nodeid, None)
            if self._state.record and (gone or packed):
                ledger.not_recorded.append(report.nodeid)
        if not packed:
            return
        from trtdx.testing.judging import CHANGED, unpacked

        message = unpacked(packed)
        if report.passed or message.outcome == CHANGED:
            ledger.told[report.nodeid] = message

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._state.stale |= getattr(node, "workeroutput", {}).get(STALE, {})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what is recorded; a worker hands over what it knows of stale goldens."""
    state = session.config.stash[STATE]
    if not state.on:
        return
    if state.is_worker:
        session.config.workeroutput[STALE] = state.stale  # type: ignore[attr-defined]
        return
    state.ledger.stale = state.stale
    if state.record:
        state.ledger.write(drop_stale=state.drop_stale)
        if state.ledger.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Say what was compared or recorded, which goldens are stale, and which passed tests hold NaN."""
    state = config.stash[STATE]
    lines = list(state.ledger.lines()) if state.on else []
    if lines:
        terminalreporter.write_sep("-", "trtdx")
    for line in lines:
        terminalreporter.write_line(line, red=line.startswith("error:"))
