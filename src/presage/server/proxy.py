"""Ports of jobs in a browser: an HTTP and WebSocket proxy on a port, and so an origin, of its own.

What a job serves is not to be trusted: a page of it must reach neither the dashboard nor another
job. So it is served apart from the dashboard, with a cookie that is good for one port of one job;
neither tokens of the API nor cookies of ours go to the job, and what a job sets stays on its own
path. There is no way from here to anything but the declared ports of a job that runs, through its
own guardian, who also tells the token that the job's server expects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from presage.control.attaching import Attachment
from presage.control.forwarding import KINDS, PREFIX, TICKET, PortDoor, PortPath
from presage.control.people.tickets import COOKIE_S
from presage.control.site.service import Service
from presage.model.errors import BadRequest, PresageError
from presage.server.attach import close_quietly, until_one_ends
from presage.server.problems import problem, refusal_of

__all__ = ["ProxyGate"]

_COOKIE = "presage_port"
_OURS = "presage_"
"""Cookies whose names begin so are never a job's."""
_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers of one connection (RFC 9110, 7.6.1); those that `connection` names are added."""
_NOT_ON = frozenset(("authorization", "cookie", "host", "origin", "referer", "forwarded"))
_NOT_BACK = frozenset(
    {
        *("alt-svc", "clear-site-data", "date", "location", "server"),
        *("service-worker-allowed", "set-cookie", "strict-transport-security"),
    }
)
"""What a job must not say for the whole origin, or is said anew."""
_LARGEST_MESSAGE = 32 << 20
_NO_CACHE = {"Cache-Control": "no-store"}


class ProxyGate:
    """Answers what comes in at the proxy's port; everything else passes."""

    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        self._app, self._service = app, service
        self._door = PortDoor(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        server = scope.get("server") or ("", 0)
        if scope["type"] == "lifespan" or server[1] != self._service.settings.proxy_port:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._websocket(WebSocket(scope, receive, send))

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            target = _target(scope)
            if ticket := request.query_params.get(TICKET):
                answer: ASGIApp = self._exchange(request, target, ticket)
            else:
                run = await self._reach(request, target)
                answer = await self._pass_on(request, target, run)
        except PresageError as error:
            answer = refusal_of(error)
        await answer(scope, receive, send)

    # -- who ------------------------------------------------------------------------------------

    def _exchange(self, request: Request, target: PortPath, ticket: str) -> ASGIApp:
        """A cookie for a ticket, and the address without it."""
        cookie = self._door.cookie(target, ticket)
        rest = [pair for pair in parse_qsl(request.url.query) if pair[0] != TICKET]
        query = f"?{urlencode(rest)}" if rest else ""
        answer = RedirectResponse(f"{request.url.path}{query}", 303, _NO_CACHE)
        answer.headers["Referrer-Policy"] = "no-referrer"
        for kind in KINDS:
            answer.set_cookie(
                _COOKIE,
                cookie,
                max_age=int(COOKIE_S),
                path=f"{PREFIX}{target.job}/{kind}/{target.port}/",
                httponly=True,
                samesite="lax",
                secure=request.url.scheme == "https"
                or self._service.settings.proxy_url.startswith("https:"),
            )
        return answer

    async def _reach(self, connection: HTTPConnection, target: PortPath) -> Attachment:
        """The run, for whoever has the cookie."""
        cookie = connection.cookies.get(_COOKIE, "")
        row, user = await asyncio.to_thread(self._door.enter, target, cookie)
        return await self._door.connect(target, row, user)

    # -- HTTP -----------------------------------------------------------------------------------

    async def _pass_on(self, request: Request, target: PortPath, run: Attachment) -> ASGIApp:
        import httpcore

        headers = _onwards(request, target, run)
        sends = {"content-length", "transfer-encoding"} & set(request.headers.keys())
        if "transfer-encoding" in request.headers:
            headers.append((b"Transfer-Encoding", b"chunked"))
        query = f"?{request.url.query}" if request.url.query else ""
        url = httpcore.URL(
            scheme=b"http",
            host=b"127.0.0.1",
            port=target.port,
            target=f"{target.path}{query}".encode("latin-1"),
        )
        stream = await _TunnelStream.open(run)
        connection = httpcore.AsyncHTTP11Connection(
            origin=url.origin,
            stream=stream,  # type: ignore[arg-type]  # has all that is used
            keepalive_expiry=None,
        )
        asked = httpcore.Request(
            request.method, url, headers=headers, content=request.stream() if sends else None
        )
        try:
            answer = await connection.handle_async_request(asked)
        except Exception as error:
            await stream.aclose()
            if not isinstance(error, httpcore.NetworkError | httpcore.ProtocolError):
                raise
            return problem(502, "bad_gateway", f"what listens there does not speak HTTP: {error}")

        async def body() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.stream:  # type: ignore[union-attr]  # async here
                    yield chunk
            finally:
                await stream.aclose()

        response = StreamingResponse(body(), answer.status)
        response.raw_headers = _back(answer.headers, target)
        return response

    # -- WebSocket ------------------------------------------------------------------------------

    async def _websocket(self, ws: WebSocket) -> None:
        try:
            target = _target(ws.scope)
            if ws.headers.get("origin") is None:
                raise BadRequest("a WebSocket here comes from a page of the job")
            run = await self._reach(ws, target)
        except PresageError as error:
            answer = refusal_of(error)
            await ws.send_denial_response(answer)
            return
        try:
            await self._relay(ws, target, run)
        finally:
            run.link.close()

    async def _relay(self, ws: WebSocket, target: PortPath, run: Attachment) -> None:
        from websockets.asyncio.client import unix_connect
        from websockets.exceptions import WebSocketException

        query = f"?{ws.url.query}" if ws.url.query else ""
        headers = [(k.decode(), v.decode()) for k, v in _onwards(ws, target, run)]
        kept = [h for h in headers if not h[0].lower().startswith("sec-websocket")]
        try:
            inner = await unix_connect(
                uri=f"ws://127.0.0.1:{target.port}{target.path}{query}",
                sock=run.link,
                additional_headers=[h for h in kept if h[0].lower() not in ("host", "user-agent")],
                subprotocols=ws.scope.get("subprotocols") or None,
                compression=None,
                max_size=_LARGEST_MESSAGE,
                ping_interval=None,
                proxy=None,
            )
        except (OSError, WebSocketException, TimeoutError):
            await ws.send_denial_response(
                problem(502, "bad_gateway", "what listens there refused the WebSocket")
            )
            return
        await ws.accept(subprotocol=inner.subprotocol)
        job, attendance = target.job, self._service.attendance

        async def onwards() -> None:
            while (message := await ws.receive())["type"] == "websocket.receive":
                attendance.used(job)
                data = message.get("text")
                await inner.send(data if data is not None else message["bytes"])

        async def back() -> None:
            async for data in inner:
                await (ws.send_text(data) if isinstance(data, str) else ws.send_bytes(data))

        await until_one_ends(onwards(), back())
        await inner.close()
        await close_quietly(ws, _close_code(inner.close_code))


class _TunnelStream:
    """A connection to a port of a job, as `httpcore` wants it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, run: Attachment) -> _TunnelStream:
        """The stream of an attachment."""
        return cls(*await asyncio.open_unix_connection(sock=run.link))

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Some bytes; none at the end."""
        with suppress(OSError):
            return await self._reader.read(max_bytes)
        return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send bytes."""
        from httpcore import WriteError

        try:
            self._writer.write(buffer)
            await self._writer.drain()
        except OSError as error:
            raise WriteError(str(error)) from None

    async def aclose(self) -> None:
        """Let go; the run hears of it."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def get_extra_info(self, info: str) -> None:
        """Nothing is known of it."""


def _target(scope: Scope) -> PortPath:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return PortPath.parse(raw.decode("latin-1").partition("?")[0])


def _onwards(
    connection: HTTPConnection, target: PortPath, run: Attachment
) -> list[tuple[bytes, bytes]]:
    """The headers that the job's server gets."""
    named = _hop_by_hop(connection.headers.getlist("connection"))
    kept = [
        (name, value)
        for name, value in connection.headers.raw
        if (text := name.decode("latin-1").lower()) not in named
        and text not in _NOT_ON
        and not text.startswith("x-forwarded-")
    ]
    cookies = [f"{k}={v}" for k, v in connection.cookies.items() if not k.startswith(_OURS)]
    if cookies:
        kept.append((b"Cookie", "; ".join(cookies).encode("latin-1", "replace")))
    kept += [
        (b"Host", f"127.0.0.1:{target.port}".encode()),
        (b"Authorization", f"token {run.started.get('token', '')}".encode()),
        (b"X-Forwarded-Prefix", target.prefix.encode()),
        (b"X-Forwarded-Proto", connection.url.scheme.encode()),
    ]
    return kept


def _back(headers: Sequence[tuple[bytes, bytes]], target: PortPath) -> list[tuple[bytes, bytes]]:
    """The headers that the browser gets."""
    given = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    named = _hop_by_hop(value for name, value in given if name == "connection")
    kept = [(name, value) for name, value in given if name not in named | _NOT_BACK]
    for name, value in given:
        if name == "location":
            kept.append((name, _location(value, target)))
        elif name == "set-cookie":
            kept += [("set-cookie", cookie) for cookie in _cookies(value, target)]
    kept.append(("referrer-policy", "same-origin"))
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept]


