"""`trtdx build doctor`: what is wrong with a build tree, root cause first, each with its smallest clean-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.build.doctor.check_cache import check_cache_damage, check_in_source, check_machine, check_place
from trtdx.build.doctor.check_ccache import check_ccache
from trtdx.build.doctor.check_configured import check_configured_files
from trtdx.build.doctor.check_engines import check_engines
from trtdx.build.doctor.check_generator import check_generated, check_generator
from trtdx.build.doctor.check_ninja import check_ninja_record, check_source_list, check_times
from trtdx.build.doctor.check_outputs import (
    check_changed_outputs,
    check_dead_outputs,
    check_half_written,
    check_locked_outputs,
    check_object_architectures,
    check_object_compilers,
)
from trtdx.build.doctor.check_packages import check_library_copies, check_staged_files, check_wheels
from trtdx.build.doctor.check_python import check_bindings, check_python, check_torch_abi, check_venvs
from trtdx.build.doctor.check_settings import check_architectures, check_build_type
from trtdx.build.doctor.check_sources import (
    check_fetched,
    check_generated_kernels,
    check_lfs,
    check_submodules,
)
from trtdx.build.doctor.check_toolchain import check_cached_paths, check_compilers, check_cuda_on_path
from trtdx.build.doctor.installed import InstalledTools
from trtdx.build.doctor.project import BuildProject
from trtdx.knowledge.violation import finding_from
from trtdx.model import Finding, Report, Section, Summary, headline_from_findings
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.build.doctor.project import CMakeTree
    from trtdx.build.nouns import TreeTrouble
    from trtdx.host import Host
    from trtdx.rule import RuleBook


def examine_tree(host: Host, named: str, book: RuleBook) -> Report:
    """Return what is wrong with the trees of a project; nothing in it is run or changed."""
    project = BuildProject(host, named)
    findings = [finding_from(book.get(trouble.code), trouble.violation) for trouble in _root_causes(_troubles(project))]
    findings = _order(findings)
    text = headline_from_findings(findings) if findings else _healthy_words(project)
    summary = Summary(text, inputs=len(project.files), partial=tuple(project.notes))
    return Report(summary, tuple(findings), tuple(_sections(project)))


def _order(findings: list[Finding]) -> list[Finding]:
    """Return the graver first; among equals the order of the checks, which is what must be mended first."""
    return sorted(findings, key=lambda finding: -finding.severity.badness)


def _troubles(project: BuildProject) -> Iterator[TreeTrouble]:
    """Yield what every check finds: sources before the cache, the cache before what was built with it."""
    tools = InstalledTools(project)
    yield from check_submodules(project, tools)
    yield from check_lfs(project)
    yield from check_generated_kernels(project)
    for tree in project.trees:
        yield from _tree_troubles(project, tree, tools)
    yield from check_venvs(project)
    yield from check_half_written(project)
    for tree in project.trees:
        yield from check_object_architectures(project, tree)
        yield from check_object_compilers(project, tree)
        yield from check_configured_files(project, tree)
        yield from check_changed_outputs(project, tree)
        yield from check_dead_outputs(project, tree)
        yield from check_locked_outputs(project, tree)
    yield from check_bindings(project, tools)
    yield from check_library_copies(project)
    yield from check_staged_files(project)
    yield from check_wheels(project)
    yield from check_engines(project)


def _tree_troubles(project: BuildProject, tree: CMakeTree, tools: InstalledTools) -> Iterator[TreeTrouble]:
    yield from check_in_source(project, tree)
    yield from check_cache_damage(project, tree)
    yield from check_place(project, tree)
    yield from check_machine(project, tree)
    yield from check_generator(project, tree)
    yield from check_compilers(project, tree, tools)
    yield from check_cuda_on_path(project, tree, tools)
    yield from check_python(project, tree, tools)
    yield from check_torch_abi(project, tree)
    yield from check_cached_paths(project, tree)
    yield from check_ccache(project, tree)
    yield from check_fetched(project, tree)
    yield from check_generated(project, tree)
    yield from check_build_type(project, tree)
    yield from check_architectures(project, tree, tools)
    yield from check_ninja_record(project, tree, tools)
    yield from check_source_list(project, tree)
    yield from check_times(project, tree)


def _root_causes(troubles: Iterator[TreeTrouble]) -> list[TreeTrouble]:
    """Return the troubles that no earlier one of the same tree explains."""
    kept: list[TreeTrouble] = []
    for trouble in troubles:
        explained = any(
            trouble.code in cause.explains and (not cause.tree or not trouble.tree or cause.tree == trouble.tree)
            for cause in kept
        )
        if not explained:
            kept.append(trouble)
    return kept


def _healthy_words(project: BuildProject) -> str:
    if not project.trees:
        return f"no problem found; {project.root} holds no tree that CMake has configured"
    return f"no problem found in {format_count(len(project.trees), 'build tree')}"


def _sections(project: BuildProject) -> Iterator[Section]:
    if project.trees:
        rows = tuple(_tree_row(project, tree) for tree in project.trees)
        yield Section(
            "trees", "build trees", ("tree", "source", "generator", "compiler", "CMake"), rows, after_findings=True
        )


def _tree_row(project: BuildProject, tree: CMakeTree) -> tuple[str, ...]:
    record = tree.compilers.get("CXX") or tree.compilers.get("C")
    source = project.source_of(tree)
    return (
        project.show(tree.path),
        project.show(source) if source else "",
        tree.generator,
        f"{record.id} {record.version}" if record else "",
        tree.cache.version if tree.cache else "",
    )
