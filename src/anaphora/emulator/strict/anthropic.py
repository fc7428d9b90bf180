"""What Anthropic rejects. An error begins with the path of the field it is about."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from anaphora import errors
from anaphora.emulator.exchange import nested
from anaphora.errors import Upstream
from anaphora.values import TTL_SECONDS, Ttl
from anaphora.wire.anthropic.fields import TABLE

from . import (
    SAMPLING,
    CheckedRequest,
    FieldRow,
    Object,
    WireChecks,
    anthropic_media,
    check_fields,
    check_media,
    dotted,
    members_by_type,
    objects,
    rejected,
    text,
    too_long,
)

TOP = TABLE.names(beta=False) - frozenset(SAMPLING)
BETA_TOP = TABLE.names(beta=True)
COUNT = TABLE.names(beta=False, counted=True)
BETA_COUNT = TABLE.names(beta=True, counted=True)
MESSAGE = TABLE.message_fields[""]
BETA_MESSAGE = TABLE.message_fields["beta"]
CUSTOM_TOOL = TABLE.tool
BLOCKS = members_by_type(TABLE.blocks)

#: PROVIDERS.md, section 1: a body of at most 32 MB; the larger reading of it.
MAX_BYTES = 32 * 1024 * 1024
#: Sampling is not in the types, but accepted on version 2023-06-01 (PROVIDERS.md, section 0).
_TOP = TOP | frozenset(SAMPLING)
_EXTRA = "Extra inputs are not permitted"
_THINKING = frozenset(("thinking", "redacted_thinking"))
_TOOL_BLOCKS = frozenset(("tool_use", "tool_result"))


def _rejected_at(path: str, reason: str) -> Upstream:
    """`messages.0.content.1: reason`; only the reason without a path."""
    message = f"{path}: {reason}" if path else reason
    return rejected(message, param=path or None, code="invalid_request_error")


def _has_betas(request: CheckedRequest) -> bool:
    return bool(request.http.headers.get("anthropic-beta"))


def _is(block: Object, kind: str) -> bool:
    return block.get("type") == kind


# ── Fields ───────────────────────────────────────────────────────────────────────────────────────


def _required(request: CheckedRequest) -> None:
    """Source: the SDK's `Required` fields; the service's own message on the version header, as many
    clients' tests and pages quote it."""
    if "anthropic-version" not in request.http.headers:
        raise _rejected_at("anthropic-version", "header is required")
    if len(request.http.body) > MAX_BYTES:
        message = "Request exceeds the maximum size"
        raise errors.TooLarge(message, status=413, code="request_too_large")
    for field in ("model", "max_tokens", "messages"):
        if field not in request.body and not (field == "max_tokens" and request.counts):
            raise _rejected_at(field, "Field required")
    if request.body["messages"] == [] and nested(request.body, "thread", "type") != "continue":
        raise _rejected_at("messages", "at least one message is required")


def _unknown(path: str, field: str) -> Upstream:
    return _rejected_at(path + field, _EXTRA)


def _unknown_fields(request: CheckedRequest) -> None:
    top, more = (COUNT, BETA_COUNT) if request.counts else (_TOP, BETA_TOP)
    rows: list[FieldRow] = [(request.body, top | more if _has_betas(request) else top, "")]
    for index, tool in objects(request.body.get("tools")):
        if tool.get("type") in (None, "custom"):
            rows.append((tool, CUSTOM_TOOL, f"tools.{index}.custom."))
    for index, system in objects(request.body.get("system")):
        rows.append((system, BLOCKS["text"], f"system.{index}."))
    check_fields(rows, _unknown)


def _message_fields(request: CheckedRequest) -> None:
    check_fields(_known_fields(request), _unknown)


def _known_fields(request: CheckedRequest) -> Iterator[FieldRow]:
    known = MESSAGE | BETA_MESSAGE if _has_betas(request) else MESSAGE
    for index, message in request.messages:
        if not message.keys() <= known:
            yield message, known, f"messages.{index}."
        for block in request.blocks.get(index, ()):
            kind, path = block.type, dotted(block.path)
            if not isinstance(block.raw.get("type"), str):
                raise _rejected_at(f"{path}.type", "Field required")
            if block.row.members is not None:
                yield block.raw, block.row.members, f"{path}.{kind}."
            elif not block.row.beta:
                reason = "found using 'type' does not match any of the expected tags"
                raise _rejected_at(path, f"Input tag '{kind}' {reason}")


