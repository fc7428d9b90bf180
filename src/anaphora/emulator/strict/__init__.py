"""Requests that a provider rejects.

A check is a function that raises the provider's error for a request. Each check has a source: the
provider notes, the official SDKs' types and docstrings, or the service's own error as users quote
it (named beside the check). Other providers on a wire are only checked against the catalog's facts
about their models.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from anaphora import errors
from anaphora import wire as wires
from anaphora.catalog import Feature, Profile
from anaphora.catalog.load import Overflow, overflow_of
from anaphora.catalog.request_errors import MediaKind, media_types
from anaphora.emulator.exchange import EmulatorRequest, nested
from anaphora.emulator.journal import ModelFacts
from anaphora.errors import Upstream
from anaphora.prompt import Params
from anaphora.wire.tables import BlockType, request_table
from anaphora.wire.walking import VALUES, Walk, WalkedBlock

Object: TypeAlias = dict[str, Any]
SAMPLING = ("temperature", "top_p", "top_k")


class CheckedRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A request as the checks read it. Values of `body` may have any type."""

    http: EmulatorRequest
    facts: ModelFacts
    body: Object
    messages: list[tuple[int, Object]]
    """The messages that are objects, with their indexes."""
    tokens: int
    counts: bool
    """The request only counts tokens."""
    profile: Profile
    walk: Walk
    """Reads the blocks of its messages."""

    @functools.cached_property
    def blocks(self) -> dict[int, list[WalkedBlock]]:
        """The blocks that are objects, by the index of their message. Messages that are only text
        are left out: nothing in them can be wrong."""
        walk, found = self.walk, dict[int, list[WalkedBlock]]()
        in_parts = walk.table.message.inside == ("parts",)
        for index, message in self.messages:
            if _NESTED.isdisjoint(map(type, message.values())):
                continue
            if in_parts and _is_text(message.get("parts")):
                continue
            inner = walk.inner(walk.message(message, f"{walk.table.messages}[{index}]"))
            found[index] = [block for block in inner if isinstance(block.raw, dict)]
        return found


_WALKS = {name: Walk(request_table(name), VALUES) for name in wires.WIRES}
_NESTED, _TEXT = frozenset((dict, list)), {"text"}
_decode_object = msgspec.json.Decoder(Object).decode


def _is_text(parts: Any) -> bool:
    """Whether these are parts of Gemini's contents that have nothing but a text."""
    if type(parts) is not list:
        return False
    return not [part for part in parts if type(part) is not dict or part.keys() != _TEXT]


Check: TypeAlias = Callable[[CheckedRequest], None]


class WireChecks(msgspec.Struct, frozen=True, kw_only=True):
    messages_field: str
    checks: tuple[Check, ...]
    """Those of the wire's own provider, in its order."""
    provider_checks: tuple[Check, ...] = ()
    unreadable: str = "The request body is not valid JSON"
    unreadable_code: str | None = None
    by_profile: bool = False
    """Also reject what the catalog says that the model rejects."""
    hosts: tuple[str, ...] = ()
    """Other providers that reject what the wire's own does."""


def check(
    checks: WireChecks,
    http: EmulatorRequest,
    facts: ModelFacts,
    *,
    params: Params | None = None,
    tokens: int = 0,
    counts: bool = False,
) -> CheckedRequest:
    """The request as it was read; raises the error for one that the provider rejects.

    `params` and `tokens` are of the parsed request; without them only its bytes are checked.
    """
    home = facts.provider == wires.PROVIDERS[facts.wire] or facts.provider in checks.hosts
    try:
        body = _decode_object(http.body)
        if counts and "generateContentRequest" in body:
            # Gemini's countTokens may hold a whole request.
            body = msgspec.convert(body["generateContentRequest"], Object)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise rejected(checks.unreadable, code=checks.unreadable_code) from None
    request = CheckedRequest(
        http=http,
        facts=facts,
        profile=facts.profile,
        walk=_WALKS[facts.wire],
        body=body,
        messages=objects(body.get(checks.messages_field)),
        tokens=tokens,
        counts=counts,
    )
    for step in checks.checks if home else (too_long, *checks.provider_checks):
        step(request)
    if params is not None and (not home or checks.by_profile):
        _rejected_features(request, params)
    return request


def _rejected_features(request: CheckedRequest, params: Params) -> None:
    """Features that a model rejects by the catalog, whichever provider serves it."""
    if not request.profile.refusals.verified:
        return
    choice, reasoning = params.tool_choice, params.reasoning
    forced = choice is not None and choice.mode in ("required", "tool")
    used: list[tuple[Feature, str, bool]] = [
        *(("sampling", name, getattr(params, name) is not None) for name in SAMPLING),
        *(("altered_sampling", n, getattr(params, n) not in (None, 1)) for n in SAMPLING[:2]),
        ("stop", "stop", bool(params.stop)),
        ("forced_tools", "tool_choice", forced),
        ("disabled_thinking", "thinking", reasoning is not None and reasoning.mode == "disabled"),
        ("budgeted_thinking", "thinking", bool(reasoning and reasoning.budget_tokens)),
    ]
    for feature, param, is_used in used:
        if is_used and request.profile.refuses(feature):
            raise rejected(f"{param} is not supported with this model", param=param)


