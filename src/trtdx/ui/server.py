"""Serves cases on this machine only: a token in the address, the Host header checked, nothing loaded from elsewhere."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Any

from trtdx.errors import CaseError, InputError
from trtdx.optional import import_optional
from trtdx.redact import redact_secrets
from trtdx.render.html import page_environment, policy_hash, read_asset, render_html, trusted_assets
from trtdx.render.text import printable_text
from trtdx.ui.log_text import PAGE_LINES, excerpt_log, window_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.ui.shelves import CaseShelf

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


def serve_cases(shelf: CaseShelf, port: int, announce: Callable[[str], None]) -> None:
    """Serve cases until interrupted; `announce` is told the address once it answers.

    Raises:
        InputError: the port is taken.
        MissingExtraError: the web server is not installed.
    """
    import socket

    uvicorn = import_optional("uvicorn", extra="ui", purpose="serve pages")
    token = secrets.token_urlsafe(24)
    pages = CasePages(shelf)
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


class CasePages:
    """The pages of some cases, each made when it is asked for."""

    def __init__(self, shelf: CaseShelf) -> None:
        self._shelf = shelf

    def show_index(self, query: str) -> str:
        """Return the list of the cases that fit what was searched for."""
        return _render("index.html", rows=self._shelf.list_rows(query), query=query)

    def show_case(self, key: str) -> str:
        """Return a case's page, each log with a way to all of it."""
        from markupsafe import Markup

        view, case = self._shelf.read(key)
        logs = []
        for at, log in enumerate(view.logs):
            link = '<p><a href="{}/log/{}?line={}">{}: the whole log</a></p>'
            first = max(1, log.first_line - PAGE_LINES // 4)
            logs += [excerpt_log(case, log), Markup(link).format(key, at, first, printable_text(log.name))]  # noqa: S704
        return render_html(view.report, subject=view.command or view.name, logs=logs, home="/")

    def show_log(self, key: str, at: int, first: int) -> str:
        """Return some hundred lines of a log."""
        view, case = self._shelf.read(key)
        log = view.logs[at]
        lines, has_more = window_log(case, log, first)
        return _render(
            "log.html",
            name=printable_text(redact_secrets(log.name)),
            number=key,
            first=first,
            last=first + PAGE_LINES - 1,
            step=PAGE_LINES,
            lines=lines,
            has_more=has_more,
            marks=sorted(log.causes | log.symptoms)[:20],
        )


def _render(template: str, **values: Any) -> str:
    return page_environment().get_template(template).render(**trusted_assets(read_asset("style.css"), ""), **values)


def make_app(pages: CasePages, token: str, origin: str) -> Any:
    """Return the web application: three pages, behind the token and the right Host header."""
    applications = import_optional("starlette.applications", extra="ui", purpose="serve pages")
    routing = import_optional("starlette.routing", extra="ui", purpose="serve pages")
    responses = import_optional("starlette.responses", extra="ui", purpose="serve pages")

    def answer(text: str, status: int = 200) -> Any:
        return responses.HTMLResponse(text, status, headers=HEADERS | {"content-security-policy": page_policy()})

    def guarded(show: Callable[[Any], str]) -> Callable[[Any], Any]:
        def respond(request: Any) -> Any:
            if (
                request.headers.get("host") != origin
                or request.headers.get("origin", f"http://{origin}") != f"http://{origin}"
            ):
                return responses.PlainTextResponse("wrong host", 421, headers=HEADERS)
            offered = request.query_params.get("token") or request.cookies.get(COOKIE, "")
            if not hmac.compare_digest(offered.encode(), token.encode()):
                return responses.PlainTextResponse("the address needs its token", 403, headers=HEADERS)
            try:
                response = answer(show(request))
            except (IndexError, CaseError) as err:
                return responses.PlainTextResponse(printable_text(str(err)) or "not there", 404, headers=HEADERS)
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return response

        return respond

    def line_of(request: Any) -> int:
        text = request.query_params.get("line", "1")
        return max(1, int(text)) if text.isdigit() and len(text) < 10 else 1

    routes = [
        routing.Route("/", guarded(lambda request: pages.show_index(request.query_params.get("q", "")))),
        routing.Route("/case/{key}", guarded(lambda request: pages.show_case(request.path_params["key"]))),
        routing.Route(
            "/case/{key}/log/{at:int}",
            guarded(
                lambda request: pages.show_log(request.path_params["key"], request.path_params["at"], line_of(request))
            ),
        ),
    ]
    return applications.Starlette(routes=routes)


def page_policy() -> str:
    """Return the policy of served pages: their own style and script, a search form, and nothing else."""
    style, script = policy_hash(read_asset("style.css")), policy_hash(read_asset("page.js"))
    return (
        f"default-src 'none'; img-src data:; style-src '{style}'; script-src '{script}'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    )