def _limits(request: CheckedRequest) -> None:
    """The range of `max_tokens` and of the thinking budget, with the service's messages."""
    wanted = request.body.get("max_tokens")
    if request.counts:
        return
    if type(wanted) is not int:
        raise _rejected_at("max_tokens", "Input should be a valid integer")
    if wanted < 0:
        raise _rejected_at("max_tokens", "Input should be greater than or equal to 0")
    most = request.profile.output_tokens
    if most is not None and most.verified and wanted > max(most.published):
        excess = f"{wanted} > {max(most.published)}, which is the maximum allowed number of output"
        raise _rejected_at("max_tokens", f"{excess} tokens for {text(request.body['model'])}")
    if nested(request.body, "thinking", "type") != "enabled" or wanted == 0:
        return
    path = "thinking.enabled.budget_tokens"
    budget = nested(request.body, "thinking", "budget_tokens")
    if not isinstance(budget, int):
        raise _rejected_at(path, "Field required")
    if budget < 1024:
        raise _rejected_at(path, "Input should be greater than or equal to 1024")
    if budget >= wanted and not _has_betas(request):  # interleaved thinking counts differently
        raise _rejected_at("", "`max_tokens` must be greater than `thinking.budget_tokens`")


def _prewarm(request: CheckedRequest) -> None:
    """`max_tokens: 0` only fills the cache; PROVIDERS.md lists what it excludes."""
    body = request.body
    excluded = {
        "stream": body.get("stream") is True,
        "thinking": nested(body, "thinking", "type") == "enabled",
        "output_config.format": nested(body, "output_config", "format") is not None,
        "output_format": body.get("output_format") is not None,
        "tool_choice": nested(body, "tool_choice", "type") in ("any", "tool"),
    }
    for field, used in excluded.items():
        if used and body.get("max_tokens") == 0:
            raise _rejected_at(field, "not supported when `max_tokens` is 0")


def _features(request: CheckedRequest) -> None:
    """What the model, or the API version, does not take (the catalog's refusals)."""
    version = request.http.headers.get("anthropic-version")
    refuses = functools.partial(request.profile.refuses, api_version=version)
    body, thinking = request.body, nested(request.body, "thinking", "type")
    forced = nested(body, "tool_choice", "type") in ("any", "tool")
    for field in SAMPLING:
        if body.get(field) is not None and refuses("sampling"):
            raise _rejected_at(field, f"not supported on version {version} of the API")
    if forced and refuses("forced_tools"):
        raise _rejected_at(
            "tool_choice", "tool_choice any and tool are not supported on this model"
        )
    if forced and thinking == "enabled" and refuses("forced_tools_while_thinking"):
        raise _rejected_at("", "Thinking may not be enabled when tool_choice forces tool use.")
    if thinking == "disabled" and refuses("disabled_thinking"):
        raise _rejected_at("thinking", "thinking cannot be disabled on this model")
    if thinking == "enabled" and refuses("budgeted_thinking"):
        raise _rejected_at("thinking", "thinking with a budget is not supported on this model")


def _message_features(request: CheckedRequest) -> None:
    refuses = request.profile.refuses
    version = request.http.headers.get("anthropic-version")
    documents = refuses("assistant_documents", api_version=version)
    citations = refuses("user_text_citations", api_version=version)
    for index, message in request.messages if documents or citations else ():
        role = message.get("role")
        for place, block in objects(message.get("content")):
            path = f"messages.{index}.content.{place}"
            if documents and role == "assistant" and _is(block, "document"):
                raise _rejected_at(path, "document blocks are not supported in assistant messages")
            if citations and role == "user" and _is(block, "text") and block.get("citations"):
                raise _rejected_at(f"{path}.citations", "not supported on text in user messages")


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


def _roles(request: CheckedRequest) -> None:
    """The positions of system messages (PROVIDERS.md, 2026 features). The first message may be the
    assistant's: recorded calls with one were answered."""
    roles = [message.get("role") for _, message in request.messages]
    for index, message in request.messages:
        if message.get("role") not in ("user", "assistant", "system"):
            raise _rejected_at(f"messages.{index}.role", "Input should be 'user' or 'assistant'")
    takes_system = request.profile.mid_conversation_system
    if "system" in roles and takes_system.verified and not any(takes_system.published):
        # anthropics/claude-code#61412
        raise _rejected_at("", "role 'system' is not supported on this model")
    if "thread" in request.body:
        return  # the provider stores the earlier messages
    for index in (index for index, role in enumerate(roles) if role == "system"):
        before = next((other for other in reversed(roles[:index]) if other != "system"), None)
        after = next((other for other in roles[index + 1 :] if other != "system"), "assistant")
        if (before, after) != ("user", "assistant"):
            reason = "must follow a user turn, and precede an assistant turn or end"
            raise _rejected_at(f"messages.{index}", f"a system message {reason}")