def _hop_by_hop(connection: Iterable[str]) -> set[str]:
    words = (word.strip().lower() for value in connection for word in value.split(","))
    return {*_HOP, *words} - {"content-length"}


def _location(value: str, target: PortPath) -> str:
    """Where a job's server sends the browser, below our prefix."""
    own = f"http://127.0.0.1:{target.port}"
    path = value.removeprefix(own) if value.startswith((f"{own}/", f"{own}?")) else value
    inside = path == target.prefix or path.startswith(f"{target.prefix}/")
    if path.startswith("/") and not path.startswith("//") and not inside:
        return f"{target.prefix}{path}"
    return path


def _cookies(value: str, target: PortPath) -> list[str]:
    """Cookies of a job's server, for its own path alone."""
    jar: SimpleCookie = SimpleCookie()
    with suppress(CookieError):
        jar.load(value)
    cookies = []
    for name, morsel in jar.items():
        if name.startswith(_OURS):
            continue
        morsel["domain"], morsel["path"] = "", f"{target.prefix}/"
        cookies.append(morsel.OutputString())
    return cookies


def _close_code(code: int | None) -> int:
    """What may be said at the end of a WebSocket; 1000, if it ended another way."""
    return code if code is not None and (code == 1001 or 3000 <= code < 5000) else 1000
