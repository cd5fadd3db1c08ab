"""Serves cases on this machine only: a token in the address, the Host header checked, nothing loaded from elsewhere."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError, TrtdxError
from trtdx.optional import import_optional
from trtdx.render.html import policy_hash, read_asset
from trtdx.render.text import printable_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtdx.ui.pages import CasePages

LOOPBACK = "127.0.0.1"
COOKIE = "trtdx_token"
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def serve_cases(pages: CasePages, port: int, announce: Callable[[str], None]) -> None:
    """Serve cases until interrupted; `announce` is told the address once it answers.

    Raises:
        InputError: the port is taken.
        MissingExtraError: the web server is not installed.
    """
    import socket

    uvicorn = import_optional("uvicorn", extra="ui", purpose="serve pages")
    token = secrets.token_urlsafe(24)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except OSError as err:
        raise InputError(f"port {port} cannot be used: {err.strerror or err}", fix="leave --port out") from err
    listener.listen()
    origin = f"{LOOPBACK}:{listener.getsockname()[1]}"
    options = {"log_level": "error", "access_log": False, "lifespan": "off"}
    # A browser keeps its connections open, and would keep the server from ending.
    config = uvicorn.Config(make_app(pages, token, origin), timeout_graceful_shutdown=1, **options)
    announce(f"http://{origin}/?token={token}")
    uvicorn.Server(config).run(sockets=[listener])


def make_app(pages: CasePages, token: str, origin: str) -> Any:
    """Return the web application: its pages, behind the token and the right Host header."""
    applications = import_optional("starlette.applications", extra="ui", purpose="serve pages")
    routing = import_optional("starlette.routing", extra="ui", purpose="serve pages")
    responses = import_optional("starlette.responses", extra="ui", purpose="serve pages")

    def refuse(words: str, status: int) -> Any:
        return responses.PlainTextResponse(words, status, headers=HEADERS)

    def guard_page(show: Callable[..., str]) -> Callable[[Any], Any]:
        def respond(request: Any) -> Any:
            if not _is_own_host(request.headers, origin):
                return refuse("wrong host", 421)
            offered = request.query_params.get("token") or request.cookies.get(COOKIE, "")
            if not hmac.compare_digest(offered.encode(), token.encode()):
                return refuse("the address needs its token", 403)
            try:
                page = show(request.query_params, **request.path_params)
            except (IndexError, TrtdxError) as err:
                return refuse(printable_text(str(err)) or "not there", 404)
            response = responses.HTMLResponse(page, headers=HEADERS | {"content-security-policy": page_policy()})
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return response

        return respond

    addresses: dict[str, Callable[..., str]] = {
        "/": pages.show_index,
        "/case/{key}": pages.show_case,
        "/case/{key}/log/{at:int}": pages.show_log,
        "/case/{key}/memory": pages.show_memory,
    }
    return applications.Starlette(routes=[routing.Route(path, guard_page(show)) for path, show in addresses.items()])


def _is_own_host(headers: Mapping[str, str], origin: str) -> bool:
    """Whether a request was meant for this server and comes from no other page than its own."""
    return headers.get("host") == origin and headers.get("origin", f"http://{origin}") == f"http://{origin}"


def page_policy() -> str:
    """Return the policy of served pages: their own style and script, forms and questions to this server, and nothing else."""
    style, script = policy_hash(read_asset("style.css")), policy_hash(read_asset("page.js"))
    return (
        f"default-src 'none'; img-src data:; style-src '{style}'; script-src '{script}'; base-uri 'none'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'"
    )
