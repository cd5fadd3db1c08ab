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
    from trtdx.testing.dx import Dx, DxMarker
    from trtdx.testing.golden_judgement import GoldenJudgement
    from trtdx.testing.golden_ledger import GoldenLedger

NAMES = ("trtdx", __name__)  # of the entry point, and with -p
MARKER = (
    "trtdx(rtol=None, atol=None, taps='', golden=True): tolerances and taps of a test that uses dx, and whether "
    "its tensors are compared with a golden"
)
UNKNOWN_VERSION = "of unknown version"
OPTIONS = ("rtol", "atol", "taps", "golden")
STALE_KEY = "trtdx_stale"  # what a worker of pytest-xdist hands over at its end


class PluginState:
    """What the plugin knows in one process of a session."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.getoption
        self.record: bool = option("trtdx_record") or option("trtdx_drop_stale")
        self.drop_stale: bool = option("trtdx_drop_stale")
        self.enabled: bool = option("trtdx") or self.record
        self.cases: str | None = option("trtdx_cases")
        self.root = config.invocation_params.dir
        self.is_worker = hasattr(config, "workerinput")
        self.stale: dict[str, list[str]] = {}
        self._files: dict[Path, GoldenFile] = {}

    @cached_property
    def ledger(self) -> GoldenLedger:
        """What the tests told."""
        from trtdx.testing.golden_ledger import GoldenLedger

        return GoldenLedger(self.root)

    def golden_file(self, module: Path) -> GoldenFile:
        """Return the goldens of a module, read once."""
        if module not in self._files:
            from trtdx.capture.goldens.store import GoldenFile
            from trtdx.host import RealHost

            self._files[module] = GoldenFile(RealHost(), module)
        return self._files[module]


STATE = pytest.StashKey[PluginState]()
DX = pytest.StashKey["Dx"]()
FACTORY = pytest.StashKey[pytest.TempPathFactory]()
JUDGED = pytest.StashKey["GoldenJudgement"]()


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
    parser.addini("trtdx_golden_bytes", "values that the golden of a test keeps whole, in bytes", default="16384")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    state = config.stash[STATE] = PluginState(config)
    if state.enabled and not state.is_worker:
        config.pluginmanager.register(ReportCollector(state), "trtdx-collector")


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    """Return what computes, and whether goldens are recorded or compared."""
    state = config.stash[STATE]
    if not state.enabled:
        return None
    from trtdx.tensors.statistics import kernel_in_use
    from trtdx.version import __version__

    mode = "records goldens" if state.record else "compares with goldens"
    return [
        f"trtdx: {__version__}, {mode}, statistics kernel {kernel_in_use()}",
        f"trtdx: {_describe_engines()}",
    ]


def _describe_engines() -> str:
    """Return in words what computes here; nothing is imported for it."""
    from trtdx.host import RealHost
    from trtdx.testing.subjects import installed_version
    from trtdx.testing.tensorrt_packages import has_gpu, list_tensorrt_packages

    host = RealHost()
    why = "not executed, though a GPU is there" if has_gpu(host) else "no GPU found"
    trt = next(iter(list_tensorrt_packages(host)), "")
    packages = [
        f"{name} {installed_version(name) or UNKNOWN_VERSION}"
        for name in ("torch", "onnxruntime")
        if importlib.util.find_spec(name)
    ]
    networks = (
        f"{trt} {installed_version(trt) or UNKNOWN_VERSION}, networks by evaluate on the CPU: {why}"
        if trt
        else "no TensorRT"
    )
    return "; ".join([networks, *packages])


# One test


@pytest.fixture
def trtdx_dx(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Dx, None, None]:
    """The same as `dx`, for suites that have a `dx` of their own."""
    from trtdx.optional import import_optional
    from trtdx.testing.dx import Dx

    for package in ("numpy", "xxhash"):
        import_optional(package, extra="capture", purpose="look at tensors")
    bench = Dx(request.node.nodeid, _read_marker(request.node), lambda: tmp_path_factory.mktemp("trtdx"))
    request.node.stash[DX], request.node.stash[FACTORY] = bench, tmp_path_factory
    yield bench
    bench.close()


@pytest.fixture
def dx(trtdx_dx: Dx) -> Dx:
    """Define a network, module or ONNX graph, register tensors, run, and assert; see trtdx's docs/pytest.md."""
    return trtdx_dx


def _read_marker(item: pytest.Item) -> DxMarker:
    """Return what the markers of a test say, the nearest first."""
    from trtdx.errors import InputError, UnknownNameError
    from trtdx.testing.dx import DxMarker

    options: dict[str, Any] = {}
    for mark in item.iter_markers("trtdx"):
        if mark.args:
            raise InputError("@pytest.mark.trtdx takes keywords only", fix=MARKER)
        for name, value in mark.kwargs.items():
            if name not in OPTIONS:
                raise UnknownNameError("option of @pytest.mark.trtdx", name, OPTIONS)
            options.setdefault(name, value)
    return DxMarker(**options)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge a test's tensors once it has passed; a golden that changed makes it fail."""
    result = yield
    state, bench = item.config.stash[STATE], item.stash.get(DX, None)
    if not state.enabled or (bench is None and _test_id(item) not in state.golden_file(item.path).goldens):
        return result
    judgement = item.stash[JUDGED] = _judge_item(item, state, bench)
    if judgement.problem:
        meant = f"if it is meant: pytest --trtdx-record {shlex.quote(item.nodeid)}"
        pytest.fail(f"{judgement.problem}\n  {meant}", pytrace=False)
    return result


