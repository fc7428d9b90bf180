"""The control routes of a running emulator: the journal, the clock, and the forms of its pages."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from anaphora.errors import InvalidRequest
from anaphora.wire.reading import DECODE_ERRORS

from .engine import Engine
from .exchange import JSON, whole_number

#: The root of the control routes.
CONTROL = "/_emulator"
#: Paths that a link on another page may open.
PAGES = ("/", CONTROL)
#: Paths that are no pages.
ROUTES = frozenset(("/", *(f"{CONTROL}/{name}" for name in ("requests", "reset", "clock"))))
#: Of responses in JSON.
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class ClockChange(msgspec.Struct, forbid_unknown_fields=True):
    """Moves the virtual clock by `advance` seconds, or to `set`, in seconds since 1970."""

    advance: float | None = None
    set: float | None = None


def is_control(path: str) -> bool:
    return path in PAGES or path.startswith(CONTROL + "/")


def control_routes(engine: Engine) -> Starlette:
    def now() -> float:
        return time.time() + engine.offset

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

    async def clock_form(request: Request) -> Response:
        _advance(engine, parse_qs((await request.body()).decode("latin-1")))
        return RedirectResponse(CONTROL, 303)

    async def reset_form(_: Request) -> Response:
        engine.reset()
        return RedirectResponse(CONTROL, 303)

    return Starlette(
        routes=[
            Route("/", RedirectResponse(CONTROL)),
            Route(f"{CONTROL}/requests", requests),
            Route(f"{CONTROL}/reset", reset, methods=["POST"]),
            Route(f"{CONTROL}/clock", clock, methods=["GET", "POST"]),
            Route(f"{CONTROL}/forms/clock", clock_form, methods=["POST"]),
            Route(f"{CONTROL}/forms/reset", reset_form, methods=["POST"]),
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


def _advance(engine: Engine, form: dict[str, list[str]]) -> None:
    seconds = whole_number(form.get("advance", [""])[-1], "advance")
    engine.set_offset(engine.offset + seconds, time.time())


async def _invalid(_: Request, problem: Exception) -> Response:
    return _json({"error": str(problem)}, 400)


async def _unknown(request: Request, problem: Exception) -> Response:
    """A path or method that has no route."""
    assert isinstance(problem, HTTPException)
    reason = f"no route for {request.method} {request.url.path}"
    return _json({"error": reason}, problem.status_code, problem.headers)


def _json(value: Any, status: int = 200, headers: Any = None) -> Response:
    body = msgspec.json.encode(value)
    headers = {**_HEADERS, **(headers or {})}
    return Response(body, status_code=status, media_type=JSON, headers=headers)
