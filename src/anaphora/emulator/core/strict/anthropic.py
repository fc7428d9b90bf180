"""What Anthropic refuses. An error leads with the path of the field it is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from anaphora import errors
from anaphora.errors import Upstream

from . import anthropic_markers as markers
from .case import Case, Object, inside, objects, too_long, unknown, word
from .known import anthropic as known
from .paths import refused_at
from .reading import Talk

#: PROVIDERS.md, section 1: a body of at most 32 MB; the larger reading of it.
LIMIT_BYTES = 32 * 1024 * 1024
_NONE = frozenset[str]()
_TOP = known.TOP | frozenset(known.SAMPLING)
#: The outermost fields: of a request to count, and with betas.
_TOPS = {
    (False, False): _TOP,
    (False, True): _TOP | known.BETA_TOP,
    (True, False): known.COUNT,
    (True, True): known.COUNT | known.BETA_COUNT,
}
_EXTRA = "Extra inputs are not permitted"


class _Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str


TALK = Talk("messages", msgspec.json.Decoder(_Plain).decode)


def version_header(case: Case) -> Upstream | None:
    # The service's own words, as many clients' tests and pages quote them.
    if "anthropic-version" in case.asked.headers:
        return None
    return refused_at("anthropic-version", "header is required")


def size(case: Case) -> Upstream | None:
    if len(case.asked.body) <= LIMIT_BYTES:
        return None
    message = "Request exceeds the maximum size"
    return errors.TooLarge(message, status=413, code="request_too_large")


def required(case: Case) -> Upstream | None:
    """Source: the SDK's `Required` fields."""
    for field in ("model", "max_tokens", "messages"):
        if field not in case.body and not (field == "max_tokens" and case.counts):
            return refused_at(field, "Field required")
    if case.body["messages"] == []:
        return refused_at("messages", "at least one message is required")
    return None


def unknown_fields(case: Case) -> Upstream | None:
    beta = _has_betas(case)
    if (field := unknown(case.body, _TOPS[case.counts, beta])) is not None:
        return refused_at(field, _EXTRA)
    for at, tool in objects(case.body.get("tools")):
        if tool.keys() <= known.CUSTOM_TOOL or tool.get("type") not in (None, "custom"):
            continue
        if field := unknown(tool, known.CUSTOM_TOOL):
            return refused_at(f"tools.{at}.custom.{field}", _EXTRA)
    for at, block in objects(case.body.get("system")):
        if field := unknown(block, known.BLOCKS["text"]):
            return refused_at(f"system.{at}.{field}", _EXTRA)
    message_fields = known.MESSAGE | known.BETA_MESSAGE if beta else known.MESSAGE
    for at, message in case.unusual:
        if (field := unknown(message, message_fields)) is not None:
            return refused_at(f"messages.{at}.{field}", _EXTRA)
        for place, block in objects(message.get("content")):
            if (error := _block_fields(block, at, place)) is not None:
                return error
    return None


def _block_fields(block: Object, message: int, place: int) -> Upstream | None:
    kind = block.get("type")
    if isinstance(kind, str) and block.keys() <= known.BLOCKS.get(kind, _NONE):
        return None
    path = f"messages.{message}.content.{place}"
    if not isinstance(kind, str):
        return refused_at(f"{path}.type", "Field required")
    fields = known.BLOCKS.get(kind)
    if fields is None:
        if kind in known.BETA_BLOCKS:
            return None
        reason = f"Input tag '{kind}' found using 'type' does not match any of the expected tags"
        return refused_at(path, reason)
    field = unknown(block, fields)
    return None if field is None else refused_at(f"{path}.{kind}.{field}", _EXTRA)


def roles(case: Case) -> Upstream | None:
    """Who speaks first, and where a system message may stand (PROVIDERS.md, 2026 features)."""
    system = False
    for at, message in case.unusual:
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            return refused_at(f"messages.{at}.role", "Input should be 'user' or 'assistant'")
        system = system or role == "system"
    if system and _takes_no_system(case):
        # anthropics/claude-code#61412
        return refused_at("", "role 'system' is not supported on this model")
    if "thread" in case.body:
        return None  # what came before is with the provider
    if case.said and inside(msgspec.json.decode(case.said[0]), "role") == "assistant":
        return refused_at("messages", 'first message must use the "user" role')
    return _system_places(case) if system else None


