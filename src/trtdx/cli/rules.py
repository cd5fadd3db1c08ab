"""`trtdx rules`: look at the knowledge, check a team's own pages, start a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtdx.cli import explain
from trtdx.cli.output import write_output
from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.words import format_count

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


@app.command("check", epilog="Example: trtdx rules check our-rules/")
def check_rules(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder of rule pages, or one page.")],
    json: Annotated[bool, typer.Option("--json", help="Print the problems as JSON.")] = False,
) -> None:
    """Check rule pages: their form and layout, their patterns, and that every example keeps its promise."""
    import msgspec

    from trtdx.diagnose.rule_examples import RuleExamples
    from trtdx.inspect.agreements.artifact_examples import broken_artifact_examples
    from trtdx.knowledge.load import check_pages, load_book, read_pages
    from trtdx.knowledge.page_format import check_layout
    from trtdx.rule import RuleBook

    host = RealHost()
    rules, problems = check_pages(host, folder)
    if not rules and not problems:
        raise _no_pages(folder)
    unreadable = {problem.path for problem in problems}
    sound = [rule for rule in rules if rule.path not in unreadable]
    names = {name for rule in rules for name in (rule.code, rule.slug)}  # stand in for the packaged ones
    others = [rule for rule in load_book(host) if not names.intersection((rule.code, rule.slug))]
    book = RuleBook([*others, *sound])
    problems += [
        *(problem for path, text in read_pages(host, folder) for problem in check_layout(text, path)),
        *RuleExamples(book).check_rules(sound),
        *broken_artifact_examples(sound, book),
    ]
    if json:
        write_output(msgspec.json.format(msgspec.json.encode(problems), indent=2).decode() + "\n")
    else:
        write_output(
            "".join(f"{problem}\n" for problem in problems)
            + f"{format_count(len(rules), 'page')}, {format_count(len(problems), 'problem')}\n"
        )
    raise typer.Exit(1 if problems else 0)


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
    slug: Annotated[str, typer.Argument(help="Names the bad thing, in words joined by hyphens.")],
    folder: Annotated[str, typer.Option("--in", metavar="DIR", help="Where to write the page.")] = ".",
) -> None:
    """Start a rule page that passes `rules check`, ready to be filled in."""
    from trtdx.knowledge.load import load_book
    from trtdx.knowledge.page_check import NEW_PAGE, check_page

    host = RealHost()
    path = str(Path(folder) / f"{code}-{slug}.md")
    if host.kind(path) != "absent":
        raise InputError(f"{path} is there already", fix="choose another code, or edit that page")
    if load_book(host).has_rule(code) or load_book(host).has_rule(slug):
        raise InputError(f"{code} or {slug} is taken by a packaged rule", fix="trtdx rules list")
    text = NEW_PAGE.replace("CODE", code).replace("SLUG", slug)
    _, problems = check_page(text, path)
    if problems:
        raise InputError(problems[0].message)
    host.write(path, text.encode())
    write_output(f"{path}\n")
