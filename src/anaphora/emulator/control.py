"""The control routes of a running emulator: the page, the journal, the clock."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from anaphora.errors import InvalidRequest
from anaphora.serving.calls_page import HTML_HEADERS, PAGE_HEADERS, calls_page
from anaphora.wire.reading import DECODE_ERRORS

from .engine import Engine
from .exchange import JSON, whole_number

#: The root of the control routes.
CONTROL = "/_emulator"
#: Paths that a link on another page may open.
PAGES = ("/", CONTROL)
_PAGE = calls_page(
    title="Emulator",
    root=CONTROL,
    detail="Markers",
    empty="No call yet. Point a client at this address; any key will do.",
    clock=True,
)


class ClockChange(msgspec.Struct, forbid_unknown_fields=True):
    """Moves the virtual clock by `advance` seconds, or to `set`, in seconds since 1970."""

    advance: float | None = None
    set: float | None = None


def is_control(path: str) -> bool:
    return path in PAGES or path.startswith(CONTROL + "/")


def control_routes(engine: Engine) -> Starlette:
    def now() -> float:
        return time.time() + engine.offset

    async def page(_: Request) -> Response:
        return Response(_PAGE, headers=HTML_HEADERS)

    async def requests(request: Request) -> Response:
        last = request.query_params.get("last")
        entries = engine.journal.entries(None if last is None else whole_number(last, "last"))
        return _json({"now": now(), "requests": entries})

    async def reset(_: Request) -> Response:
        engine.reset()
        return _json({"reset": True})

    async def clock(request: Request) -> Response:
        if request.method == "POST":
            _change_clock(engine, await request.body())
        return _json({"now": now(), "offset": engine.offset})

    return Starlette(
        routes=[
            Route("/", RedirectResponse(CONTROL)),
            Route(CONTROL, page),
            Route(f"{CONTROL}/requests", requests),
            Route(f"{CONTROL}/reset", reset, methods=["POST"]),
            Route(f"{CONTROL}/clock", clock, methods=["GET", "POST"]),
        ],
        exception_handlers={InvalidRequest: _invalid, HTTPException: _unknown},
    )


def _change_clock(engine: Engine, body: bytes) -> None:
    try:
        change = msgspec.json.decode(body, type=ClockChange)
    except DECODE_ERRORS as problem:
        raise InvalidRequest(str(problem)) from None
    if (change.advance is None) == (change.set is None):
        raise InvalidRequest("either `advance` or `set` is required")
    now = time.time()
    if change.advance is not None:
        engine.set_offset(engine.offset + change.advance, now)
    elif change.set is not None:
        engine.set_offset(change.set - now, now)


async def _invalid(_: Request, problem: Exception) -> Response:
    return _json({"error": str(problem)}, 400)


async def _unknown(request: Request, problem: Exception) -> Response:
    """A path or method that has no route."""
    assert isinstance(problem, HTTPException)
    reason = f"no route for {request.method} {request.url.path}"
    return _json({"error": reason}, problem.status_code, problem.headers)


def _json(value: Any, status: int = 200, headers: Any = None) -> Response:
    body = msgspec.json.encode(value)
    headers = {**PAGE_HEADERS, **(headers or {})}
    return Response(body, status_code=status, media_type=JSON, headers=headers)
