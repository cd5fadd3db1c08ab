"""The facts of an environment, as the probe and the collectors write them and `--from FILE` reads them again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from trtdx.knowledge.violation import Violation
    from trtdx.model import Severity

FACTS_SCHEMA = 1


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all facts: unknown keys of a later trtdx are passed over."""


class PythonFacts(Facts, frozen=True, kw_only=True):
    """The interpreter; empty where it could not be started."""

    executable: str = ""
    version: str = ""
    implementation: str = "cpython"
    prefix: str = ""
    base_prefix: str = ""
    machine: str = ""
    bits: int = 64
    platform: str = ""
    libc: str = ""
    suffixes: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    standard: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    markers: dict[str, str] = {}

    @property
    def minor(self) -> str:
        """The version without its patch: "3.12"."""
        return ".".join(self.version.split(".")[:2])

    @property
    def is_virtual(self) -> bool:
        return self.prefix != self.base_prefix


class InstalledDistribution(Facts, frozen=True, kw_only=True):
    """One .dist-info or .egg-info folder, and whether the files it lists are there."""

    folder: str
    info: str
    name: str
    version: str = ""
    version_in_name: str = ""
    has_metadata: bool = True
    changed_at: float = 0.0
    has_record: bool = False
    requires: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    requires_python: str = ""
    summary: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    installer: str = ""
    top_level: tuple[str, ...] = ()
    direct_url: str = ""
    is_source_gone: bool = False  # editable, and the folder it points to is not there
    files: int = 0
    missing: tuple[str, ...] = ()
    missing_count: int = 0
    wrong_size: tuple[tuple[str, int, int], ...] = ()
    compiled: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    places: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return canonical_name(self.name)

    @property
    def info_path(self) -> str:
        return f"{self.folder}/{self.info}"

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}".strip()

    @property
    def top_modules(self) -> tuple[str, ...]:
        return self.modules or self.top_level


class PthFacts(Facts, frozen=True, kw_only=True):
    """A .pth file: folders added to the path, those that are absent, and code that runs at every start."""

    path: str
    code: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


class FolderFacts(Facts, frozen=True, kw_only=True):
    """One folder of `sys.path`."""

    folder: str
    exists: bool = True
    distributions: tuple[InstalledDistribution, ...] = ()
    pth: tuple[PthFacts, ...] = ()
    links: tuple[tuple[str, str], ...] = ()  # .egg-link files whose folder is gone
    leftovers: tuple[str, ...] = ()
    importable: tuple[tuple[str, str], ...] = ()


class ModuleOrigin(Facts, frozen=True, kw_only=True):
    """Where the import of a top-level module would be taken from; no origin and no places: it is not there."""

    name: str
    origin: str = ""
    places: tuple[str, ...] = ()
    problem: str = ""


class PythonEnvironment(Facts, frozen=True, kw_only=True):
    """What the probe prints."""

    schema: int = FACTS_SCHEMA
    interpreter: PythonFacts = PythonFacts()
    folders: tuple[FolderFacts, ...] = ()
    origins: tuple[ModuleOrigin, ...] = ()
    startup: tuple[tuple[str, str], ...] = ()
    pyvenv: str = ""
    is_conda: bool = False
    site_folders: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    cwd: str = ""
    files_unread: bool = False


class ErrorLink(Facts, frozen=True, kw_only=True):
    """One error of a chain: its kind, words, and the files it passed through, innermost last."""

    kind: str = ""
    text: str = ""
    name: str = ""
    file: str = ""
    places: tuple[tuple[str, int], ...] = ()


class ImportTrial(Facts, frozen=True, kw_only=True):
    """What came of importing one module in a process of its own.

    Attributes:
        outcome: "works", "error", "crash", "hang", "slow", "unknown", or "hollow" where only an empty folder was imported.
        chain: the error and those it came from, the first one last.
        failures: what failed on the way, in order, whether or not somebody caught it.
        loading: the modules that had begun and not ended, outermost first.
        stack: file and line of the thread that crashed or hung, innermost first.
        library: what ctypes loaded last.
    """

    module: str
    outcome: str
    seconds: float = 0.0
    version: str = ""
    path: str = ""
    versions: dict[str, tuple[str, str]] = {}  # what the modules loaded with it say of theirs, and their files
    status: int = 0
    chain: tuple[ErrorLink, ...] = ()
    failures: tuple[tuple[str, str, ErrorLink], ...] = ()
    loading: tuple[tuple[str, str], ...] = ()
    stack: tuple[tuple[str, int], ...] = ()
    library: str = ""
    output: str = ""
    works_without: tuple[str, ...] = ()  # variables, or "the current folder", that stand in its way


class NeededLibrary(Facts, frozen=True, kw_only=True):
    """A library that another one needs, and what the loader takes for it; no path: it finds none."""

    name: str
    path: str = ""
    via: str = ""


