"""Requests that a provider rejects.

A check is a function that raises the provider's error for a request. Only what a source
says is rejected is rejected: the provider notes, the official SDKs' types and docstrings, or the
service's own error as users quote it (named beside the check). Providers that merely speak a wire
are held to what the catalog knows of their models, and to nothing else.
"""

from __future__ import annotations

import functools
import pkgutil
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from anaphora import errors
from anaphora import wire as wires
from anaphora.catalog import Feature, Overflow, Profile, overflow_of
from anaphora.emulator.billing import ModelFacts
from anaphora.emulator.exchange import EmulatorRequest, decode_object
from anaphora.errors import Upstream
from anaphora.prompt import Call, Params
from anaphora.rendered import Rendered
from anaphora.tokens import Counts, for_model

Object: TypeAlias = dict[str, Any]
SAMPLING = ("temperature", "top_p", "top_k")

_FIELDS = tomllib.loads((pkgutil.get_data(__name__, "fields.toml") or b"").decode())
_decode = msgspec.json.Decoder().decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class CheckedRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A request as the checks read it. Values of `body` may have any type."""

    http: EmulatorRequest
    facts: ModelFacts
    body: Object
    """The decoded fields; the messages stay raw."""
    raw_messages: list[msgspec.Raw]
    structured: list[tuple[int, Object]]
    """The messages that are more than a plain text, with their indexes. No check objects to a
    plain one by itself, so most messages are never decoded."""
    tokens: int
    """The tokens of the prompt."""
    counts: bool
    """The request only counts tokens."""

    @functools.cached_property
    def messages(self) -> list[tuple[int, Object]]:
        """All messages, for the checks of their order."""
        return objects([_decode(raw) for raw in self.raw_messages])

    @property
    def profile(self) -> Profile:
        return self.facts.profile


Check: TypeAlias = Callable[[CheckedRequest], None]


class WireChecks(msgspec.Struct, frozen=True, kw_only=True):
    """The checks of one wire."""

    messages_field: str
    decode_plain: Callable[[msgspec.Raw], object]
    """Decodes a message that is in order by itself; `DecodeError` for any other."""
    checks: tuple[Check, ...]
    """Those of the wire's own provider, in its order."""
    provider_checks: tuple[tuple[str, Check], ...] = ()
    """Those of other providers, with their names."""
    unreadable: str = "The request body is not valid JSON"
    unreadable_code: str | None = None


def check(
    checks: WireChecks,
    http: EmulatorRequest,
    facts: ModelFacts,
    *,
    call: Call | None = None,
    rendered: Rendered | None = None,
    tokens: int | None = None,
    counts: bool = False,
    decode_tools: Callable[[bytes], Any] = _decode,
) -> None:
    """Raises the error for a request that the provider rejects.

    `call` and `rendered` are the parsed request; without them only its bytes are checked. Without
    `tokens` the lowest estimate decides whether the prompt is too long.
    """
    try:
        body, messages = _decode_body(checks.messages_field, http, counts, decode_tools)
        structured = _structured(messages, checks.decode_plain)
    except (msgspec.DecodeError, UnicodeDecodeError, Upstream):
        raise rejected(checks.unreadable, code=checks.unreadable_code) from None
    if tokens is None and rendered is not None:
        counted = Counts(for_model(rendered, facts.profile))
        tokens, _ = counted.bounds(facts.profile.token_error.value)
    request = CheckedRequest(
        http=http,
        facts=facts,
        body=body,
        raw_messages=messages,
        structured=structured,
        tokens=tokens or 0,
        counts=counts,
    )
    home = facts.provider == wires.PROVIDERS[facts.wire]
    others = (step for provider, step in checks.provider_checks if provider == facts.provider)
    for step in checks.checks if home else (too_long, *others):
        step(request)
    if call is not None and not home:
        _rejected_features(request, call.params)


def _decode_body(
    messages_field: str, http: EmulatorRequest, counts: bool, decode_tools: Callable[[bytes], Any]
) -> tuple[Object, list[msgspec.Raw]]:
    """The decoded fields of a body, and its messages, which stay raw."""
    if not http.body:
        raise msgspec.DecodeError
    fields = http.fields
    if counts and "generateContentRequest" in fields:
        # Gemini's countTokens may hold a whole request.
        fields = decode_object(fields["generateContentRequest"])
    body: Object = {}
    messages: list[msgspec.Raw] = []
    for name, raw in fields.items():
        if name == messages_field and bytes(raw)[:1] == b"[":
            body[name] = messages = _decode_list(raw)
        else:
            body[name] = decode_tools(bytes(raw)) if name == "tools" else _decode(raw)
    return body, messages


def _structured(
    messages: list[msgspec.Raw], decode_plain: Callable[[msgspec.Raw], object]
) -> list[tuple[int, Object]]:
    structured: list[tuple[int, Object]] = []
    for index, raw in enumerate(messages):
        try:
            decode_plain(raw)
        except msgspec.DecodeError:
            message = _decode(raw)
            if isinstance(message, dict):
                structured.append((index, message))
    return structured


def _rejected_features(request: CheckedRequest, params: Params) -> None:
    """What the catalog says that a model rejects, whichever provider serves it."""
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
    """The objects of a list with their indexes; empty where it is no list."""
    if not isinstance(value, list):
        return []
    return [(index, item) for index, item in enumerate(value) if isinstance(item, dict)]


def text(value: Any) -> str:
    """A name or an id; any other value as text, so that it compares."""
    return value if isinstance(value, str) else str(value)


def unknown_field(found: Mapping[str, Any], known: frozenset[str]) -> str | None:
    """The first field that is not in `known`."""
    if found.keys() <= known:
        return None
    return next(key for key in found if key not in known)


def known_fields(wire: str, name: str) -> frozenset[str]:
    """A list of field names in `fields.toml`."""
    return frozenset(_FIELDS[wire][name].split())


def fields_by_type(wire: str, name: str) -> dict[str, frozenset[str]]:
    """A table of such lists."""
    return {kind: frozenset(names.split()) for kind, names in _FIELDS[wire][name].items()}


def overflow_row(provider: str, wire: str) -> Overflow:
    """How a provider rejects too long a prompt; without a source, as its wire's own provider."""
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