def _judge_item(item: pytest.Item, state: PluginState, bench: Dx | None) -> GoldenJudgement:
    from trtdx.testing.golden_judgement import (
        LEFT_OUT,
        GoldenJudgement,
        GoldenMessage,
        judge_test,
        list_not_finite,
    )

    message = GoldenMessage(str(item.path), _test_id(item), LEFT_OUT)
    if bench is not None:
        message.not_finite = tuple(list_not_finite(bench))
    if not (_read_marker(item) if bench is None else bench.marker).golden:
        return GoldenJudgement(message, None, "")
    budget = int(item.config.getini("trtdx_golden_bytes"))
    return judge_test(message, bench, state.golden_file(item.path), record=state.record, values_bytes=budget)


def _test_id(item: pytest.Item) -> str:
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
    if report.when == "call" and state.enabled and judgement is not None:
        report.trtdx = judgement.message.to_json()  # type: ignore[attr-defined]
    elif report.failed and state.record and bench is not None:
        report.trtdx = _failure_message(item)  # type: ignore[attr-defined]
    fix = _error_fix(call)
    if report.failed and fix:
        report.sections.append(("trtdx: fix", fix))
    if bench is None or not report.failed or report.when == "teardown":
        return report
    if state.enabled:
        from trtdx.testing.failure_report import attach_failure

        comparison = judgement.comparison if judgement is not None else None
        attach_failure(report, item.nodeid, bench, comparison, _case_folder_maker(item, state))
    return report


def _error_fix(call: pytest.CallInfo[None]) -> str:
    """Return what an error of trtdx's says is to be done, which pytest does not print."""
    errors = sys.modules.get("trtdx.errors")
    error = call.excinfo.value if call.excinfo else None
    return error.fix if errors is not None and isinstance(error, errors.TrtdxError) else ""


def _failure_message(item: pytest.Item) -> str:
    from trtdx.testing.golden_judgement import LEFT_OUT, GoldenMessage

    return GoldenMessage(str(item.path), _test_id(item), LEFT_OUT).to_json()


def _case_folder_maker(item: pytest.Item, state: PluginState) -> Callable[[], Path]:
    from trtdx.testing.failure_report import case_name

    name = case_name(_test_id(item))

    def make() -> Path:
        if state.cases is None:
            return item.stash[FACTORY].mktemp(f"case-{name}")
        root = Path(item.config.invocation_params.dir, state.cases)
        return next(path for path in _numbered_paths(root / name) if _make_new_folder(path))

    return make


def _numbered_paths(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))


def _make_new_folder(path: Path) -> bool:
    """Make a folder; returns whether it was not there."""
    try:
        os.makedirs(path)  # noqa: PTH103 - says what exists by raising, also among several workers
    except FileExistsError:
        return False
    return True


# The session


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Look for goldens of tests that are no more, before -k and -m take tests away."""
    state = config.stash[STATE]
    narrowed = any("::" in argument for argument in config.args) or config.getoption("lf", False)
    if not state.enabled or narrowed:
        return
    modules: dict[Path, set[str]] = {}
    for item in items:
        modules.setdefault(item.path, set()).add(_test_id(item))
    from trtdx.testing.golden_ledger import find_stale_tests

    state.stale = find_stale_tests(modules)


class ReportCollector:
    """Listens to reports in the process that writes: the only one, or the controller of pytest-xdist."""

    def __init__(self, state: PluginState) -> None:
        self._state = state

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ledger, packed = self._state.ledger, getattr(report, "trtdx", "")
        if report.failed and (packed or report.when == "teardown"):
            gone = ledger.messages.pop(report.nodeid, None)
            if self._state.record and (gone or packed):
                ledger.not_recorded.append(report.nodeid)
        if not packed:
            return
        from trtdx.testing.golden_judgement import CHANGED, message_from_json

        message = message_from_json(packed)
        if report.passed or message.outcome == CHANGED:
            ledger.messages[report.nodeid] = message

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._state.stale |= getattr(node, "workeroutput", {}).get(STALE_KEY, {})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what is recorded; a worker hands over what it knows of stale goldens."""
    state = session.config.stash[STATE]
    if not state.enabled:
        return
    if state.is_worker:
        session.config.workeroutput[STALE_KEY] = state.stale  # type: ignore[attr-defined]
        return
    state.ledger.stale = state.stale
    if state.record:
        state.ledger.write(drop_stale=state.drop_stale)
        if state.ledger.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Say what was compared or recorded, which goldens are stale, and which passed tests hold NaN."""
    state = config.stash[STATE]
    lines = list(state.ledger.lines()) if state.enabled else []
    if lines:
        terminalreporter.write_sep("-", "trtdx")
    for line in lines:
        terminalreporter.write_line(line, red=line.startswith("error:"))
