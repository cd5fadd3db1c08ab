"""Serves cases on this machine only: a token in the address, the Host header checked, nothing loaded from elsewhere."""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.case import is_case
from trtdx.errors import CaseError, InputError
from trtdx.optional import import_optional
from trtdx.redact import redact_secrets
from trtdx.render.html import page_environment, policy_hash, read_asset, render_html, trusted_assets
from trtdx.render.text import printable_text
from trtdx.ui.log_text import PAGE_LINES, excerpt_log, window_log
from trtdx.ui.read_case import read_case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.host import Host

LOOPBACK = "127.0.0.1"
COOKIE = "trtdx_token"
MOST_CASES = 5000
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def find_cases(host: Host, paths: Sequence[str]) -> list[str]:
    """Return the cases that are named, or that lie in named folders.

    Raises:
        InputError: there is none.
    """
    cases = [case for path in paths for case in _cases_below(host, path)]
    if not cases:
        raise InputError(f"there is no case in {', '.join(paths)}", fix="make one: trtdx diagnose LOG --save CASE")
    return cases[:MOST_CASES]


def _cases_below(host: Host, path: str) -> Iterator[str]:
    if is_case(host, path):
        yield path
    elif host.kind(path) == "directory":
        yield from (str(entry) for entry in sorted(Path(path).iterdir()) if is_case(host, str(entry)))
    elif host.kind(path) == "absent":
        raise InputError(f"{path} does not exist")


def serve_cases(host: Host, paths: Sequence[str], port: int, announce: Callable[[str], None]) -> None:
    """Serve cases until interrupted; `announce` is told the address once it answers.

    Raises:
        InputError: there is no case, or the port is taken.
        MissingExtraError: the web server is not installed.
    """
    import socket

    uvicorn = import_optional("uvicorn", extra="ui", purpose="serve pages")
    token = secrets.token_urlsafe(24)
    pages = CasePages(host, find_cases(host, paths))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except OSError as err:
        raise InputError(f"port {port} cannot be used: {err.strerror or err}", fix="leave --port out") from err
    listener.listen()
    origin = f"{LOOPBACK}:{listener.getsockname()[1]}"
    config = uvicorn.Config(make_app(pages, token, origin), log_level="error", access_log=False, lifespan="off")
    announce(f"http://{origin}/?token={token}")
    uvicorn.Server(config).run(sockets=[listener])


class CasePages:
    """The pages of some cases, each made when it is asked for."""

    def __init__(self, host: Host, cases: Sequence[str]) -> None:
        self._host, self._cases = host, cases

    def show_index(self, query: str) -> str:
        """Return the list of cases whose words hold all that was searched for."""
        words = query.lower().split()
        rows = [row for number in range(len(self._cases)) if (row := self._describe_case(number))]
        rows = [row for row in rows if all(word in row["words"] for word in words)]
        rows.sort(key=lambda row: -row["time"])
        return _render("index.html", rows=rows, query=query)

    def _describe_case(self, number: int) -> dict[str, Any]:
        path = self._cases[number]
        base = {"number": number, "name": printable_text(path), "time": 0.0, "when": "", "severity": ""}
        try:
            view, _ = read_case(self._host, path)
        except CaseError as err:
            return base | {"text": f"cannot be read: {printable_text(err.message)}", "words": path.lower()}
        worst = view.report.worst_severity()
        findings = " ".join(f"{finding.code} {finding.slug} {finding.message}" for finding in view.report.findings)
        return base | {
            "time": view.time,
            "when": datetime.fromtimestamp(view.time).strftime("%Y-%m-%d %H:%M"),
            "severity": worst.value if worst else "",
            "text": printable_text(view.report.summary.text),
            "words": f"{path} {view.report.summary.text} {findings} {view.command}".lower(),
        }

    def show_case(self, number: int) -> str:
        """Return a case's page, each log with a way to all of it."""
        from markupsafe import Markup

        view, case = read_case(self._host, self._cases[number])
        logs = []
        for at, log in enumerate(view.logs):
            link = '<p><a href="{}/log/{}?line={}">{}: the whole log</a></p>'
            first = max(1, log.first_line - PAGE_LINES // 4)
            logs += [excerpt_log(case, log), Markup(link).format(number, at, first, printable_text(log.name))]  # noqa: S704
        return render_html(view.report, subject=view.command or view.name, logs=logs, home="/")

    def show_log(self, number: int, at: int, first: int) -> str:
        """Return some hundred lines of a log."""
        view, case = read_case(self._host, self._cases[number])
        log = view.logs[at]
        lines, has_more = window_log(case, log, first)
        return _render(
            "log.html",
            name=printable_text(redact_secrets(log.name)),
            number=number,
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
        routing.Route("/case/{number:int}", guarded(lambda request: pages.show_case(request.path_params["number"]))),
        routing.Route(
            "/case/{number:int}/log/{at:int}",
            guarded(
                lambda request: pages.show_log(
                    request.path_params["number"], request.path_params["at"], line_of(request)
                )
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
