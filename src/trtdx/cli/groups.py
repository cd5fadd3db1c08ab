"""How commands are declared: groups of options as objects, and commands that have subcommands.

An option group is a dataclass. Its fields are the flags, each declared once; its methods build what the flags
describe. A command names the groups it wants as parameters, and `expand_groups` tells typer about their fields:

    @dataclass(frozen=True, kw_only=True)
    class ToleranceOptions(OptionGroup):
        rtol: Annotated[float | None, typer.Option("--rtol", help="...")] = None

        def build_tolerances(self) -> Tolerances | None: ...

    def run_compare(reference: str, tolerance: ToleranceOptions) -> None: ...

    app.command("run")(expand_groups(run_compare))
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MAIN = "run"
HELP = ("-h", "--help")


class OptionGroup:
    """Base of all option groups; subclasses are dataclasses whose fields are options."""

    @classmethod
    def list_parameters(cls) -> list[inspect.Parameter]:
        """Return the fields as the parameters typer is to read."""
        hints = get_type_hints(cls, include_extras=True)
        return [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(cls)  # type: ignore[arg-type]
        ]


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: each parameter that is an option group becomes the group's options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, list[str]] = {}
    own: list[inspect.Parameter] = []  # stand first in help
    shared: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if isinstance(hints[name], type) and issubclass(hints[name], OptionGroup):
            members = hints[name].list_parameters()
            groups[name] = [member.name for member in members]
            shared += members
        else:
            own.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
    parameters = own + shared

    def run_with_groups(**values: Any) -> None:
        for group, members in groups.items():
            values[group] = hints[group](**{member: values.pop(member) for member in members})
        command(**values)

    run_with_groups.__doc__ = command.__doc__
    run_with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_with_groups


class MainCommandGroup(TyperGroup):
    """Subcommands beside one main command, which runs when the first word names no subcommand.

    `trtdx memory ./model` is `trtdx memory run ./model`; a folder called like a subcommand is reached as `./log`.
    """

    main_command = MAIN

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in HELP:
            args = [self.main_command, *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the main command's help, with the subcommands listed before its example."""
        main = self.commands[self.main_command]
        with main.make_context(ctx.info_name, [], parent=ctx.parent, resilient_parsing=True) as main_context:
            main.format_usage(main_context, formatter)
            main.format_help_text(main_context, formatter)
            main.format_options(main_context, formatter)
            self.format_commands(ctx, formatter)
            main.format_epilog(main_context, formatter)


def make_command_group(summary: str, cls: type[TyperGroup] = MainCommandGroup) -> typer.Typer:
    """Return an empty group of commands; the one added as `run` is its main command, or whichever `cls` says."""
    return typer.Typer(cls=cls, no_args_is_help=True, rich_markup_mode=None, help=summary)


def given_flags(context: typer.Context) -> dict[str, str]:
    """Return the options that stand on the command line: parameter names and flags."""
    flags = {param.name: param.opts[0] for param in context.command.params if param.opts[0].startswith("-")}
    return {
        name: flag
        for name, flag in flags.items()
        if name and (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }


def refuse_options(context: typer.Context, beside: str, because: str, *, allowed: Collection[str]) -> None:
    """Refuse any option given beside another one that would leave it without effect.

    Args:
        context: the command being run.
        beside: the option that rules.
        because: why the others would be dropped.
        allowed: the parameter names of options that do go with it.

    Raises:
        typer.BadParameter: such an option was given.
    """
    for name, flag in given_flags(context).items():
        if name not in allowed:
            refuse_pair(flag, beside, because)


def refuse_pair(option: str, beside: str, because: str) -> NoReturn:
    """Refuse two options that do not go together.

    Raises:
        typer.BadParameter: always.
    """
    raise typer.BadParameter(f"{option} does not go with {beside}: {because}")