def _system_places(case: Case) -> Upstream | None:
    said = [message.get("role") for _, message in case.messages]
    for at, role in enumerate(said):
        before = next((other for other in reversed(said[:at]) if other != "system"), None)
        after = next((other for other in said[at + 1 :] if other != "system"), "assistant")
        if role == "system" and (before, after) != ("user", "assistant"):
            reason = (
                "a system message must follow a user turn, and precede an assistant turn or end"
            )
            return refused_at(f"messages.{at}", reason)
    return None


def _takes_no_system(case: Case) -> bool:
    takes = case.profile.mid_conversation_system
    return takes.verified and not any(takes.published)


def tool_pairs(case: Case) -> Upstream | None:
    """Every call is answered in the next turn, and every answer had its call in the one before.

    Consecutive messages of one role are one turn [A]. anthropics/claude-code#2697, #5989;
    decocms/studio#1803.
    """
    if not _uses_tools(case):
        return None
    called: dict[str, int] = {}
    for number, (_, blocks) in enumerate(_turns(case)):
        answers = [each for each in blocks if _is(each[2], "tool_result")]
        answered = {word(block.get("tool_use_id")) for _, _, block in answers}
        if missing := [call_id for call_id in called if call_id not in answered]:
            return _unanswered(called, missing)
        continued = number == 0 and "thread" in case.body
        for at, place, block in answers:
            if not continued and word(block.get("tool_use_id")) not in called:
                return _uncalled(f"messages.{at}.content.{place}", block.get("tool_use_id"))
        called = {word(block.get("id")): at for at, _, block in blocks if _is(block, "tool_use")}
    return _unanswered(called, list(called)) if called else None


def _uses_tools(case: Case) -> bool:
    return any(
        block.get("type") in ("tool_use", "tool_result")
        for _, message in case.unusual
        for _, block in objects(message.get("content"))
    )


def _uncalled(path: str, call_id: object) -> Upstream:
    reason = (
        f"unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each `tool_result` "
        "block must have a corresponding `tool_use` block in the previous message."
    )
    return refused_at(path, reason)


def _unanswered(called: dict[str, int], missing: list[str]) -> Upstream:
    reason = (
        "`tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` "
        "block in the next message."
    )
    return refused_at(f"messages.{called[missing[0]]}", reason)


def _turns(case: Case) -> Iterator[tuple[str, list[tuple[int, int, Object]]]]:
    """Role, and the blocks with their places, of messages that are taken together."""
    role, blocks = "", list[tuple[int, int, Object]]()
    for at, message in case.messages:
        speaker = str(message.get("role"))
        if speaker != role and role:
            yield role, blocks
            blocks = []
        role = speaker
        blocks += [(at, place, block) for place, block in objects(message.get("content"))]
    if role:
        yield role, blocks


def _is(block: Object, kind: str) -> bool:
    return block.get("type") == kind


def thinking(case: Case) -> Upstream | None:
    """Reasoning is signed, and something follows it: anthropics/claude-code#11514,
    tailcallhq/forgecode#2107; an empty signature: pydantic/pydantic-ai#7597."""
    for at, message in case.unusual:
        blocks = objects(message.get("content"))
        if message.get("role") != "assistant" or not blocks:
            continue
        for place, block in blocks:
            if not _is(block, "thinking"):
                continue
            path = f"messages.{at}.content.{place}"
            if "signature" not in block:
                return refused_at(f"{path}.thinking.signature", "Field required")
            if not block["signature"]:
                return refused_at(path, "Invalid `signature` in `thinking` block")
        kinds = {word(block.get("type")) for _, block in blocks}
        if kinds & {"thinking", "redacted_thinking"} and _only_white_space(blocks, kinds):
            # Reported with signed reasoning before it: home-assistant/core#175637.
            reason = "text content blocks must contain non-whitespace text"
            return refused_at(f"messages.{at}", reason)
        kind = word(blocks[-1][1].get("type"))
        if kind in ("thinking", "redacted_thinking") and not _goes_on(case, at):
            reason = f"The final block in an assistant message cannot be `{kind}`."
            return refused_at(f"messages.{at}", reason)
    return None


def _only_white_space(blocks: list[tuple[int, Any]], kinds: set[str]) -> bool:
    """Whether the only text behind reasoning is white space."""
    texts = [block.get("text") for _, block in blocks if _is(block, "text")]
    return (
        bool(texts)
        and kinds <= {"thinking", "redacted_thinking", "text"}
        and all(isinstance(text, str) and not text.strip() for text in texts)
    )


