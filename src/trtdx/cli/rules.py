"""`trtdx rules`: look at the knowledge, check a team's own pages, start a new one."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli import explain
from trtdx.cli.output import write_output
from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.host import Host
    from trtdx.rule import PageProblem, Rule

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, show, check and start rule pages.")
app.command("show", epilog="Example: trtdx rules show DX012")(explain.explain_rule)


@app.command("list", epilog="Example: trtdx rules list --area memory")
def list_rules(
    area: Annotated[
        str,
        typer.Option(
            "--area",
            help="Only this area: install, convert, build, config, runtime, memory, multigpu, accuracy, performance.",
        ),
    ] = "",
    rules: Annotated[
        list[str] | None, typer.Option("--rules", metavar="DIR", help="Also list the pages in this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List all rules, one a line."""
    import msgspec

    from trtdx.cli.project import load_project_defaults
    from trtdx.knowledge.load import load_book

    host = RealHost()
    book = load_book(host, [*load_project_defaults(host).rules, *(rules or ())])
    chosen = [rule for rule in book if not area or rule.front.area == area]
    if json:
        rows = [
            {"code": r.code, "slug": r.slug, "area": r.front.area, "kind": r.kind.value, "title": r.title}
            for r in chosen
        ]
        write_output(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n")
        return
    for rule in chosen:
        write_output(f"{rule.code}  {rule.front.area:<12}{rule.kind.value:<10}{rule.title}\n")
    write_output(f"{format_count(len(chosen), 'rule')}\n")


class PageCheck(str, Enum):
    """What is asked of a page."""

    FORM = "form"
    EXAMPLE = "example"
    INVENTORY = "inventory"
    ATLAS = "atlas"
    SOURCE = "source"
    HARMLESS = "harmless"


class ProblemFormat(str, Enum):
    """In which format problems of pages are printed."""

    TEXT = "text"
    JSON = "json"


@app.command("check", epilog="Example: trtdx rules check our-rules/")
def check_rules(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder of rule pages, or one page.")],
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code",
            help="Also run the examples written in Python: that executes code from the pages. Needs torch and transformers.",
        ),
    ] = False,
    only: Annotated[
        list[PageCheck] | None, typer.Option("--only", help="Only this check; may be repeated.", show_default=False)
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", "-v", help="Also what is worth a look and no reason to refuse a page.")
    ] = False,
    format: Annotated[  # noqa: A002 - what the flag is called everywhere
        ProblemFormat, typer.Option("--format", help="What to print.")
    ] = ProblemFormat.TEXT,
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> None:
    """Check rule pages: form and layout, examples, and every flag, option, variable and script against its releases."""
    import msgspec

    from trtdx.rule import CODE_EXAMPLES

    rules, problems = _find_page_problems(RealHost(), folder, run_code=run_code)
    not_run = 0 if run_code else sum(bool(rule.examples(CODE_EXAMPLES[0])) for rule in rules)
    wanted_checks = {check.value for check in only or PageCheck}
    problems = [one for one in problems if one.check in wanted_checks and (details or not one.is_note)]
    if json or format is ProblemFormat.JSON:
        write_output(msgspec.json.format(msgspec.json.encode(problems), indent=2).decode() + "\n")
    else:
        write_output(
            "".join(f"{problem}\n" for problem in problems)
            + f"{format_count(len(rules), 'page')}, {format_count(len(problems), 'problem')}\n"
            + (
                f"the Python examples of {format_count(not_run, 'page')} were not run: add --run-code\n"
                if not_run
                else ""
            )
        )
    raise typer.Exit(1 if any(not problem.is_note for problem in problems) else 0)


def _find_page_problems(host: Host, folder: str, *, run_code: bool) -> tuple[list[Rule], list[PageProblem]]:
    """Return the readable pages of a folder, and everything that is wrong with any of its pages."""
    from trtdx.diagnose.rule_examples import RuleExamples
    from trtdx.inspect.agreements.artifact_examples import broken_artifact_examples
    from trtdx.inspect.mentions.page_claims import check_claims
    from trtdx.knowledge.load import check_pages, load_book, read_pages
    from trtdx.knowledge.page_format import check_layout
    from trtdx.knowledge.page_sources import check_sources
    from trtdx.rule import RuleBook
    from trtdx.testing.page_examples import broken_computed_examples

    rules, problems = check_pages(host, folder)
    if not rules and not problems:
        raise _no_pages(folder)
    packaged = list(load_book(host))
    problems += _reused_names(rules, packaged)
    unreadable = {problem.path for problem in problems}
    sound = [rule for rule in rules if rule.path not in unreadable]
    names = {name for rule in rules for name in (rule.code, rule.slug)}  # stand in for the packaged ones
    others = [rule for rule in packaged if not names.intersection((rule.code, rule.slug))]
    book = RuleBook([*others, *sound])
    texts = dict(read_pages(host, folder))
    return rules, [
        *problems,
        *(problem for path, text in texts.items() for problem in check_layout(text, path)),
        *RuleExamples(book).check_rules(sound),
        *broken_artifact_examples(sound, book),
        *broken_computed_examples(sound, ask_trtdx, run_code=run_code),
        *check_claims(sound, texts),
        *check_sources(sound),
    ]


