"""The queue of calls whose answer has gone: what is left to do for them is done for many at a time,
which costs much less than for each by itself.

It is bounded: when it is full, the call that fills it waits until all are done. A stopping daemon
empties it; the audit rows that a killed one had not written are made from the ledger at its next
start (decision 0028). `Explanations` and `CallTexts` keep what is asked about these calls later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any

import msgspec
from msgspec.structs import replace

from anaphora.bounded import BoundedMap
from anaphora.client.failures import log
from anaphora.daemon.values import app_of
from anaphora.errors import AnaphoraError

from .call import AppCall, AppReply

#: Maximum number of waiting calls. Each keeps its prompt until then.
MOST_WAITING = 64
#: Seconds for which calls are collected.
_COLLECT = 0.02
#: Maximum number of kept calls: per app, and in total.
_MOST_OF_APP, _MOST_APPS = 256, 64


class AnsweredCall:
    """A call, and the context in which it was made: watchers find its trace there."""

    __slots__ = ("call", "context")

    def __init__(self, call: AppCall, context: Context) -> None:
        self.call = call
        self.context = context


class AnsweredCalls:
    """Used from one event loop."""

    def __init__(self, finish: Callable[[Sequence[AnsweredCall]], None]) -> None:
        """`finish` does what is left to do for some calls, in their order."""
        self._finish = finish
        self._waiting: list[AnsweredCall] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: AppCall) -> None:
        self._waiting.append(AnsweredCall(call, copy_context()))
        if len(self._waiting) >= MOST_WAITING:
            self.finish()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_COLLECT, self.finish)

    def finish(self) -> None:
        """Does it for all waiting calls. Never raises."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        if waiting:
            try:
                self._finish(waiting)
            except Exception as problem:
                log(logging.ERROR, "a step behind an answer failed", problem)


# ── Calls that can be explained ───────────────────────────────────────────────────────────────────


class Explanations:
    """The last calls of each app that this node made, for `llm.explain`."""

    def __init__(self) -> None:
        self._apps = BoundedMap[str, BoundedMap[tuple[str, str], AppReply]](_MOST_APPS)
        """By app; the calls by owner and request id."""
        self.before_find: Callable[[], None] = lambda: None
        """Adds the calls that are still to be added."""

    def add(self, call: AppCall, reply: AppReply) -> None:
        app, owner = call.app.id, call.app.owner
        calls = self._apps.use(app)
        if calls is None:
            calls = self._apps[app] = BoundedMap(_MOST_OF_APP)
        # Without the reply: only figures are kept.
        kept = replace(reply, body=None, reply=None)
        calls[owner, call.request_id] = kept

    def find(self, owner: str, request_id: str) -> dict[str, Any] | None:
        self.before_find()
        calls = self._apps.get(app_of(owner))
        reply = None if calls is None else calls.get((owner, request_id))
        return None if reply is None else _explained(request_id, reply)


def _explained(request_id: str, reply: AppReply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "request_id": request_id,
        "provider": reply.provider,
        "model": reply.model,
        "usage": {
            "uncached": usage.uncached,
            "read": usage.read,
            "written": dict(usage.written) if usage.written is not None else None,
            "output": usage.output,
        },
        "cost_usd": None if reply.cost_usd is None else str(reply.cost_usd),
        "verdict": None if reply.verdict is None else _verdict(reply),
        "notices": [
            {"code": notice.code, "message": notice.message, "path": notice.path}
            for notice in reply.notices
        ],
    }


def _verdict(reply: AppReply) -> dict[str, Any]:
    verdict = reply.verdict
    assert verdict is not None
    change = verdict.change
    return {
        "result": verdict.result,
        "sentence": str(verdict),
        "causes": [cause.kind for cause in verdict.causes],
        "change": None
        if change is None
        else {"kind": change.kind, "label": change.label, "section": change.section},
        "cached_before": verdict.left,
        "predicted": verdict.predicted,
        "read": verdict.billed,
        "lost": verdict.lost,
        "remedy": None if verdict.remedy is None else verdict.remedy.fields(),
        "lost_usd": None if verdict.cost_usd is None else str(verdict.cost_usd),
        "saved_usd": None if verdict.saved is None else str(verdict.saved),
    }


#: Maximum number of kept breaks; the oldest are dropped.
MOST_TEXTS = 2_000


class BreakText(msgspec.Struct, frozen=True):
    """The place and text of a change of a prompt."""

    field: str
    position: int | None
    excerpts: tuple[str, str]


class CallTexts:
    """Texts for the dashboard, by request id: the messages of errors, and the text around changes
    that broke the cache. That text and the messages of providers, which may quote a prompt, are
    kept only if the operator has set `ui: {show_text: true}`. Thread-safe."""

    def __init__(self, message: Callable[[AnaphoraError, bool], str]) -> None:
        """`message` gets an error, and whether the text of a provider may be kept."""
        self._message = message
        self._texts = BoundedMap[str, BreakText](MOST_TEXTS)
        self._errors = BoundedMap[str, str](MOST_TEXTS)
        self._lock = threading.Lock()
        self._allowed = False

    @property
    def allowed(self) -> bool:
        return self._allowed

    def allow(self, allowed: bool) -> None:
        with self._lock:
            if not allowed and self._allowed:
                self._texts.clear()
                self._errors.clear()
            self._allowed = allowed

    def add(self, call: AppCall, reply: AppReply) -> None:
        verdict = reply.verdict
        if not self._allowed or verdict is None or not verdict.broke:
            return
        change = verdict.change
        if change is None:
            return
        text = BreakText(change.path, change.character, change.excerpts)
        with self._lock:
            if self._allowed:
                self._texts[call.request_id] = text

    def find(self, request_id: str) -> BreakText | None:
        with self._lock:
            return self._texts.get(request_id)

    def add_error(self, request_id: str, error: AnaphoraError) -> None:
        """The message that the app gets."""
        text = self._message(error, self._allowed)
        if text and request_id:
            with self._lock:
                self._errors[request_id] = text

    def error(self, request_id: str) -> str:
        with self._lock:
            return self._errors.get(request_id, "")
