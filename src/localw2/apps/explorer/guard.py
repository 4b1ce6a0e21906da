"""Who may ask: the Host, the Origin and the token of a request are checked before anything else sees it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Sequence
from typing import final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
SLOWEST = 30.0  # seconds that a request may take to arrive
# In a list of hosts: any numeric address. DNS rebinding needs a name.
ANY_ADDRESS = "any address"

HEADERS = {
    # Plotly sets styles on its elements, which no list of files can allow; scripts are our own files only.
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
class Guard:
    """ASGI middleware that admits a request only if it comes from an allowed place and arrives in time.

    A web page elsewhere can make a browser send requests to this server: through a name of its own for our
    address (so Starlette checks the Host), or from a form or a script (so a request that is not a GET must
    come from our page or from no page at all). The token, if there is one, must be in the address
    (``?token=``), in a header (``Authorization: Bearer``), or in the cookie that the page gets in return.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], token: str | None) -> None:
        self.app, self.token = app, token
        self.any_address = ANY_ADDRESS in hosts
        names = [f"[{host}]" if ":" in host and host[0] != "[" else host for host in hosts]
        self.known_hosts = TrustedHostMiddleware(self._admit, names, www_redirect=False)
        # Browsers share cookies between the ports of a machine, so each token has a cookie of its own.
        self.cookie = "localw2-" + hashlib.sha256((token or "").encode()).hexdigest()[:12]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, refuse, or pass on."""
        if scope["type"] != "http":  # no route takes a websocket
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
                if message["status"] in (400, 401, 403, 408, 413):  # the body may still be on its way
                    headers["connection"] = "close"
            await send(message)

        host = re.sub(r":\d+$", "", Headers(scope=scope).get("host", ""))
        admit = self._admit if self.any_address and is_address(host.strip("[]")) else self.known_hosts
        await admit(scope, receive, send_with_headers)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if request.method not in ("GET", "HEAD", "OPTIONS") and _is_foreign(request.headers):
            refusal = JSONResponse({"detail": "pages of other origins may not send requests here"}, 403)
            await refusal(scope, receive, send)
            return
        in_address = any(map(self._matches, request.query_params.getlist("token")))
        if self.token is not None and not in_address and not self._carries_token(request):
            text = "this explorer needs a token: open the address that was printed when it started"
            refusal = JSONResponse({"detail": text}, 401, {"www-authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + SLOWEST

        async def receive_in_time() -> Message:
            try:
                async with asyncio.timeout_at(deadline):
                    return await receive()
            except TimeoutError:
                raise HTTPException(408, "the request took too long to arrive") from None

        async def send_with_cookie(message: Message) -> None:
            if in_address and message["type"] == "http.response.start":
                cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        await self.app(scope, receive_in_time, send_with_cookie)

    def _carries_token(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        by_header = kind.lower() == "bearer" and self._matches(given.strip())
        return by_header or self._matches(request.cookies.get(self.cookie, ""))

    def _matches(self, given: str) -> bool:
        expected = (self.token or "").encode()
        return self.token is not None and hmac.compare_digest(given.encode("utf-8", "replace"), expected)


def _is_foreign(headers: Headers) -> bool:
    """Whether a browser says that a page of another origin sends this; programs say nothing."""
    host = headers.get("host", "").lower()
    origin = headers.get("origin", f"http://{host}").lower()
    return origin not in (f"http://{host}", f"https://{host}") or headers.get(
        "sec-fetch-site", "none"
    ) not in ("same-origin", "none")


def is_address(name: str) -> bool:
    """Whether a host is a numeric address.

    >>> is_address("192.168.0.7"), is_address("::1"), is_address("localhost")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine only.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    return host.lower() == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
