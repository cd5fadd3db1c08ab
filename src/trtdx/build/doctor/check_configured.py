"""Whether the files that CMake writes from templates (configure_file) are as it wrote them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.build.doctor.cleanup import CleanupCommands
from trtdx.build.doctor.trouble import report_trouble

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trtdx.build.doctor.project import BuildProject, CMakeTree
    from trtdx.build.nouns import TreeTrouble

BY_HAND = "DX1189"
MAX_SCRIPTS = 2000
MAX_TEXT_BYTES = 1 << 20
SLACK_NS = 500_000_000
_CALL = re.compile(r"\bconfigure_file\s*\(\s*\"?([^\s\")]+)\"?\s+\"?([^\s\")]+)\"?([^)]*)\)", re.IGNORECASE)
_PLACE = re.compile(r"@(\w+)@|\$\{(\w+)\}")


class ConfiguredFile(NamedTuple):
    """One call of configure_file whose paths can be told."""

    template: Path
    output: Path
    only_at_signs: bool


def check_configured_files(project: BuildProject, tree: CMakeTree) -> Iterator[TreeTrouble]:
    """What configure_file wrote still says what its template gives."""
    if tree.cache is None or tree.cache.damage:
        return
    values = _known_values(project, tree)
    for file in _configured_files(project, tree):
        line = _strange_line(file, values, _configured_ns(tree))
        if line:
            yield report_trouble(
                BY_HAND,
                project,
                tree,
                [(project.show(file.output), line), (project.show(file.template), "its template")],
                command=CleanupCommands(project).configure(tree),
                problem=f"{project.show(file.output)} was changed after CMake had generated it from "
                f"{project.show(file.template)}; it says: {line}",
                todo="configure again: CMake writes the file anew, and what includes it is compiled again",
            )


def _configured_files(project: BuildProject, tree: CMakeTree) -> Iterator[ConfiguredFile]:
    source = project.source_of(tree)
    if source is None:
        return
    trees = {other.path for other in project.trees}
    scripts = [
        file.path for file in project.files if file.path.name == "CMakeLists.txt" and source in file.path.parents
    ]
    for script in [path for path in scripts if not trees & set(path.parents) - {source}][:MAX_SCRIPTS]:
        binary = tree.path / script.parent.relative_to(source)
        folders = {
            "CMAKE_SOURCE_DIR": source,
            "PROJECT_SOURCE_DIR": source,
            "CMAKE_CURRENT_SOURCE_DIR": script.parent,
            "CMAKE_CURRENT_LIST_DIR": script.parent,
            "CMAKE_BINARY_DIR": tree.path,
            "PROJECT_BINARY_DIR": tree.path,
            "CMAKE_CURRENT_BINARY_DIR": binary,
        }
        for match in _CALL.finditer(re.sub(r"#.*", "", _read(script))):
            names = [_expand(name, folders) for name in match.group(1, 2)]
            if not any("$" in name for name in names) and "COPYONLY" not in match[3]:
                yield ConfiguredFile(script.parent / names[0], binary / names[1], "@ONLY" in match[3])


def _expand(name: str, folders: Mapping[str, Path]) -> str:
    return _PLACE.sub(lambda place: str(folders.get(place[2] or "", place[0])), name)


def _known_values(project: BuildProject, tree: CMakeTree) -> dict[str, str]:
    """Return the variables whose value is certain: those of project(), and the version of TensorRT-LLM."""
    entries = tree.cache.entries if tree.cache else {}
    values = {
        name.removeprefix("CMAKE_"): entry.value
        for name, entry in entries.items()
        if re.fullmatch(r"CMAKE_PROJECT_(?:NAME|VERSION(?:_M\w+)?)", name)
    }
    if project.is_wheel_project:
        version = re.search(r"__version__\s*=\s*[\"']([^\"']+)", _read(project.root / "tensorrt_llm" / "version.py"))
        values |= {"TRTLLM_VERSION": version[1]} if version else {}
    return values


def _configured_ns(tree: CMakeTree) -> int:
    """Return when CMake last ran here to its end."""
    names = ("build.ninja", "Makefile", "CMakeCache.txt", "CMakeFiles/cmake.check_cache")
    return max((path.stat().st_mtime_ns for name in names if (path := tree.path / name).is_file()), default=0)


def _strange_line(file: ConfiguredFile, values: Mapping[str, str], configured_ns: int) -> str:
    """Return the first line that the template does not give, of a file written since CMake ran; "" for none."""
    try:
        is_late = file.output.stat().st_mtime_ns > configured_ns + SLACK_NS
        is_edited_template = file.template.stat().st_mtime_ns > configured_ns
    except OSError:
        return ""
    if not is_late or is_edited_template:
        return ""  # an edited template is ordinary work: the next build configures again
    template_lines, lines = _read(file.template).splitlines(), _read(file.output).splitlines()
    for template, line in zip(template_lines, lines, strict=False):
        if "#cmakedefine" in template or re.fullmatch(_pattern(template, values, file.only_at_signs), line):
            continue
        return line.strip()[:120]
    return "" if len(template_lines) == len(lines) else f"{len(lines)} lines, the template has {len(template_lines)}"


def _pattern(template: str, values: Mapping[str, str], only_at_signs: bool) -> str:
    parts, end = [], 0
    for place in _PLACE.finditer(template):
        name = place[1] or place[2]
        is_place = bool(place[1]) or not only_at_signs
        value = (re.escape(values[name]) if name in values else ".*") if is_place else re.escape(place[0])
        parts += [re.escape(template[end : place.start()]), value]
        end = place.end()
    return "".join([*parts, re.escape(template[end:])])


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
