"""Running the explorer: a socket, the address to open, and the server behind it."""

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
from uvicorn.protocols.http.h11_impl import H11Protocol

from localw2._validation import check_count, check_flag
from localw2.apps.explorer.guard import ANY_ADDRESS, LOOPBACK, SLOWEST, App, is_loopback

MOST_CONNECTIONS = 500


@final
class Impatient(H11Protocol):
    """A connection that is cut when it asks nothing whole for a while, or is one of too many.

    Otherwise a client that sends half a header holds it for ever, and a thousand of them hold the server.
    """

    asked: Any = None  # the last request, when it was looked at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to look at it now and then."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self.loop.call_later(SLOWEST, self.look)

    def look(self) -> None:
        """Cut it if nothing was asked or answered since the last look."""
        idle = self.cycle is None or self.cycle.response_complete
        if self not in self.connections:
            return
        if idle and self.asked is self.cycle:
            self.transport.abort()
            return
        self.asked = self.cycle
        self.loop.call_later(SLOWEST, self.look)


@final
class _Server(uvicorn.Server):
    """A server that tells when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self.ready.set()


def run(
    app: App, host: str, port: int, token: str | None, open_browser: bool, tell: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C: see ``localw2.apps.explorer.serve``; ``tell`` is told the address."""
    check_flag(open_browser, "open_browser")
    listener = listen(host, port)
    server = _Server(configured(app))
    url = address(host, listener.getsockname()[1], token)
    # uvicorn ends in order on Ctrl-C, then hands it on. It may come as soon as the address is told.
    with listener, contextlib.suppress(KeyboardInterrupt):
        tell(url)
        if open_browser:
            threading.Thread(target=_show, args=(server.ready, url), daemon=True).start()
        server.run(sockets=[listener])


def configured(app: App) -> uvicorn.Config:
    """How the server runs: with no log of requests, in which tokens would stand and strangers could write."""
    quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False}
    return uvicorn.Config(app, http=Impatient, ws="none", timeout_graceful_shutdown=3, **quiet)


def needed_token(host: str, token: str | None) -> str | None:
    """The token given, or a new one where more than this machine can reach the server.

    >>> needed_token("127.0.0.1", None), len(needed_token("0.0.0.0", None))
    (None, 32)
    """
    return secrets.token_urlsafe(24) if token is None and not is_loopback(host) else token


def _show(ready: threading.Event, url: str) -> None:
    if ready.wait(30):
        webbrowser.open(url)


def hosts_of(host: str) -> tuple[str, ...]:
    """The names by which a server on this address may be called.

    >>> hosts_of("127.0.0.1")
    ('localhost', '127.0.0.1', '::1')
    >>> hosts_of("192.168.0.7")[-1]
    '192.168.0.7'
    """
    if is_loopback(host):
        return LOOPBACK if host.lower() in LOOPBACK else (*LOOPBACK, host)
    if host in ("0.0.0.0", "::"):
        return (*LOOPBACK, ANY_ADDRESS, socket.gethostname(), socket.getfqdn())
    return (*LOOPBACK, host)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on host and port (0: any free one)."""
    port = check_count(port, "port", 0, 65535)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Or the end of an answer waits 40 ms for the client's word on its beginning.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}. Give another port, or "
            "port=0 for any free one."
        ) from None


def address(host: str, port: int, token: str | None) -> str:
    """What to open in a browser.

    >>> address("::1", 8000, None), address("0.0.0.0", 80, "abcdefgh")
    ('http://[::1]:8000/', 'http://127.0.0.1:80/?token=abcdefgh')
    """
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + ("" if token is None else f"?token={token}")