def _reused_names(rules: Sequence[Rule], packaged: Sequence[Rule]) -> list[PageProblem]:
    """Return the pages whose code or slug is another page's, which no book takes; the same page elsewhere is no other."""
    from trtdx.rule import PageProblem

    owners: dict[str, Rule] = {}
    for rule in packaged:
        owners |= {rule.code: rule, rule.slug: rule}
    problems: list[PageProblem] = []
    pages: dict[str, Rule] = {}
    for rule in rules:
        for name in (rule.code, rule.slug):
            other = pages.setdefault(name, rule)
            if other is rule and name in owners and (owners[name].code, owners[name].slug) != (rule.code, rule.slug):
                other = owners[name]
            if other is not rule:
                problems.append(PageProblem(rule.path, 1, f"{name} is claimed by {other.path} too: give it a new name"))
    return problems


def ask_trtdx(words: list[str]) -> list[str]:
    """Run a command of trtdx in this process and return the codes of its findings, the first one first."""
    import click
    import msgspec

    from trtdx.cli.main import app as commands

    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            commands([*words, "--json"], prog_name="trtdx", standalone_mode=False)
    except click.ClickException as err:
        raise InputError(err.format_message()) from err
    return [finding["code"] for finding in msgspec.json.decode(printed.getvalue())["findings"]]


@app.command("fmt", epilog="Example: trtdx rules fmt our-rules/")
def format_pages(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder of rule pages, or one page.")],
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 when a page would change.")
    ] = False,
) -> None:
    """Put the keys and sections of rule pages in the order that all pages have."""
    from trtdx.knowledge.load import read_pages
    from trtdx.knowledge.page_format import format_page

    host = RealHost()
    pages = read_pages(host, folder)
    if not pages:
        raise _no_pages(folder)
    changed = [(path, new) for path, text in pages if (new := format_page(text, path)) != text]
    for path, text in changed:
        write_output(f"{path}\n")
        if not check:
            host.write(path, text.encode())
    write_output(f"{format_count(len(pages), 'page')}, {len(changed)} {'would change' if check else 'changed'}\n")
    raise typer.Exit(1 if check and changed else 0)


def _no_pages(folder: str) -> InputError:
    return InputError(
        f"there is no rule page (*.md) in {folder}",
        fix=f"trtdx rules new ACME001 the-bad-thing --in {folder}",
    )


@app.command("new", epilog="Example: trtdx rules new ACME001 proxy-eats-streams --in our-rules")
def start_page(
    code: Annotated[str, typer.Argument(help="A code nobody uses, such as ACME001.")],
    slug: Annotated[str, typer.Argument(help="Names what is wrong, in words joined by hyphens.")],
    folder: Annotated[str, typer.Option("--in", metavar="DIR", help="Where to write the page.")] = ".",
    from_case: Annotated[
        str,
        typer.Option("--from-case", metavar="ID", help="Draft it from this resolved case.", show_default=False),
    ] = "",
) -> None:
    """Start a rule page that passes `rules check`, ready to be filled in."""
    from trtdx.knowledge.load import load_book
    from trtdx.knowledge.page_check import NEW_PAGE, check_page

    host = RealHost()
    path = str(Path(folder) / f"{code}-{slug}.md")
    if host.kind(path) != "absent":
        raise InputError(f"{path} already exists", fix="choose another code, or edit that page")
    if load_book(host).has_rule(code) or load_book(host).has_rule(slug):
        raise InputError(f"{code} or {slug} is taken by a packaged rule", fix="trtdx rules list")
    text = (
        _draft_from_case(host, from_case, code, slug)
        if from_case
        else NEW_PAGE.replace("CODE", code).replace("SLUG", slug)
    )
    _, problems = check_page(text, path)
    if problems and not from_case:
        raise InputError(problems[0].message)
    host.write(path, text.encode())
    write_output(f"{path}\n")
    if from_case:  # what a draft still lacks is for its author to see and mend
        problems = _find_page_problems(host, path, run_code=False)[1]
        write_output("".join(f"{problem}\n" for problem in problems if not problem.is_note))


def _draft_from_case(host: Host, case_id: str, code: str, slug: str) -> str:
    from trtdx.cases.case_file import open_body
    from trtdx.cases.draft_page import draft_page
    from trtdx.cases.store import opened_store
    from trtdx.knowledge.load import load_book

    with opened_store(host, writes=False) as store:
        case = store.find(case_id)
        opened = open_body(store.read_body(case), case.id, is_own=True)
    return draft_page(code, slug, case, opened, load_book(host))