def _tool_pairs(request: CheckedRequest) -> None:
    """Every call has its result in the next turn, and every result its call in the one before.

    Consecutive messages of one role are one turn [A]. anthropics/claude-code#2697, #5989;
    decocms/studio#1803.
    """
    kinds = {block.type for blocks in request.blocks.values() for block in blocks}
    if kinds.isdisjoint(_TOOL_BLOCKS):
        return
    calls: dict[str, int] = {}
    turns = itertools.groupby(request.messages, lambda pair: str(pair[1].get("role")))
    for number, (_, messages) in enumerate(turns):
        blocks = [
            (index, place, block)
            for index, message in messages
            for place, block in objects(message.get("content"))
        ]
        results = [each for each in blocks if _is(each[2], "tool_result")]
        ids = {text(block.get("tool_use_id")) for _, _, block in results}
        _without_result({call_id: at for call_id, at in calls.items() if call_id not in ids})
        continued = number == 0 and "thread" in request.body
        for index, place, block in results:
            call_id = block.get("tool_use_id")
            if not continued and text(call_id) not in calls:
                reason = (
                    f"unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each "
                    "`tool_result` block must have a corresponding `tool_use` block in the "
                    "previous message."
                )
                raise _rejected_at(f"messages.{index}.content.{place}", reason)
        calls = {text(block.get("id")): at for at, _, block in blocks if _is(block, "tool_use")}
    _without_result(calls)


def _without_result(calls: dict[str, int]) -> None:
    """Rejects calls, given as ids and the indexes of their messages."""
    if calls:
        reason = (
            "`tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(calls)}. Each `tool_use` block must have a corresponding `tool_result` "
            "block in the next message."
        )
        raise _rejected_at(f"messages.{next(iter(calls.values()))}", reason)


def _thinking(request: CheckedRequest) -> None:
    """Reasoning is signed, and another block follows it: anthropics/claude-code#11514,
    tailcallhq/forgecode#2107; an empty signature: pydantic/pydantic-ai#7597."""
    assistants = {index: each for index, each in request.messages if each["role"] == "assistant"}
    for index, message in assistants.items():
        blocks = objects(message.get("content")) if index in request.blocks else []
        if not blocks:
            continue
        for place, block in blocks:
            if not _is(block, "thinking"):
                continue
            path = f"messages.{index}.content.{place}"
            if "signature" not in block:
                raise _rejected_at(f"{path}.thinking.signature", "Field required")
            if not block["signature"]:
                raise _rejected_at(path, "Invalid `signature` in `thinking` block")
        if _only_white_space([block for _, block in blocks]):
            # Reported with signed reasoning before it: home-assistant/core#175637.
            reason = "text content blocks must contain non-whitespace text"
            raise _rejected_at(f"messages.{index}", reason)
        kind = text(blocks[-1][1].get("type"))
        # Another assistant message after it belongs to the same turn.
        if kind in _THINKING and index + 1 not in assistants:
            reason = f"The final block in an assistant message cannot be `{kind}`."
            raise _rejected_at(f"messages.{index}", reason)


def _only_white_space(blocks: list[Object]) -> bool:
    kinds = {text(block.get("type")) for block in blocks}
    texts = [block.get("text") for block in blocks if _is(block, "text")]
    return (
        bool(texts and kinds & _THINKING)
        and kinds <= _THINKING | {"text"}
        and all(isinstance(each, str) and not each.strip() for each in texts)
    )


def _deferred_tools(request: CheckedRequest) -> None:
    """router-for-me/CLIProxyAPI#4561; one tool is not deferred: Anthropic's page on tool search."""
    tools = [tool for _, tool in objects(request.body.get("tools"))]
    deferred = [tool for tool in tools if tool.get("defer_loading") is True]
    for tool in deferred:
        if tool.get("cache_control") is not None:
            reason = (
                f"Tool '{text(tool.get('name'))}' cannot have both defer_loading=true and "
                "cache_control set. Tools with defer_loading cannot use prompt caching."
            )
            raise _rejected_at("", reason)
    if tools and len(deferred) == len(tools):
        reason = "All tools have defer_loading set. At least one tool must be non-deferred."
        raise _rejected_at("", reason)


