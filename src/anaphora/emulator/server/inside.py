"""A look inside: what was asked, the clock, and the page that shows it."""

from __future__ import annotations

import pkgutil
import time
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from anaphora.emulator.core.engine import Engine

INSIDE = "/_emulator"
#: The page runs nothing but its own script, and asks nobody but its own server.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)


class Moved(msgspec.Struct, forbid_unknown_fields=True):
    """A move of the virtual clock: by so many seconds, or to a time in seconds since 1970."""

    advance: float | None = None
    set: float | None = None


def inside(engine: Engine) -> Starlette:
    async def page(request: Request) -> Response:  # noqa: ARG001
        html = pkgutil.get_data(__package__, "page.html")
        headers = {"content-security-policy": _POLICY}
        return Response(html, media_type="text/html; charset=utf-8", headers=headers)

    async def requests(request: Request) -> Response:
        last = request.query_params.get("last")
        if last is not None and not last.isdigit():
            return _wrong("last: a whole number of requests")
        told = engine.journal.told(None if last is None else int(last))
        return _json({"now": time.time() + engine.offset, "requests": told})

    async def reset(request: Request) -> Response:
        if _is_foreign(request):
            return _wrong("only pages of this server may do that", 403)
        engine.reset()
        return _json({"reset": True})

    async def clock(request: Request) -> Response:
        if request.method == "POST":
            if _is_foreign(request):
                return _wrong("only pages of this server may do that", 403)
            try:
                moved = msgspec.json.decode(await request.body(), type=Moved)
            except msgspec.DecodeError as problem:
                return _wrong(str(problem))
            if (moved.advance is None) == (moved.set is None):
                return _wrong("either `advance` or `set`")
            if moved.advance is not None:
                engine.offset += moved.advance
            elif moved.set is not None:
                engine.offset = moved.set - time.time()
        return _json({"now": time.time() + engine.offset, "offset": engine.offset})

    async def home(request: Request) -> Response:  # noqa: ARG001
        return RedirectResponse(INSIDE)

    return Starlette(
        routes=[
            Route("/", home),
            Route(INSIDE, page),
            Route(f"{INSIDE}/requests", requests),
            Route(f"{INSIDE}/reset", reset, methods=["POST"]),
            Route(f"{INSIDE}/clock", clock, methods=["GET", "POST"]),
        ]
    )


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _wrong(reason: str, status: int = 400) -> Response:
    body = msgspec.json.encode({"error": reason})
    return Response(body, status_code=status, media_type="application/json")


def _is_foreign(request: Request) -> bool:
    """A browser says which page asks; programs say nothing."""
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("//")[2] != request.headers.get("host")
