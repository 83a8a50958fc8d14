"""What every request goes through first: sizes are held, and pages may load nothing from elsewhere.

Bodies are small, so that they are read whole before anything else looks at them.
"""

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onepass.demo.limits import BODY, DRAIN, PATIENCE

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Refused(Exception):
    """A status, and the word that goes with it."""

    def __init__(self, status: int, word: str):
        self.status, self.word = status, word


class Guard:
    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            body = await _read(scope, receive)
        except Refused as refused:
            answer = JSONResponse({"error": refused.word}, refused.status)
            await answer(scope, receive, send_with_headers)
            return
        await self.app(scope, _again(body, receive), send_with_headers)


async def _read(scope: Scope, receive: Receive) -> bytes:
    headers = Headers(scope=scope)
    declared = headers.get("content-length", "0")
    if not declared.isdecimal():
        raise Refused(400, "content-length: expected a number")
    too_large = int(declared[:20]) > BODY
    body, read, more = b"", 0, True
    try:
        async with asyncio.timeout(PATIENCE):
            while more and read <= DRAIN:
                message = await receive()
                more = message["type"] == "http.request" and message.get("more_body", False)
                part = message.get("body", b"")
                read += len(part)
                too_large = too_large or read > BODY
                body = b"" if too_large else body + part
    except TimeoutError as error:
        if not too_large:
            raise Refused(408, f"body: expected within {PATIENCE:.0f} seconds") from error
    if too_large:
        raise Refused(413, f"body: expected at most {BODY} bytes")
    is_json = headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    # no other site's form can send this without asking first
    if scope["method"] == "POST" and not is_json:
        raise Refused(415, "content-type: expected application/json")
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """What was read, once more; then whatever comes."""
    left = [body]

    async def from_memory() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return from_memory
