"""`trtdx view` and `trtdx report`: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trtdx.errors import InputError
from trtdx.host import RealHost


def write_report(
    case: Annotated[str, typer.Argument(metavar="CASE", help="A case: a folder, or a .trtdx file.")],
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page if it exists.")] = False,
) -> None:
    """Write a case as one page that needs no server and no network, without secrets."""
    from trtdx.ui.run import page_from_case

    host = RealHost()
    if host.kind(out) != "absent" and not force:
        raise InputError(f"{out} already exists", fix="name another file with --out, or add --force")
    host.write(out, page_from_case(host, case).encode())


def view_cases(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CASE...", help="Cases, or folders that hold cases; by default the store.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port on 127.0.0.1; 0 takes a free one.")
    ] = 0,
) -> None:
    """Show cases in a browser, from a server on this machine that only the printed address opens."""
    from trtdx.ui.pages import CasePages
    from trtdx.ui.server import serve_cases
    from trtdx.ui.shelves import FolderShelf, StoreShelf

    host = RealHost()
    shelf = FolderShelf(host, paths) if paths else StoreShelf(host)
    pages = CasePages(host, shelf)
    serve_cases(pages, port, announce=lambda address: print(address, file=sys.stderr, flush=True))  # noqa: T201