# ── Helpers of the checks ────────────────────────────────────────────────────────────────────────


def rejected(message: str, *, param: str | None = None, code: str | None = None) -> Upstream:
    return errors.RequestRejected(message, status=400, code=code, param=param)


def objects(value: Any) -> list[tuple[int, Object]]:
    """The objects of a list with their indexes; empty for other values."""
    if not isinstance(value, list):
        return []
    return [pair for pair in enumerate(value) if isinstance(pair[1], dict)]


def text(value: Any) -> str:
    """A name or an id; other values are converted to text."""
    return value if isinstance(value, str) else str(value)


FieldRow: TypeAlias = tuple[Any, frozenset[str] | None, str]
"""An object, its known fields, and its path."""


def check_fields(
    rows: Iterable[FieldRow],
    error: Callable[[str, str], Upstream],
    spelling: Callable[[str], str] = str,
) -> None:
    """Raises `error(path, field)` for the first field of an object that is not known.

    Values that are not objects, and objects without a list of fields, are not checked.
    """
    for found, known, path in rows:
        if known is None or not isinstance(found, dict) or found.keys() <= known:
            continue
        field = next((name for name in found if spelling(name) not in known), None)
        if field is not None:
            raise error(path, field)


def members_by_type(rows: Mapping[str, BlockType]) -> dict[str, frozenset[str]]:
    """The members of blocks, by the types whose members are known."""
    return {kind: row.members for kind, row in rows.items() if row.members is not None}


def overflow_row(provider: str, wire: str) -> Overflow:
    """How a provider rejects a prompt that is too long; without a source, like its wire's own
    provider."""
    row = overflow_of(provider, wire) or overflow_of(wires.PROVIDERS[wire], wire)
    assert row is not None
    return row


def too_long(
    request: CheckedRequest, *, param: str | None = None, limit: int | None = None
) -> None:
    """Rejects a prompt that exceeds `limit`, or the model's context window."""
    window = request.profile.context_tokens
    if limit is None and window is not None and window.verified:
        limit = max(window.published)  # the largest that any source states
    if limit is not None and request.tokens > limit:
        row = overflow_row(request.facts.provider, request.facts.wire)
        message, code = row.write(request.tokens, limit), row.code or "invalid_request_error"
        raise errors.ContextOverflow(message, status=400, code=code, param=param)


# ── Inline media whose type a provider does not accept ───────────────────────────────────────────

FoundMedium: TypeAlias = tuple[str, MediaKind, Any]
"""The path of a medium, its kind, and its type in the request."""


def check_media(find: Callable[[CheckedRequest], Iterator[FoundMedium]]) -> Callable[..., None]:
    """A check of all media that `find` finds."""

    def check(request: CheckedRequest) -> None:
        provider, wire = request.facts.provider, request.facts.wire
        for path, kind, given in find(request):
            row = media_types(provider, wire, kind)
            if row is not None and isinstance(given, str) and not row.accepts(given):
                raise rejected(row.write(path, given[:100]), param=path, code=row.code)

    return check


def chat_media(request: CheckedRequest) -> Iterator[FoundMedium]:
    for parts in request.blocks.values():
        for part in parts:
            url, data = nested(part.raw, "image_url", "url"), nested(part.raw, "file", "file_data")
            yield f"{part.path}.image_url.url", "image", _of_data_url(url)
            yield f"{part.path}.file.file_data", "file", _of_data_url(data)


def responses_media(request: CheckedRequest) -> Iterator[FoundMedium]:
    for parts in request.blocks.values():
        for part in parts:
            yield f"{part.path}.image_url", "image", _of_data_url(part.raw.get("image_url"))
            yield f"{part.path}.file_data", "file", _of_data_url(part.raw.get("file_data"))


def anthropic_media(request: CheckedRequest) -> Iterator[FoundMedium]:
    """Also inside tool results."""
    for blocks in request.blocks.values():
        for block in blocks:
            for each in (*request.walk.all_blocks(block), block):
                source = each.members.get("source")
                if each.row.medium is not None and nested(source, "type") == "base64":
                    kind: MediaKind = "image" if each.row.medium == "images" else "file"
                    path = f"{dotted(each.path)}.source.base64.media_type"
                    yield path, kind, nested(source, "media_type")


def gemini_media(request: CheckedRequest) -> Iterator[FoundMedium]:
    for parts in request.blocks.values():
        for part in parts:
            data = part.members.get("inlineData")
            given = nested(data, "mimeType") or nested(data, "mime_type")
            kind: MediaKind = "image" if str(given).startswith("image/") else "file"
            yield f"{part.path}.inline_data.mime_type", kind, given


def dotted(path: str) -> str:
    """A path as Anthropic's errors write it: `messages.0.content.1`."""
    return path.replace("[", ".").replace("]", "")


def _of_data_url(url: Any) -> str | None:
    """The type that a data URL states; None for other values."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return None
    return url[5 : url.find(",")].partition(";")[0] or "text/plain"
