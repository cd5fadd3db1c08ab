"""`trtdx explain`: the page of one cause, or what an option, variable or flag is in each release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli.output import Color, terminal_width, wants_color, write_output
from trtdx.errors import InputError
from trtdx.host import RealHost

if TYPE_CHECKING:
    from trtdx.knowledge.inventory_answer import InventoryAnswer
    from trtdx.rule import Rule, RuleBook


def explain_rule(
    name: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="A code such as DX012, or a slug such as world-size-mismatch."),
    ] = None,
    option: Annotated[
        str | None, typer.Option("--option", metavar="KEY", help="A key of the LLM API, in each release.")
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", metavar="NAME", help="An environment variable, in each release.")
    ] = None,
    flag: Annotated[
        str | None,
        typer.Option("--flag", metavar="PROGRAM:--FLAG", help="A command-line flag, in each release."),
    ] = None,
    runtime: Annotated[
        str,
        typer.Option("--runtime", metavar="VERSION", help="The TensorRT-LLM release: only the commands for it."),
    ] = "",
    rules: Annotated[
        list[str] | None,
        typer.Option("--rules", metavar="DIR", help="Also look in this folder of rule pages."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", "-v", help="Also show the examples the page is tested with.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the page as JSON.")] = False,
    color: Annotated[Color, typer.Option("--color", help="When to use colour.")] = Color.AUTO,
) -> None:
    """Explain a cause (why, what to do, how to verify), or an option, variable or flag of each release."""
    import msgspec

    from trtdx.cli.project import load_project_defaults
    from trtdx.knowledge.load import load_book
    from trtdx.render.page import render_page

    questions = [question for question in (name, option, env, flag) if question is not None]
    if len(questions) != 1:
        raise InputError("one thing is explained at a time", fix="trtdx explain CODE, or --option, --env, --flag")
    host = RealHost()
    book = load_book(host, [*load_project_defaults(host).rules, *(rules or ())])
    if name is None:
        if details:
            raise InputError("--details shows a page's examples, and this is no page", fix="leave --details out")
        from trtdx.knowledge.inventory_answer import render_answer

        answer = _answer_name(book, option, env, flag)
        write_output(_format_json(msgspec.json.encode(answer)) if json else render_answer(answer))
        return
    rule = _rule_for_release(book.get(name), runtime)
    if json:
        write_output(_format_json(msgspec.json.encode(rule)))
    else:
        write_output(render_page(rule, color=wants_color(color), width=terminal_width(), details=details))


def _rule_for_release(rule: Rule, runtime: str) -> Rule:
    """Return a page with the fixes for a release, where one is named."""
    import msgspec

    from trtdx.knowledge.fix_choice import fixes_for_release
    from trtdx.knowledge.versions import stated_release

    if not runtime:
        return rule
    release = stated_release(runtime)
    if not release:
        raise InputError(f"{runtime!r} is not a release of TensorRT-LLM", fix="--runtime 1.2.1")
    front = msgspec.structs.replace(rule.front, fix=fixes_for_release(rule.front.fix, release))
    return msgspec.structs.replace(rule, front=front)


def _format_json(document: bytes) -> str:
    import msgspec

    return msgspec.json.format(document, indent=2).decode() + "\n"


def _answer_name(book: RuleBook, option: str | None, env: str | None, flag: str | None) -> InventoryAnswer:
    import msgspec

    from trtdx.knowledge import inventory_answer

    if option is not None:
        answer = inventory_answer.answer_option(option)
        answer = msgspec.structs.replace(answer, other_names=_other_names(option))
    elif env is not None:
        answer = inventory_answer.answer_variable(env)
    else:
        answer = inventory_answer.answer_flag(flag or "")
    return msgspec.structs.replace(answer, pages=inventory_answer.find_pages(answer, book))


def _other_names(option: str) -> tuple[str, ...]:
    """Return what an option was called before, what it is called now, and the flags that set it."""
    from trtdx.inspect.facts.option_table import option_table

    table = option_table()
    names = [f"{old} before {new.since}" for old, new in table.renamed.items() if new.to == option]
    if option in table.renamed:
        names.append(f"{table.renamed[option].to} since {table.renamed[option].since}")
    for program, flags in table.flag.items():
        names += [f"{program} {flag}" for flag, entry in flags.items() if entry.option == option]
    return tuple(names)