class ElfFacts(Facts, frozen=True, kw_only=True):
    """A shared object: what it is, needs and lacks.

    Attributes:
        problem: why it is no library at all: "pointer", "empty", "cut off", "not ELF", "closed", "dangling".
        undefined: symbols that nothing it loads defines; only looked for where an import did not work.
    """

    path: str
    owner: str = ""
    problem: str = ""
    machine: str = ""
    bits: int = 64
    soname: str = ""
    search: tuple[str, ...] = ()
    needs: tuple[NeededLibrary, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()  # (library, version) asked for and not there
    undefined: tuple[str, ...] = ()
    is_extension: bool = False
    digest: str = ""  # of its contents, where the same name is taken from two places
    target: str = ""  # the file a link leads to, which has the whole version in its name; likewise


class SymbolProvider(Facts, frozen=True, kw_only=True):
    """An installed library that defines a symbol."""

    symbol: str
    path: str
    owner: str = ""


class GpuFacts(Facts, frozen=True, kw_only=True):
    """One GPU, as nvidia-smi tells."""

    name: str
    memory_mib: int = 0
    capability: str = ""


class DiskFacts(Facts, frozen=True, kw_only=True):
    """The space where something is written."""

    purpose: str
    path: str
    free_bytes: int
    total_bytes: int
    free_files: int = -1


class MachineFacts(Facts, frozen=True, kw_only=True):
    """The machine around the interpreter."""

    system: str = ""
    container: str = ""
    driver: str = ""
    driver_problem: str = ""
    gpus: tuple[GpuFacts, ...] = ()
    toolkits: tuple[str, ...] = ()
    libstdcxx: str = ""
    mpirun: str = ""
    mpirun_path: str = ""
    libmpi: str = ""  # the file that `libmpi.so` leads to
    uv_path: str = ""
    shm_bytes: int = -1
    shm_free_bytes: int = -1
    memlock_bytes: int = -1  # -1: no limit
    can_lock: bool = False
    pids_limit: int = -1
    memory_limit_bytes: int = -1
    memory_bytes: int = 0
    disks: tuple[DiskFacts, ...] = ()
    xids: tuple[str, ...] = ()
    kernel_log: str = ""  # why it could not be read
    newest_file: float = 0.0
    now: float = 0.0
    triton_image: str = ""
    pointers: tuple[str, ...] = ()


class EnvironmentRecord(Facts, frozen=True, kw_only=True):
    """Everything a check judges; what `--save` writes and `--from` reads."""

    schema: int = FACTS_SCHEMA
    trtdx: str = ""
    taken_at: float = 0.0
    python_path: str = ""  # as it was named
    root: str = ""  # of a container's file system that was only read
    start_problem: str = ""
    start_reason: str = ""  # what the interpreter's file tells of why it does not start
    start_output: str = ""
    restarts: dict[str, int | None] = {}  # how it starts under other conditions: "-I", "without LD_PRELOAD"
    stated_version: str = ""  # what `python -V` prints where the probe cannot run
    python: PythonEnvironment = PythonEnvironment()
    trials: tuple[ImportTrial, ...] = ()
    libraries: tuple[ElfFacts, ...] = ()
    providers: tuple[SymbolProvider, ...] = ()
    preloads: tuple[ElfFacts, ...] = ()
    machine: MachineFacts = MachineFacts()
    unread: tuple[str, ...] = ()  # what was not looked at, and why
    expects_gpu: bool = False

    @property
    def has_started(self) -> bool:
        return bool(self.python.interpreter.version) and not self.start_problem


class Cause(NamedTuple):
    """Something wrong, in the values of its rule page, before it is ordered.

    Attributes:
        order: what must be mended first has the lower number.
        about: names of distributions and modules, and paths, that it is about; an import that fails because of one of
            these is its consequence.
    """

    code: str
    violation: Violation
    order: int
    about: frozenset[str] = frozenset()
    symptom: str = ""  # what it looks like where it is only a consequence

    @property
    def severity(self) -> Severity | None:
        return self.violation.severity


class MendingOrder:
    """What must be mended before what."""

    DISK = 5
    START = 10
    VARIABLES = 20
    SHADOWS = 30
    PLATFORM = 40
    DAMAGE = 50
    COPIES = 60
    PAIRING = 70
    REQUIREMENTS = 80
    LIBRARIES = 90
    IMPORTS = 100
    MACHINE = 110


def canonical_name(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


NEW_STRING, OLD_STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", "Ss"


def name_in_other_abi(symbol: str) -> str:
    """Return what a C++ symbol with a string in it is called in a build with the other ABI; empty where it has none."""
    if NEW_STRING in symbol:
        return symbol.replace(NEW_STRING, OLD_STRING)
    return re.sub(rf"(?<=[A-Z\d_]){OLD_STRING}", NEW_STRING, symbol) if re.search(r"[A-Z\d_]Ss", symbol) else ""
