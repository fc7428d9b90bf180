"""What is known of recent calls, for `llm.explain`."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from .values import AppCall, AppReply

#: Calls that are kept: of one app, and of all.
_MOST_OF_APP, _MOST_APPS = 256, 64


class Explanations:
    """The last calls of each app. Bounded."""

    def __init__(self) -> None:
        self._apps: OrderedDict[str, OrderedDict[str, AppReply]] = OrderedDict()

    def add(self, call: AppCall, reply: AppReply) -> None:
        calls = self._apps.get(call.app.id)
        if calls is None:
            calls = self._apps[call.app.id] = OrderedDict()
            if len(self._apps) > _MOST_APPS:
                self._apps.popitem(last=False)
        self._apps.move_to_end(call.app.id)
        # Without the reply: only figures are kept.
        kept = msgspec.structs.replace(reply, body=None, reply=None)
        calls[call.request_id] = kept
        if len(calls) > _MOST_OF_APP:
            calls.popitem(last=False)

    def find(self, app: str, request_id: str) -> dict[str, Any] | None:
        calls = self._apps.get(app)
        reply = None if calls is None else calls.get(request_id)
        if reply is None:
            return None
        verdict, usage = reply.verdict, reply.usage
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
            "verdict": None if verdict is None else _verdict(reply),
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
        "lost_usd": None if verdict.cost_usd is None else str(verdict.cost_usd),
        "saved_usd": None if verdict.saved is None else str(verdict.saved),
    }
