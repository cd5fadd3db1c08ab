"""`trtdx mcp`: the arguments, and nothing of the work."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.optional import require_packages

TOKEN_VARIABLE = "TRTDX_MCP_TOKEN"  # noqa: S105 - its name


def serve_assistant(
    root: Annotated[
        list[str] | None,
        typer.Option(
            "--root", metavar="DIR", help="Read below this folder, whatever roots the client names. May be repeated."
        ),
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve HTTP on loopback instead of standard input.")] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="With --http: the port; 0 takes a free one.")
    ] = 0,
    allow_run: Annotated[
        bool, typer.Option("--allow-run", help="Let tools run models and interpreters; by default they only read.")
    ] = False,
    rules: Annotated[
        list[str] | None, typer.Option("--rules", metavar="DIR", help="Also use the rule pages in this folder.")
    ] = None,
) -> None:
    """Offer the answers as tools to a coding assistant (MCP), over standard input or HTTP."""
    if port and not http:
        raise typer.BadParameter("--port goes with --http")
    require_packages(("mcp",), purpose="serve an assistant")
    from trtdx.mcp.server import make_server

    host = RealHost()
    for folder in root or ():
        if host.kind(folder) != "directory":
            raise InputError(f"--root {folder} is not a folder")
    server = make_server([str(Path(folder).absolute()) for folder in root or ()], runs=allow_run, rules=rules or ())
    if not http:
        server.run("stdio")
        return
    from trtdx.mcp.http import serve_http

    token = host.environment().get(TOKEN_VARIABLE) or secrets.token_urlsafe(32)
    serve_http(server, port=port, token=token, announce=lambda url: _announce(url, token))


def _announce(url: str, token: str) -> None:
    """Say on standard error where the server is and how to be let in."""
    sys.stderr.write(f"trtdx: serving {url}\ntrtdx: send the header Authorization: Bearer {token}\n")
    sys.stderr.flush()