def _goes_on(case: Case, at: int) -> bool:
    """Whether the next message is the assistant's, too: the two are one turn."""
    behind = case.said[at + 1 : at + 2]
    return any(inside(msgspec.json.decode(raw), "role") == "assistant" for raw in behind)


def features(case: Case) -> Upstream | None:
    """What the model, or the API version, does not take (the catalog's refusals)."""
    version = case.asked.headers.get("anthropic-version")
    refuses = case.profile.refuses
    body = case.body
    for field in known.SAMPLING:
        if body.get(field) is not None and refuses("sampling", api_version=version):
            return refused_at(field, f"not supported on version {version} of the API")
    forced = inside(body, "tool_choice", "type") in ("any", "tool")
    if forced and refuses("forced_tools", api_version=version):
        return refused_at("tool_choice", "tool_choice any and tool are not supported on this model")
    thinking = inside(body, "thinking", "type")
    if thinking == "disabled" and refuses("disabled_thinking", api_version=version):
        return refused_at("thinking", "thinking cannot be disabled on this model")
    if thinking == "enabled" and refuses("budgeted_thinking", api_version=version):
        return refused_at("thinking", "thinking with a budget is not supported on this model")
    return _content_features(case, version)


def _content_features(case: Case, version: str | None) -> Upstream | None:
    documents = case.profile.refuses("assistant_documents", api_version=version)
    citations = case.profile.refuses("user_text_citations", api_version=version)
    if not documents and not citations:
        return None
    for at, message in case.unusual:
        role = message.get("role")
        for place, block in objects(message.get("content")):
            path = f"messages.{at}.content.{place}"
            if documents and role == "assistant" and _is(block, "document"):
                return refused_at(path, "document blocks are not supported in assistant messages")
            if citations and role == "user" and _is(block, "text") and block.get("citations"):
                return refused_at(f"{path}.citations", "not supported on text in user messages")
    return None


def limits(case: Case) -> Upstream | None:
    """How much may be asked for; no more than the model gives, in the service's own words."""
    asked = case.body.get("max_tokens")
    if case.counts:
        return None
    if not isinstance(asked, int) or isinstance(asked, bool):
        return refused_at("max_tokens", "Input should be a valid integer")
    if asked < 0:
        return refused_at("max_tokens", "Input should be greater than or equal to 0")
    most = case.profile.output_tokens
    if most is not None and most.verified and asked > max(most.published):
        told = f"{asked} > {max(most.published)}, which is the maximum allowed number of output"
        return refused_at("max_tokens", f"{told} tokens for {case.model}")
    if inside(case.body, "thinking", "type") != "enabled" or asked == 0:
        return None
    budget = inside(case.body, "thinking", "budget_tokens")
    if not isinstance(budget, int):
        return refused_at("thinking.enabled.budget_tokens", "Field required")
    if budget < 1024:
        reason = "Input should be greater than or equal to 1024"
        return refused_at("thinking.enabled.budget_tokens", reason)
    if budget >= asked and not _has_betas(case):  # interleaved thinking counts otherwise
        return refused_at("", "`max_tokens` must be greater than `thinking.budget_tokens`")
    return None


def prewarm(case: Case) -> Upstream | None:
    """`max_tokens: 0` only fills the cache; PROVIDERS.md lists what it excludes."""
    body = case.body
    if body.get("max_tokens") != 0:
        return None
    excluded = {
        "stream": body.get("stream") is True,
        "thinking": inside(body, "thinking", "type") == "enabled",
        "output_config.format": inside(body, "output_config", "format") is not None,
        "tool_choice": inside(body, "tool_choice", "type") in ("any", "tool"),
    }
    for field, found in excluded.items():
        if found:
            return refused_at(field, "not supported when `max_tokens` is 0")
    return None


def overflow(case: Case) -> Upstream | None:
    return too_long(case, "anthropic", "anthropic")


def _has_betas(case: Case) -> bool:
    return bool(case.asked.headers.get("anthropic-beta"))


CHECKS = (
    version_header,
    size,
    required,
    unknown_fields,
    limits,
    roles,
    tool_pairs,
    markers.check,
    thinking,
    prewarm,
    features,
    overflow,
)
