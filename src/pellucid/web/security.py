"""Who may ask, and how much: every request passes here before anything of ours sees it.

The server listens on loopback. A page of another site can still make a browser send requests to it, under our own
address (a name that resolves to 127.0.0.1) or its own; so the Host header must name this server, and Origin and
Sec-Fetch-Site must say that the request comes from this server's own page. Another address than loopback needs a token.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.errors import InputError
from pellucid.web.refusal import answer

COOKIE = "pellucid-token"
SHORTEST_TOKEN = 16
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class Limits:
    """What one server allows: bytes of a request's body, seconds to send it, requests a second, and at once."""

    body: int = 512 * 1024
    body_seconds: float = 10.0
    per_second: float = 100.0
    burst: int = 400
    waiting: int = 16
    seconds: float = 120.0


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and self.token is None:
            raise InputError(
                f"--host {self.host} lets other machines in: give --token too, a secret that they must know, or leave "
                "--host out to stay on this machine"
            )
        if self.token is not None and (len(self.token) < SHORTEST_TOKEN or not _is_plain(self.token)):
            raise InputError(f"a token is {SHORTEST_TOKEN} or more letters, digits, - or _; this one is not")

    def names(self, host_header: str) -> bool:
        """Whether a Host header names this server. A foreign name that resolves to us does not."""
        name, port = _split_host(host_header)
        if port != self.port:
            return False
        if is_loopback(self.host):
            return is_loopback(name)
        # A rebound name cannot be an address: other machines may use any address of ours.
        return name == self.host or is_loopback(name) or _is_address(name)


def is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


class Gate:
    """The middleware."""

    def __init__(self, app: ASGIApp, address: Address, limits: Limits) -> None:
        self.app, self.address, self.limits = app, address, limits
        self.bucket = Bucket(limits.per_second, limits.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket
            await send({"type": "websocket.close", "code": 1008})
            return
        sealed = _sealed(send, scope["path"])
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, sealed)
            return
        await self.app(scope, _limited(receive, self.limits), sealed)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self.address.names(headers.get("host", "")):
            return answer(421, "host", "this server answers under its own address only: use the one it printed")
        if not _same_origin(headers, scope):
            return answer(403, "origin", "only the page that this server serves may ask it")
        if self.address.token is not None and not self._knows_token(headers):
            return self._enter(scope)
        if not self.bucket.take():
            return answer(429, "rate", "too many requests in a second: wait a moment and ask again")
        length = _whole(headers.get("content-length", "0"))
        if length is None or length > self.limits.body:
            return answer(413, "large", f"a request may hold {self.limits.body} bytes", "text", most=self.limits.body)
        return None

    def _knows_token(self, headers: Headers) -> bool:
        assert self.address.token is not None
        try:
            cookie = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            cookie = SimpleCookie()
        given = [headers.get("authorization", "").removeprefix("Bearer ")]
        given += [cookie[COOKIE].value] if COOKIE in cookie else []
        return any(secrets.compare_digest(one.encode(), self.address.token.encode()) for one in given)

    def _enter(self, scope: Scope) -> Response:
        """The first visit carries the token in the address, and leaves with a cookie."""
        token = self.address.token
        assert token is not None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and secrets.compare_digest(given.encode(), token.encode()):
            response = RedirectResponse("/", 303)
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return response
        return answer(401, "token", "this server asks for its token: open the address that it printed")


class Bucket:
    """So many at once, refilled at a steady rate."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second, self.burst, self.clock = per_second, burst, clock
        self.left, self.seen = float(burst), clock()

    def take(self) -> bool:
        now = self.clock()
        self.left = min(self.burst, self.left + (now - self.seen) * self.per_second)
        self.seen = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


def _same_origin(headers: Headers, scope: Scope) -> bool:
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin != f"{scope['scheme']}://{headers.get('host', '')}":
        return False
    # A link from elsewhere may open the page; it may not ask the interface.
    opens_page = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
    return site in (None, "same-origin", "none") or (opens_page and headers.get("sec-fetch-mode") == "navigate")


def _sealed(send: Send, path: str) -> Send:
    async def sealed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("Cache-Control", "no-store" if path.startswith("/api/") else "no-cache")
        await send(message)

    return sealed


def _limited(receive: Receive, limits: Limits) -> Receive:
    """The body in time and within its size, whatever its length was said to be; after it, waiting is free."""
    seen, over = 0, False

    async def limited() -> Message:
        nonlocal seen, over
        if over:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), limits.body_seconds)
        except TimeoutError:
            return {"type": "http.disconnect"}
        seen += len(message.get("body", b""))
        over = not message.get("more_body", False)
        return {"type": "http.disconnect"} if seen > limits.body else message

    return limited


def _split_host(header: str) -> tuple[str, int]:
    """The name and the port of a Host header; a port of -1 where it is none."""
    name, _, port = header.rpartition(":") if not header.endswith("]") and ":" in header else (header, "", "80")
    return name.removeprefix("[").removesuffix("]").lower(), -1 if (number := _whole(port)) is None else number


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_plain(token: str) -> bool:
    return token.isascii() and token.replace("-", "").replace("_", "").isalnum()
