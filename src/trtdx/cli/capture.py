"""`trtdx capture`: a group whose first word, where it is no subcommand, is the model to run."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from trtdx.cli import capture_build, capture_run, capture_tools


class _RunsByDefault(TyperGroup):
    """A group whose first word, where it is no subcommand, is the model to run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Options before the model are those of `run` too.
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunsByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run a model on any engine and capture its intermediate tensors, with no edit of the model. "
    "`trtdx capture MODEL` is `trtdx capture run MODEL`; its options: `trtdx capture run --help`.",
    epilog="Example: trtdx capture ./model --tap 'layers.*.mlp:out' --tokens 16",
)


app.command(
    "run", epilog="Example: trtdx capture ./model --ids 1,15,27 --tokens 16 --tap 'layers.*:out' --watch nan"
)(capture_run.run)
app.command(
    "show", epilog="Example: trtdx capture show ./capture 'layers.*.mlp:out' --steps 0 --sort absmax"
)(capture_tools.show)
app.command(
    "query",
    epilog='Example: trtdx capture query ./capture "select name, max(absmax) from tensors group by name order by 2 desc limit 10"',
)(capture_tools.query)
app.command("import", epilog="Example: trtdx capture import ./tllm_debug ./capture")(capture_tools.import_)
app.command(
    "export", epilog="Example: trtdx capture export ./capture tensors.safetensors --tap 'layers.*.mlp:out'"
)(capture_tools.export)
app.command(
    "replay", epilog="Example: trtdx capture replay ./capture layers.3 --model ./model.onnx --step 2"
)(capture_tools.replay)
app.command(
    "build",
    epilog="Example: trtdx capture build model.onnx --tap 'layers.*.mlp:out' --variant debug-tensors --profile 'x:1x8,4x8,16x8'",
)(capture_build.build)
