"""Running the explorer: a socket, the address to open, and uvicorn behind it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from typing import Any, final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from localw2._validation import check_count, check_flag
from localw2.apps.explorer import guard

MOST_CONNECTIONS = 500


@final
class ImpatientProtocol(H11Protocol):
    """A connection that is cut if no whole request arrives for a while, or if there are too many of them.

    uvicorn itself waits for ever for the second half of a header, and answers connections beyond its
    ``limit_concurrency`` with a 503 without closing those that hold it up.
    """

    last: Any = None  # the request that was current at the last check

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start to check it now and then."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self.loop.call_later(guard.SLOWEST, self.check)

    def check(self) -> None:
        """Cut the connection if nothing was asked or answered since the last check."""
        if self not in self.connections:
            return
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.last is self.cycle:
            self.transport.abort()
            return
        self.last = self.cycle
        self.loop.call_later(guard.SLOWEST, self.check)


def run(
    app: ASGIApp, host: str, port: int, token: str | None, open_browser: bool, tell: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C: see ``localw2.apps.explorer.serve``; ``tell`` is called with the address."""
    check_flag(open_browser, "open_browser")
    listener = listen(host, port)
    url = make_url(host, listener.getsockname()[1], token)
    # uvicorn shuts down in order on Ctrl-C, then raises it again. It may come once the address is known.
    with listener, contextlib.suppress(KeyboardInterrupt):
        tell(url)
        if open_browser:  # the socket listens already: the browser waits until the server answers
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        uvicorn.Server(make_config(app)).run(sockets=[listener])


def make_config(app: ASGIApp) -> uvicorn.Config:
    """How the server runs: without a log of requests, which would show tokens and what strangers send."""
    quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False}
    return uvicorn.Config(app, http=ImpatientProtocol, ws="none", timeout_graceful_shutdown=3, **quiet)


def choose_token(host: str, token: str | None) -> str | None:
    """The given token, or a new one if other machines can reach the server.

    >>> choose_token("127.0.0.1", None), len(choose_token("0.0.0.0", None))
    (None, 32)
    """
    return secrets.token_urlsafe(24) if token is None and not guard.is_loopback(host) else token


def list_hosts(host: str) -> tuple[str, ...]:
    """The names under which a server on this address may be reached.

    >>> list_hosts("127.0.0.1")
    ('localhost', '127.0.0.1', '::1')
    >>> list_hosts("192.168.0.7")[-1]
    '192.168.0.7'
    """
    if host in ("0.0.0.0", "::"):
        return (*guard.LOOPBACK, guard.ANY_ADDRESS, socket.gethostname(), socket.getfqdn())
    return guard.LOOPBACK if host.lower() in guard.LOOPBACK else (*guard.LOOPBACK, host)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on host and port (0 takes a free one)."""
    port = check_count(port, "port", 0, 65535)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Otherwise the end of an answer waits 40 ms until the client has acknowledged its beginning.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}. Choose another port, or "
            "port=0 to take a free one."
        ) from None


def make_url(host: str, port: int, token: str | None) -> str:
    """The address to open in a browser.

    >>> make_url("::1", 8000, None), make_url("0.0.0.0", 80, "abcdefgh")
    ('http://[::1]:8000/', 'http://127.0.0.1:80/?token=abcdefgh')
    """
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + ("" if token is None else f"?token={token}")
