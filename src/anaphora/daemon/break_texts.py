"""The text around changes that broke the cache of recent calls, for pages of administrators.

It is in memory only, and only while the operator has switched it on (`ui: {show_text: true}`);
switching it off drops all of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import msgspec

from .values import AppCall, AppReply

#: Breaks that are kept: the latest.
MOST_TEXTS = 2_000


class BreakText(msgspec.Struct, frozen=True):
    """Where a prompt changed."""

    field: str
    position: int | None
    excerpts: tuple[str, str]


class BreakTexts:
    """By the request ids of the calls. For any thread."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, BreakText] = OrderedDict()
        self._lock = threading.Lock()
        self._allowed = False

    @property
    def allowed(self) -> bool:
        return self._allowed

    def allow(self, allowed: bool) -> None:
        with self._lock:
            self._allowed = allowed
            if not allowed:
                self._texts.clear()

    def add(self, call: AppCall, reply: AppReply) -> None:
        verdict = reply.verdict
        if not self._allowed or verdict is None or not verdict.broke:
            return
        change = verdict.change
        if change is None:
            return
        with self._lock:
            if self._allowed:
                text = BreakText(change.path, change.character, change.excerpts)
                self._texts[call.request_id] = text
                if len(self._texts) > MOST_TEXTS:
                    self._texts.popitem(last=False)

    def find(self, request_id: str) -> BreakText | None:
        with self._lock:
            return self._texts.get(request_id)
