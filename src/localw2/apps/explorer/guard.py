"""Who may ask: the Host, the Origin, the token and the size of a request, all looked at before it is read."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, final
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MOST_BYTES = 1 << 20  # of a body: 500 rows of a hundred numbers
SLOWEST = 30.0  # seconds that a body may take to arrive
# In a list of hosts: any numeric address. Rebinding a name to this machine needs a name.
ANY_ADDRESS = "any address"

HEADERS = {
    # Charts set styles on their elements, which no list of files can allow; scripts are files of ours alone.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@final
class Refusal(Exception):
    """An answer that is given instead of the one asked for."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


@final
class Guard:
    """ASGI middleware that lets a request through only if it comes from where it may and is not too large.

    A web page elsewhere can make a browser ask this server: by another name for its address (so the Host must
    be known) or by a form or script of its own (so a request that is not a GET must come from the page
    itself, or from no page at all). With a token, it must be in the address (``?token=``), in a header
    (``Authorization: Bearer``), or in the cookie that the page then gets.
    """

    def __init__(self, app: App, hosts: Sequence[str], token: str | None) -> None:
        self.app = app
        self.hosts = frozenset(host.lower().strip("[]") for host in hosts)
        self.token = token
        # A browser shares cookies between the ports of a machine: each token has its own.
        self.cookie = "localw2-" + hashlib.sha256((token or "").encode()).hexdigest()[:12]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, refuse, or hand on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            headers = _headers(scope)
            self._check_host(headers)
            safe = scope["method"] in ("GET", "HEAD", "OPTIONS")
            if not safe:
                _check_origin(headers)
            by_address = self._check_token(scope, headers)
            if not safe:
                receive = await _bounded(headers, receive)
        except Refusal as refusal:
            await _refuse(refusal, send)
            return
        except ConnectionError:  # gone before all was said
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = {**HEADERS}
                if by_address:
                    extra["set-cookie"] = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                message["headers"] = _extended(message.get("headers", []), extra)
            await send(message)

        await self.app(scope, receive, send_on)

    def _check_host(self, headers: dict[str, list[str]]) -> None:
        hosts = headers.get("host", [])
        name = _host_name(hosts[0]) if len(hosts) == 1 else ""
        known = name in self.hosts or (ANY_ADDRESS in self.hosts and _is_address(name))
        if not known:
            raise Refusal(400, "the Host header is not a name of this server")

    def _check_token(self, scope: Scope, headers: dict[str, list[str]]) -> bool:
        """Raise without the token; whether it was in the address."""
        if self.token is None:
            return False
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if any(self._is_token(value) for value in query.get("token", [])):
            return True
        for value in headers.get("authorization", []):
            kind, _, given = value.partition(" ")
            if kind.lower() == "bearer" and self._is_token(given.strip()):
                return False
        # By hand: the standard library stops at the first cookie, of anyone, that is not as it should be.
        for pair in "; ".join(headers.get("cookie", [])).split(";"):
            name, _, given = pair.strip().partition("=")
            if name == self.cookie and self._is_token(given):
                return False
        raise Refusal(401, "this explorer asks for its token: open the address that was printed at its start")

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), (self.token or "").encode())


def _headers(scope: Scope) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return headers


def _host_name(host: str) -> str:
    """The name in "name:port", lower case; empty where it is none.

    >>> _host_name("LocalHost:8000"), _host_name("[::1]:80"), _host_name("a b")
    ('localhost', '::1', '')
    """
    try:
        parts = urlsplit(f"//{host}")
        if (
            parts.netloc != host
            or parts.username is not None
            or parts.port == 0
            or any(c.isspace() for c in host)
        ):
            return ""
        return (parts.hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine alone.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _check_origin(headers: dict[str, list[str]]) -> None:
    """Raise where a browser says that another page asks; a program says nothing."""
    host = headers["host"][0].lower()
    for origin in headers.get("origin", []):
        try:
            parts = urlsplit(origin.lower())
        except ValueError:
            raise Refusal(403, "the Origin header is not an address") from None
        if parts.scheme not in ("http", "https") or parts.netloc != host:
            raise Refusal(403, "a page from elsewhere may not ask this server")
    if any(site not in ("same-origin", "none") for site in headers.get("sec-fetch-site", [])):
        raise Refusal(403, "a page from elsewhere may not ask this server")


async def _bounded(headers: dict[str, list[str]], receive: Receive) -> Receive:
    """The body, read up to its limit, to be received again by whom it is for."""
    for length in headers.get("content-length", []):
        if not (length.isascii() and length.isdigit()):
            raise Refusal(400, "the Content-Length header is not a number")
        if len(length) > 12 or int(length) > MOST_BYTES:
            raise Refusal(413, f"the request is larger than {MOST_BYTES} bytes; ask for fewer rows at a time")
    try:
        body = await asyncio.wait_for(_read(receive), SLOWEST)
    except TimeoutError:
        raise Refusal(408, "the request took too long to arrive") from None
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MOST_BYTES:
            raise Refusal(413, f"the request is larger than {MOST_BYTES} bytes; ask for fewer rows at a time")
    return body


async def _refuse(refusal: Refusal, send: Send) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    start = {
        "type": "http.response.start",
        "status": refusal.status,
        "headers": _extended([], headers | HEADERS),
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _extended(headers: Any, more: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers with some more, and with no storing unless they say otherwise."""
    found = list(headers)
    if not any(name.lower() == b"cache-control" for name, _ in found):
        more = {**more, "cache-control": "no-store"}
    return found + [(name.encode(), value.encode("latin-1")) for name, value in more.items()]