# ── Cache markers ────────────────────────────────────────────────────────────────────────────────


def _slots(request: CheckedRequest) -> Iterator[tuple[str, Object, bool]]:
    """Blocks and tools that could carry a marker, in hash order: the path, the block, and whether
    it is inside another one, where the automatic marker has no slot."""
    walk = request.walk
    for section in ("tools", "system"):
        for index, each in objects(request.body.get(section)):
            yield f"{section}[{index}]", each, False
    for blocks in request.blocks.values():
        for block in blocks:
            # Inner blocks are hashed before the block ends.
            for inner in walk.all_blocks(block) if block.row.inside else ():
                if isinstance(inner.raw, dict):
                    yield inner.path, inner.raw, True
            yield block.path, block.raw, False


def _is_empty_text(block: Object) -> bool:
    return _is(block, "text") and not block.get("text")


def _markers(request: CheckedRequest) -> None:
    """The form, number and order of all markers."""
    slots = list(_slots(request))
    marked = [(path, block) for path, block, _ in slots if block.get("cache_control") is not None]
    markers = [(f"{dotted(path)}.cache_control", block["cache_control"]) for path, block in marked]
    if (automatic := request.body.get("cache_control")) is not None:
        markers.append(("cache_control", automatic))  # it follows all others
    for field, marker in markers:  # source: CacheControlEphemeralParam
        if not isinstance(marker, dict):
            raise _rejected_at(field, "Input should be an object")
        if marker.get("type") != "ephemeral":
            raise _rejected_at(f"{field}.type", "Input should be 'ephemeral'")
        if marker.get("ttl") not in (None, *request.facts.rules.ttls.value):
            raise _rejected_at(f"{field}.ttl", "Input should be '5m' or '1h'")
    for path, block in marked:  # askalf/dario#1066
        if _is_empty_text(block):
            reason = "cache_control cannot be set for empty text blocks"
            raise _rejected_at(f"{dotted(path)}.text", reason)
    _too_many(request, len(marked))
    if request.facts.rules.longer_ttl_first.value:
        _ttl_order([(field, _ttl(request, marker)) for field, marker in markers])
    clashes = request.facts.rules.automatic_refused
    if automatic is None or clashes is None:
        return
    able = [
        (path, block.get("cache_control"))
        for path, block, inside in slots
        if not (inside or text(block.get("type")) in _THINKING or _is_empty_text(block))
    ]
    if not able:
        return
    # It takes a slot of its own, unless the block that it lands on is marked for as long already
    # (PROVIDERS.md, caching).
    path, own = able[-1]
    if own is None and "slots_full" in clashes.value:
        _too_many(request, len(marked) + 1)
    if own and "other_ttl" in clashes.value and _ttl(request, own) != _ttl(request, automatic):
        raise _rejected_at("cache_control", f"{dotted(path)} is marked with another ttl")


def _too_many(request: CheckedRequest, count: int) -> None:
    """anthropics/claude-code#8901, with the number found."""
    most = request.facts.rules.slots.value
    if count > most:
        reason = f"A maximum of {most} blocks with cache_control may be provided. Found {count}."
        raise _rejected_at("", reason)


def _ttl_order(marked: list[tuple[str, Ttl]]) -> None:
    """A longer lifetime may not follow a shorter one: cnighswonger/claude-code-cache-fix#44."""
    for (_, before), (field, ttl) in itertools.pairwise(marked):
        if TTL_SECONDS[ttl] > TTL_SECONDS[before]:
            raise _rejected_at(f"{field}.ttl", ttl_order(ttl, before))


def ttl_order(ttl: Ttl, before: Ttl) -> str:
    return (
        f"a ttl='{ttl}' cache_control block must not come after a ttl='{before}' cache_control "
        "block. Note that blocks are processed in the following order: `tools`, `system`, "
        "`messages`."
    )


def _ttl(request: CheckedRequest, marker: Object) -> Ttl:
    default = request.facts.rules.default_ttl
    ttl: Ttl | None = marker.get("ttl")
    return ttl or (default.value if default is not None else "5m")


CHECKS = WireChecks(
    messages_field="messages",
    checks=(
        _required,
        _unknown_fields,
        _message_fields,
        _limits,
        _roles,
        _tool_pairs,
        check_media(anthropic_media),
        _markers,
        _deferred_tools,
        _thinking,
        _prewarm,
        _features,
        _message_features,
        too_long,
    ),
    unreadable_code="invalid_request_error",
    hosts=("bedrock",),
)
