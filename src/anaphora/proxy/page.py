"""The live page of a watched program. Its address has a random token, and without that there is
nothing: other users of the machine can reach the port too."""

from __future__ import annotations

import secrets
import time
from typing import Any
from urllib.parse import parse_qs

import msgspec

from anaphora.serving.calls_page import HTML_HEADERS, PAGE_HEADERS, calls_page

from .judged_call import JudgedCall
from .judging import Judge
from .summary import summarise

_ROOT = "/_watch"
#: Calls that the page shows, unless it asks for less.
_MOST_SHOWN = 200


class WatchPage:
    """The pages of a proxy (`relay.Pages`)."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.path = f"{_ROOT}/{secrets.token_urlsafe(24)}"
        """The page's address, with the token."""
        self._page = calls_page(
            title="Watch",
            root=self.path,
            detail="Conversation",
            empty="No call yet. Calls appear here when they have ended.",
        )

    def __repr__(self) -> str:
        return "<WatchPage>"

    def serves(self, path: str) -> bool:
        return path == _ROOT or path.startswith(f"{_ROOT}/")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002
        status, headers, body = self._response(scope["method"], scope["path"], scope)
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        pairs.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": b"" if _is_head(scope) else body})

    def _response(self, method: str, path: str, scope: Any) -> tuple[int, dict[str, str], bytes]:
        plain = {**PAGE_HEADERS, "content-type": "text/plain; charset=utf-8"}
        if not secrets.compare_digest(path[: len(self.path)].encode(), self.path.encode()):
            return 404, plain, b"not found: open the address that `anaphora watch` has printed\n"
        if method not in ("GET", "HEAD"):
            return 405, {**plain, "allow": "GET, HEAD"}, b"method not allowed\n"
        rest = path[len(self.path) :]
        if rest in ("", "/"):
            return 200, HTML_HEADERS, self._page
        if rest != "/requests":
            return 404, plain, b"not found\n"
        body = msgspec.json.encode(self._calls(_last(scope["query_string"])))
        return 200, {**PAGE_HEADERS, "content-type": "application/json"}, body

    def _calls(self, last: int) -> dict[str, Any]:
        calls = self._judge.calls
        newest = [_shown(call) for call in reversed(calls[-last:])] if last else []
        return {
            "now": time.time(),
            "requests": newest,
            "headline": summarise(self._judge).headline if calls else "",
        }


def _is_head(scope: Any) -> bool:
    return bool(scope["method"] == "HEAD")


def _last(query: bytes) -> int:
    text = parse_qs(query.decode("latin-1")).get("last", [""])[-1]
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else _MOST_SHOWN
    return min(number, _MOST_SHOWN)


def _shown(call: JudgedCall) -> dict[str, Any]:
    """A call as the page shows it."""
    fields: dict[str, Any] = {
        "number": call.number,
        "at": call.at,
        "model": call.model,
        "path": f"{call.method} {call.path}",
        "provider": call.provider,
        "status": call.status,
        "conversation": call.conversation,
        "turn": call.turn,
        "side_call": call.side_call,
        "cost_usd": None if call.cost_usd is None else str(call.cost_usd),
        "broke": call.broke,
        "no_bill": call.verdict is not None and call.usage is None,
        "notices": [notice.message for notice in call.notices],
    }
    usage = call.input_usage
    if usage is not None:
        fields["read"], fields["uncached"] = usage.read or 0, usage.uncached or 0
        fields["written"] = usage.written or {}
        fields["output"] = None if call.usage is None else call.usage.output
    if call.kind in ("error", "failed"):
        fields["error"] = call.reason
    else:
        fields["verdict"] = {"sentence": call.sentence}
    if call.change is not None:
        before, after = call.change.excerpts
        fields["excerpts"] = [("was", "-", before), ("now", "+", after)]
    return fields
