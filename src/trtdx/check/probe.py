"""The facts of a Python environment, gathered by the environment's own interpreter.

One file with nothing but the standard library, for Python 3.8 and later, because everything else may be broken. It
is handed to the interpreter as `python -c "exec(...)" probe.py`, so that `sys.path` is what a user's program has: the
current folder first. It imports no package; `--import NAME` tries one, in a process of its own that may crash or hang.
`trtdx` also calls its functions itself, on a root file system whose interpreter must not be run.
"""

from __future__ import annotations

import sys

USER_PATH = list(sys.path)
STARTUP_MODULES = list(sys.modules)


def standard_folders() -> list[str]:
    """Return where the standard library lies, by the paths the interpreter made itself."""
    bases = (getattr(sys, "base_prefix", sys.prefix), getattr(sys, "base_exec_prefix", sys.exec_prefix))
    home = "/lib/python%d" % sys.version_info[0]
    return [
        path
        for path in sys.path
        if path.startswith(bases) and home in path and "-packages" not in path and not path.endswith("site")
    ]


if __name__ == "__main__":
    sys.path[:] = standard_folders()  # a json.py in the current folder must not stop us

import importlib.machinery
import importlib.util
import json
import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Facts = dict[str, Any]

MODULES = (
    "numpy", "torch", "torchvision", "triton", "tensorrt", "tensorrt_bindings", "tensorrt_libs", "tensorrt_llm",
    "tensorrt_rtx", "transformers", "tokenizers", "mpi4py", "cuda", "modelopt", "flashinfer", "xgrammar", "onnx",
    "onnxruntime", "pynvml", "safetensors", "nvtx", "packaging", "typing_extensions",
)  # fmt: skip
VARIABLES = re.compile(
    r"(PYTHON|LD_|CUDA|NVIDIA_|NCCL_|OMPI_|OPAL_|PMI|MPI4PY_|UCX_|TRT|TLLM|TORCH|HF_|TRANSFORMERS_|CONDA|VIRTUAL_ENV|PATH$|"
    r"HOME$|TMPDIR$|XDG_CACHE_HOME$|TRITON)"
)
COMPILED = re.compile(r"\.(?:so(?:\.\d+)*|pyd|dylib)$")
MOST_TEXT, MOST_NAMED, MOST_COMPILED = 262144, 40, 3000
HEADERS = ("name", "version", "requires-python", "summary")


def read_text(path: str, limit: int = MOST_TEXT) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def list_names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder or "."))
    except (OSError, ValueError):
        return []


def parse_metadata(text: str) -> Facts:
    """Return the header fields of a METADATA or PKG-INFO file, and the start of its description."""
    header, _, body = text.replace("\r\n", "\n").partition("\n\n")
    facts: Facts = {"requires": [], "extras": []}
    for line in re.sub(r"\n[ \t]+", " ", header).split("\n"):
        key, _, value = line.partition(":")
        key, value = key.strip().lower(), value.strip()
        if key in HEADERS:
            facts.setdefault(key.replace("-", "_"), value[:300])
        elif key == "requires-dist":
            facts["requires"].append(value)
        elif key == "provides-extra":
            facts["extras"].append(value)
    facts["description"] = body[:400]
    return facts


def place_of_file(name: str) -> str:
    """Return the folder, two levels deep at most, that an installed file counts as lying in."""
    parts = name.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


