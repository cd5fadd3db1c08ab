"""The server over HTTP: on loopback only, with a token, for known hosts and no web page."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = "127.0.0.1"


class TokenGate:
    """Lets requests through that carry the token; all others end here."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if not secrets.compare_digest(headers.get(b"authorization", b""), self._expected):
                await PlainTextResponse("the token is missing or wrong\n", 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def serve_http(server: MCPServer[Any], *, port: int, token: str, announce: Callable[[str], None]) -> None:
    """Serve until interrupted; `announce` is told the address once it is known."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen()  # before the address is announced: who connects at once waits, and is not refused
        bound = listener.getsockname()[1]
        hosts = [f"{name}:{bound}" for name in (LOOPBACK, "localhost")]
        security = TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[])
        app = server.streamable_http_app(transport_security=security, host=LOOPBACK)
        announce(f"http://{LOOPBACK}:{bound}/mcp")
        config = uvicorn.Config(TokenGate(app, token), log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listener])
