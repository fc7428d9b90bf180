"""Gemini's `cachedContents`: beginnings of prompts that are held under a name until they expire."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Forbidden, RequestRejected

#: What is held when nobody says how long, in seconds.
_USUAL = 3600.0
_MOST = 10_000
_FROZEN = ("systemInstruction", "tools", "toolConfig", "contents")
#: Stands behind what is held while that is counted; a request puts its own contents there.
_ANYTHING = b'{"role":"user","parts":[{"text":"."}]}'
_SECONDS = re.compile(r"(\d+(?:\.\d{1,9})?)s\Z")
_PAGE = 50


class Content(msgspec.Struct, kw_only=True, eq=False):
    """One resource."""

    name: str
    model: str
    """Without `models/`."""
    fields: dict[str, bytes]
    """What it froze, as it came."""
    chunks: int
    tokens: int
    created: float
    updated: float
    expires: float
    display: str | None = None

    def told(self) -> dict[str, Any]:
        named = {} if self.display is None else {"displayName": self.display}
        return {
            "name": self.name,
            "model": f"models/{self.model}",
            **named,
            "createTime": _date(self.created),
            "updateTime": _date(self.updated),
            "expireTime": _date(self.expires),
            "usageMetadata": {"totalTokenCount": self.tokens},
        }


class Contents:
    """The resources of every workspace."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Content] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, workspace: str, content: Content) -> None:
        while len(self._held) >= _MOST:
            del self._held[next(iter(self._held))]
        self._held[workspace, _id(content.name)] = content

    def get(self, workspace: str, name: str, at: float) -> Content:
        """The resource of that name. One that is gone and one that never was are told alike."""
        found = self._held.get((workspace, _id(name)))
        if found is not None and found.expires <= at:
            del self._held[workspace, _id(name)]
            found = None
        if found is None:
            reason = f"no cached content {_id(name)}, or no permission to see it"
            raise Forbidden(reason, status=403, code="PERMISSION_DENIED")
        return found

    def delete(self, workspace: str, name: str, at: float) -> Content:
        found = self.get(workspace, name, at)
        del self._held[workspace, _id(name)]
        return found

    def listed(self, workspace: str, query: Mapping[str, str], at: float) -> bytes:
        own = [c for (owner, _), c in self._held.items() if owner == workspace and c.expires > at]
        start, size = _number(query, "pageToken", 0), _number(query, "pageSize", _PAGE)
        page = own[start : start + max(1, size)]
        told: dict[str, Any] = {"cachedContents": [content.told() for content in page]}
        if start + len(page) < len(own):
            told["nextPageToken"] = str(start + len(page))
        return dumps(told)


def frozen(body: Mapping[str, msgspec.Raw]) -> dict[str, bytes]:
    """What of a request to create one is held."""
    camel = {_camel(name): bytes(raw) for name, raw in body.items()}
    return {name: camel[name] for name in _FROZEN if name in camel}


def counted_body(fields: Mapping[str, bytes]) -> bytes:
    """What is held as a request of its own, with one part behind it."""
    return _body(fields, [_ANYTHING], {})


def merged(fields: Mapping[str, bytes], body: Mapping[str, msgspec.Raw]) -> bytes:
    """The prompt that a request means: what is held, and what it says behind that."""
    rest = {_camel(name): raw for name, raw in body.items()}
    own = rest.pop("contents", msgspec.Raw(b"[]"))
    rest.pop("cachedContent", None)
    return _body(fields, _elements(bytes(own)), {n: bytes(raw) for n, raw in rest.items()})


def expiry(body: Mapping[str, msgspec.Raw], at: float) -> float | None:
    """When it ends; None where the request does not say."""
    camel = {
        _camel(name): msgspec.json.decode(raw)
        for name, raw in body.items()
        if _camel(name) in ("ttl", "expireTime")
    }
    if "ttl" in camel:
        found = _SECONDS.match(camel["ttl"]) if isinstance(camel["ttl"], str) else None
        if found is None or float(found[1]) <= 0:
            raise RequestRejected("ttl is seconds like 300s", status=400, param="ttl")
        return at + float(found[1])
    if "expireTime" in camel:
        try:
            ends = datetime.datetime.fromisoformat(camel["expireTime"]).timestamp()
        except (ValueError, TypeError):
            reason = "expireTime is a date like 2026-11-14T09:30:00Z"
            raise RequestRejected(reason, status=400, param="expireTime") from None
        if ends <= at:
            raise RequestRejected("expireTime is over", status=400, param="expireTime")
        return ends
    return None


def usual_expiry(at: float) -> float:
    return at + _USUAL


def _body(fields: Mapping[str, bytes], contents: list[bytes], rest: dict[str, bytes]) -> bytes:
    whole = {name: raw for name, raw in fields.items() if name != "contents"} | rest
    before = _elements(fields.get("contents", b"[]"))
    whole["contents"] = b"[" + b",".join([*before, *contents]) + b"]"
    return b"{" + b",".join(dumps(name) + b":" + raw for name, raw in whole.items()) + b"}"


def _elements(raw: bytes) -> list[bytes]:
    try:
        if raw[:1] == b"{":
            return [raw]
        return list(map(bytes, msgspec.json.decode(raw, type=list[msgspec.Raw])))
    except msgspec.DecodeError as problem:
        raise RequestRejected(str(problem), status=400, param="contents") from None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _id(name: str) -> str:
    return name.rpartition("/")[2]


def _number(query: Mapping[str, str], name: str, usual: int) -> int:
    said = query.get(name) or str(usual)
    if not said.isdigit():
        raise RequestRejected(f"{name} is a whole number", status=400, param=name)
    return int(said)


def _date(at: float) -> str:
    moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