class RecordReader:
    """Reads RECORD files and looks whether what they list is there, within one budget of time."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self.compiled = 0
        self.late = False

    def read_record(self, folder: str, text: str) -> Facts:
        facts: Facts = {"files": 0, "missing": [], "missing_count": 0, "wrong_size": [], "compiled": [], "modules": []}
        modules, places = set(), set()
        for line in text.split("\n"):
            name, size = self._split_record_line(line)
            if not name or name.endswith(".pyc"):
                continue
            facts["files"] += 1
            self._compare_file(facts, folder, name, size)
            parts = name.split("/")
            if parts[0] not in ("..", "") and not parts[0].endswith((".dist-info", ".egg-info", ".data")):
                places.add(place_of_file(name))
                top = parts[0].split(".")[0]
                if len(parts) > 1 or name.endswith(".py") or COMPILED.search(name):
                    modules.add(top)
        facts["modules"], facts["places"] = sorted(modules)[:200], sorted(places)[:400]
        return facts

    def _split_record_line(self, line: str) -> tuple[str, str]:
        match = re.match(r'(?:"((?:[^"]|"")*)"|([^,]*)),([^,]*),([^,\r]*)', line)
        return ((match[1] or match[2] or "").replace("\\", "/"), match[4]) if match else ("", "")

    def _compare_file(self, facts: Facts, folder: str, name: str, size: str) -> None:
        path = os.path.join(folder, name)
        if COMPILED.search(name) and self.compiled < MOST_COMPILED:
            self.compiled += 1
            facts["compiled"].append(name)
        if self.late or time.monotonic() > self.until:
            self.late = True
            return
        try:
            actual = os.stat(path).st_size
        except OSError as err:
            facts["missing_count"] += 1
            if len(facts["missing"]) < MOST_NAMED and not isinstance(err, PermissionError):
                facts["missing"].append(name)
            return
        if size.isdigit() and int(size) != actual and len(facts["wrong_size"]) < MOST_NAMED:
            facts["wrong_size"].append([name, int(size), actual])


def read_distribution(folder: str, name: str, recorder: RecordReader) -> Facts:
    """Return what one .dist-info or .egg-info says."""
    info = os.path.join(folder, name)
    is_file = os.path.isfile(info)
    texts = [read_text(info if is_file else os.path.join(info, part)) for part in ("METADATA", "PKG-INFO")]
    text = next((text for text in texts if text), "")
    guess = re.match(r"(.+?)-(\d[^-]*)", name.rpartition(".")[0])
    facts: Facts = {"folder": folder, "info": name, "has_metadata": bool(text.strip()), "changed_at": changed_at(info)}
    facts.update(parse_metadata(text))
    facts.setdefault("name", guess[1] if guess else name.rpartition(".")[0])
    facts.setdefault("version", "")
    facts["version_in_name"] = guess[2] if guess else ""
    if is_file:
        return facts
    wheel = read_text(os.path.join(info, "WHEEL")) or ""
    facts["tags"] = re.findall(r"(?m)^Tag:\s*(\S+)", wheel)[:50]
    facts["installer"] = (read_text(os.path.join(info, "INSTALLER"), 100) or "").strip()
    facts["top_level"] = (read_text(os.path.join(info, "top_level.txt")) or "").split()[:50]
    facts["direct_url"] = read_text(os.path.join(info, "direct_url.json"), 4096) or ""
    facts["is_source_gone"] = is_source_gone(facts["direct_url"])
    record = read_text(os.path.join(info, "RECORD"), 1 << 24)
    listed = read_text(os.path.join(info, "installed-files.txt"), 1 << 24) if record is None else None
    facts["has_record"] = record is not None
    if listed is not None:
        record = "\n".join(os.path.normpath(os.path.join(name, line)) + ",," for line in listed.split("\n") if line)
    if record is not None:
        facts.update(recorder.read_record(folder, record))
    return facts


def is_source_gone(direct_url: str) -> bool:
    """Whether direct_url.json tells of an editable install whose folder is not there."""
    from urllib.parse import unquote

    match = re.search(r'"url":\s*"file://([^"]*)"', direct_url)
    return bool(match and re.search(r'"editable":\s*true', direct_url) and not os.path.isdir(unquote(match[1])))


def read_pth(folder: str, name: str) -> Facts:
    """Return the lines of a .pth file: folders it adds, whether they are there, and code it runs."""
    lines = [line.strip() for line in (read_text(os.path.join(folder, name)) or "").splitlines()[:200]]
    lines = [line for line in lines if line and not line.startswith("#")]
    code = [line[:300] for line in lines if re.match(r"import[ \t]", line)]
    added = [line for line in lines if not re.match(r"import[ \t]", line)]
    return {
        "path": os.path.join(folder, name),
        "code": code,
        "added": added,
        "absent": [line for line in added if not os.path.exists(os.path.join(folder, line))],
    }


def scan_folder(folder: str, recorder: RecordReader) -> Facts:
    """Return the distributions and .pth files of one folder of the path, and what can be imported from it."""
    names = list_names(folder)
    facts: Facts = {
        "folder": folder,
        "exists": os.path.isdir(folder or "."),
        "distributions": [],
        "pth": [],
        "links": [],
    }
    facts["leftovers"] = [name for name in names if name.startswith("~")]
    for name in names:
        if name.endswith((".dist-info", ".egg-info")) and not name.startswith("~"):
            facts["distributions"].append(read_distribution(folder, name, recorder))
        elif name.endswith(".pth"):
            facts["pth"].append(read_pth(folder, name))
        elif name.endswith(".egg-link"):
            target = (read_text(os.path.join(folder, name), 4096) or "").split("\n")[0].strip()
            facts["links"] += [[name, target]] if target and not os.path.isdir(target) else []
    facts["importable"] = [[name, kind] for name in names for kind in [kind_of_module(folder, name)] if kind][:3000]
    return facts


def kind_of_module(folder: str, name: str) -> str:
    """Return what importing from a folder entry gives: "module", "package", "extension", "folder" or nothing."""
    if name.endswith(".py"):
        return "module" if name[:-3].isidentifier() else ""
    if COMPILED.search(name):
        return "extension" if name.split(".")[0].isidentifier() else ""
    if not name.isidentifier() or name == "__pycache__":
        return ""
    path = os.path.join(folder, name)
    if os.path.isfile(os.path.join(path, "__init__.py")):
        return "package"
    return "folder" if os.path.isdir(path) else ""


def find_origin(name: str) -> Facts:
    """Return where an import of a top-level module would be taken from."""
    try:
        spec = importlib.util.find_spec(name)
    except BaseException as err:  # finders of others may do anything
        return {"name": name, "problem": "%s: %s" % (type(err).__name__, err)}
    if spec is None:
        return {"name": name}
    places = list(spec.submodule_search_locations or [])
    return {"name": name, "origin": spec.origin or "", "places": [str(place) for place in places]}


def describe_interpreter() -> Facts:
    import platform
    import sysconfig

    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        libc = ""
    version = platform.python_version()
    facts: Facts = {
        "executable": sys.executable or "", "version": version, "implementation": sys.implementation.name,
        "prefix": sys.prefix, "base_prefix": getattr(sys, "base_prefix", sys.prefix), "machine": platform.machine(),
        "bits": 64 if sys.maxsize > 2**32 else 32, "platform": sysconfig.get_platform(), "libc": libc,
        "suffixes": importlib.machinery.EXTENSION_SUFFIXES, "path": [path or os.getcwd() for path in USER_PATH],
        "standard": standard_folders(),
        "flags": [name for name in ("isolated", "no_user_site", "no_site") if getattr(sys.flags, name, 0)],
    }  # fmt: skip
    facts["markers"] = {
        "implementation_name": sys.implementation.name, "implementation_version": version, "os_name": os.name,
        "platform_machine": platform.machine(), "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(), "platform_system": platform.system(),
        "platform_version": platform.version(), "python_full_version": version,
        "python_version": ".".join(version.split(".")[:2]), "sys_platform": sys.platform,
    }  # fmt: skip
    return facts


def other_site_folders(prefix: str) -> list[str]:
    """Return every site-packages folder below a prefix that has packages, also those of other Python versions."""
    folders = [
        os.path.join(prefix, "lib", name, "site-packages")
        for name in list_names(os.path.join(prefix, "lib"))
        if re.match(r"python3\.\d+$", name)
    ]
    return [folder for folder in folders if any(name.endswith(".dist-info") for name in list_names(folder))]


def startup_files() -> list[list[str]]:
    """Return the modules that were loaded at start-up and are not of the standard library."""
    rows = []
    for name in STARTUP_MODULES:
        path = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(path, str) and not path.startswith(tuple(standard_folders()) or ("\0",)) and name != "__main__":
            rows.append([name, path])
    return rows


def probe_environment(seconds: float = 1.0) -> Facts:
    """Return all facts."""
    recorder = RecordReader(seconds)
    standard = standard_folders()
    interpreter = describe_interpreter()
    folders = list(dict.fromkeys(path or os.getcwd() for path in USER_PATH))
    scans = [scan_folder(folder, recorder) for folder in folders if folder not in standard]
    importlib.invalidate_caches()  # imports modules itself from Python 3.13 on
    sys.path[:] = USER_PATH
    origins = [find_origin(name) for name in MODULES]
    return {
        "schema": 1, "interpreter": interpreter, "folders": scans, "origins": origins, "startup": startup_files(),
        "pyvenv": read_text(os.path.join(sys.prefix, "pyvenv.cfg"), 8192) or "",
        "is_conda": os.path.isdir(os.path.join(sys.prefix, "conda-meta")), "site_folders": other_site_folders(sys.prefix),
        "variables": {name: value for name, value in os.environ.items() if VARIABLES.match(name)},
        "cwd": os.getcwd(), "files_unread": recorder.late,
    }  # fmt: skip


# Trying one import. What happens is written line by line, so that a crash leaves all that came before it.


class WatchedImport:
    """Imports one module and writes down which modules begin, end and fail on the way."""

    def __init__(self, report: str) -> None:
        self.descriptor = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.failed: set[int] = set()

    def emit(self, **facts: object) -> None:
        facts["at"] = round(time.monotonic(), 3)
        os.write(self.descriptor, (json.dumps(facts) + "\n").encode())

    def watch_loader(self, loader: Any, method: str) -> None:
        original = getattr(loader, method)

        def watched(this: Any, subject: Any) -> Any:
            name = getattr(subject, "__name__", None) or getattr(subject, "name", "")
            self.emit(event="begin", module=name, path=getattr(this, "path", ""))
            try:
                result = original(this, subject)
            except BaseException as err:
                if id(err) not in self.failed:
                    self.failed.add(id(err))
                    self.emit(event="fail", module=name, path=getattr(this, "path", ""), **describe_error(err))
                self.emit(event="end", module=name, failed=True)
                raise
            self.emit(event="end", module=name)
            return result

        setattr(loader, method, watched)

    def note_library(self, event: str, args: Any) -> None:
        if event == "ctypes.dlopen" and args and isinstance(args[0], str):
            self.emit(event="library", path=args[0])

    def run(self, name: str, seconds: float) -> None:
        import faulthandler

        faulthandler.enable(self.descriptor)
        faulthandler.dump_traceback_later(seconds, exit=True, file=self.descriptor)
        for method in ("create_module", "exec_module"):
            self.watch_loader(importlib.machinery.ExtensionFileLoader, method)
        self.watch_loader(importlib.machinery.SourceFileLoader, "exec_module")
        sys.addaudithook(self.note_library)
        sys.path[:] = USER_PATH
        forget_shadowed()
        sys.argv[:] = [""]
        started = time.monotonic()
        try:
            module = importlib.import_module(name)
        except BaseException as err:
            self.emit(event="error", chain=describe_chain(err), seconds=time.monotonic() - started)
            return
        version = getattr(module, "__version__", "") or getattr(sys.modules.get(name.split(".")[0]), "__version__", "")
        facts: Facts = {"version": str(version)[:80], "path": str(getattr(module, "__file__", "") or "")}
        facts["versions"] = {name: list(pair) for name in MODULES for pair in [stated_version(name)] if pair[0]}
        self.emit(event="done", seconds=time.monotonic() - started, **facts)
        faulthandler.dump_traceback_later(5, exit=True, file=self.descriptor)  # what hangs at the end is no import


def stated_version(name: str) -> tuple[str, str]:
    """Return what a loaded module says its version is, and its file."""
    module = sys.modules.get(name)
    version, path = getattr(module, "__version__", ""), getattr(module, "__file__", "")
    return (version[:80], path) if isinstance(version, str) and isinstance(path, str) else ("", "")


def forget_shadowed() -> None:
    """Let modules that the probe took from the standard library be imported anew where something else comes first."""
    standard = standard_folders()
    first = USER_PATH[: USER_PATH.index(standard[0])] if standard and standard[0] in USER_PATH else []
    names = {
        name.split(".")[0] for folder in first for name in list_names(folder) if kind_of_module(folder or ".", name)
    }
    for name in list(sys.modules):
        if name not in STARTUP_MODULES and name.split(".")[0] in names:
            del sys.modules[name]


def describe_error(err: BaseException) -> Facts:
    """Return an error's kind, words, and the innermost places it passed through."""
    places, trace = [], err.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "importlib" not in file and file != "<string>" and not file.endswith("check/probe.py"):
            places.append([file, trace.tb_lineno])
        trace = trace.tb_next
    if isinstance(err, SyntaxError) and err.filename:
        places.append([str(err.filename), err.lineno or 0])
    name, file = str(getattr(err, "name", "") or ""), str(getattr(err, "path", "") or "")
    return {"kind": type(err).__name__, "text": str(err)[:2000], "name": name, "file": file, "places": places[-12:]}


def describe_chain(err: BaseException) -> list[Facts]:
    """Return an error and those it came from, the first one last."""
    chain: list[BaseException] = []
    link: BaseException | None = err
    while link is not None and len(chain) < 12 and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return [describe_error(cause) for cause in chain]


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--import"]:
        WatchedImport(arguments[2]).run(arguments[1], float(arguments[3]))
        return
    text = json.dumps(probe_environment())
    sys.stdout.write("\n\x1etrtdx " + text + "\n")


if __name__ == "__main__":
    main()
