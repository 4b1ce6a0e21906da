"""Running the explorer: a socket, the address to open, and the server behind it."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import webbrowser
from typing import Any, final

import uvicorn

from localw2._validation import check_count, check_flag
from localw2.explorer.app import build
from localw2.explorer.guard import ANY_ADDRESS, LOOPBACK, is_loopback


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
    model: Any,
    X: Any,
    y: Any,
    names: dict[str, Any],
    host: str,
    port: int,
    token: str | None,
    history: Any,
    open_browser: bool,
) -> None:
    """Serve until Ctrl-C: see ``localw2.explorer.serve``."""
    check_flag(open_browser, "open_browser")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    app = build(model, X, y, token=token, allowed_hosts=hosts_of(host), history=history, **names)
    listener = listen(host, port)
    # An access log would write tokens down.
    server = _Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
    url = address(host, listener.getsockname()[1], token)
    print(f"Explorer: {url}\nCtrl-C ends it.", flush=True)
    if open_browser:
        threading.Thread(target=_show, args=(server.ready, url), daemon=True).start()
    # uvicorn ends in order on Ctrl-C, then hands it on.
    with listener, contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


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
