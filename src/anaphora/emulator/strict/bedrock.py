"""What Bedrock rejects. Texts are the service's own if they were recorded, or are quoted in the
reports named beside the checks; a model's own refusals begin with `_OF_MODEL`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import msgspec

from anaphora.catalog import Feature
from anaphora.emulator.exchange import nested
from anaphora.errors import Upstream
from anaphora.values import TTL_SECONDS, Ttl
from anaphora.wire.bedrock.params import refusals_of, takes_blank_text
from anaphora.wire.bedrock.types import CACHE_POINT
from anaphora.wire.walking import WalkedBlock

from . import CheckedRequest, Object, WireChecks, anthropic, dotted, objects, rejected, too_long
from . import text as text_of

_CODE = "ValidationException"
_OF_MODEL = "The model returned the following errors: "
_AGAIN = "and try again."
#: Documents that are text.
_TEXTS = ("txt", "md", "csv", "html")
#: The version at the end of an id.
_VERSION = re.compile(r"-v[0-9]+(?::[0-9]+)?\Z")


def _refused(message: str, path: str) -> Upstream:
    return rejected(message, param=path, code=_CODE)


def _unsupported(field: str, path: str) -> Upstream:
    """Recorded of Claude, for `s3Uri`."""
    return _refused(f"This model doesn't support the {field} field. Remove {field} {_AGAIN}", path)


def _malformed(path: str, key: str) -> Upstream:
    """Recorded of Nova: a block that the model's own schema lacks, by its JSON pointer."""
    pointer = path.replace(".", "/")
    reason = f"Malformed input request: #/{pointer}: extraneous key [{key}] is not permitted"
    return _refused(f"{_OF_MODEL}{reason}, please reformat your input {_AGAIN}", path)


def _contents(request: CheckedRequest) -> None:
    """The limit; empty contents and blank texts: earendil-works/pi#3443; NousResearch/
    hermes-agent#55092, which was measured; aws-samples/
    sample-multi-agent-orchestration-chat-on-agentcore#15."""
    if not request.messages:
        raise _refused("A conversation must start with a user message.", "messages")
    wanted = nested(request.body, "inferenceConfig", "maxTokens")
    if wanted is not None and (type(wanted) is not int or wanted < 1):
        path, shown = "inferenceConfig.maxTokens", text_of(wanted)[:40]
        reason = f"1 validation error detected: Value '{shown}' at '{path}' failed to satisfy"
        raise _refused(f"{reason} constraint: Member must have value of at least 1", path)
    for index, message in request.messages:
        if message.get("content") == []:
            reason = f"The content field in the Message object at messages.{index} is empty."
            raise _refused(f"{reason} Add a ContentBlock object to the content field {_AGAIN}", "")
    blank = takes_blank_text(request.profile)
    for block in itertools.chain.from_iterable(request.blocks.values()):
        said, path = block.raw.get("text"), dotted(block.path)
        if said == "" or (isinstance(said, str) and not blank and not said.strip()):
            reason = f"The text field in the ContentBlock object at {path} is blank."
            raise _refused(f"{reason} Add text to the text field, {_AGAIN}", path)
        if nested(block.raw, "toolResult", "content") == []:
            failed = nested(block.raw, "toolResult", "status") == "error"
            if failed or not blank:
                when = " when status value is error" if failed else ""
                reason = f"The content field at {path}.toolResult cannot be empty{when}."
                raise _refused(reason, path)


def _tool_pairs(request: CheckedRequest) -> None:
    """patriceckhart/zot#18; camel-ai/camel#3954; strands-agents/harness-sdk#1435."""
    calls: list[str] = []
    for _, turn in itertools.groupby(request.messages, lambda pair: str(pair[1].get("role"))):
        indexes = [index for index, _ in turn]
        ids: dict[str, list[str]] = {"toolUse": [], "toolResult": []}
        for block in itertools.chain.from_iterable(request.blocks.get(at, ()) for at in indexes):
            # Calls of the provider's own tools have a type.
            if block.type in ids and nested(block.raw, block.type, "type") is None:
                ids[block.type].append(text_of(nested(block.raw, block.type, "toolUseId")))
        if any(ids.values()) and not nested(request.body, "toolConfig", "tools"):
            reason = "The toolConfig field must be defined when using toolUse and toolResult"
            raise _refused(f"{reason} content blocks.", "toolConfig")
        place, results = f"messages.{indexes[0]}.content", ids["toolResult"]
        if missing := [each for each in calls if each not in results]:
            reason = f"Expected toolResult blocks at {place} for the following Ids: "
            raise _refused(reason + ", ".join(missing), place)
        if len(results) > len(calls):
            reason = f"The number of toolResult blocks at {place} exceeds the number of toolUse"
            raise _refused(f"{reason} blocks of previous turn.", place)
        calls = ids["toolUse"]


def _family(request: CheckedRequest) -> None:
    """What the catalog says that a family of models refuses."""
    refused = refusals_of(request.profile)
    fields: tuple[tuple[Feature, str, str], ...] = (
        ("output_schema", "outputConfig", "textFormat"),
        ("sampling", "inferenceConfig", "temperature"),
        ("sampling", "inferenceConfig", "topP"),
    )
    for feature, outer, name in fields:
        if feature in refused and nested(request.body, outer, name) is not None:
            raise _unsupported(name, f"{outer}.{name}")
    if "assistant_first" in refused and request.messages[0][1].get("role") == "assistant":
        reason = "A conversation must start with a user message. Try again with a conversation that"
        raise _refused(f"{reason} starts with a user message.", "messages")
    for blocks in request.blocks.values():
        beside = any(block.type == "toolResult" for block in blocks)
        for block in blocks:
            for feature, problem in _uses(request, block, beside):
                if feature in refused:
                    raise problem


def _uses(
    request: CheckedRequest, block: WalkedBlock, beside: bool
) -> Iterator[tuple[Feature, Upstream]]:
    """The features that a block uses, and the errors of models without them."""
    path, is_result = dotted(block.path), block.type == "toolResult"
    inner = request.walk.inner(block) if is_result else ()
    for each in (block, *inner):
        if each.type == "video":  # recorded
            reason = "This model doesn't support the video content block that you provided."
            yield "video", _refused(f"{reason} Update the content block {_AGAIN}", path)
        if nested(each.raw, "image", "source", "s3Location") is not None:
            yield "stored_images", _unsupported("s3Uri", path)
        if nested(each.raw, "document", "citations", "enabled"):
            yield "citations", _unsupported("citations", path)
    for each in inner:
        if each.type == "image":
            yield "images_in_results", _malformed(path, block.type)
        if each.type == "document":
            yield "documents_in_results", _malformed(path, block.type)
            if nested(each.raw, "document", "format") not in _TEXTS:
                yield "binary_documents_in_results", _malformed(path, block.type)
    if is_result and nested(block.raw, block.type, "status") is not None:
        yield "result_status", _malformed(path, "status")
    if beside and not is_result and block.type != CACHE_POINT:
        # strands-agents/harness-sdk#1223, langchain-ai/langchain-aws#141
        turn = path.rpartition(".")[0]
        reason = f"{turn}: Conversation blocks and tool result blocks cannot be provided in the"
        yield "parts_beside_results", _refused(f"{reason} same turn.", turn)


# ── Cache points ─────────────────────────────────────────────────────────────────────────────────


def _points(request: CheckedRequest) -> Iterator[tuple[str, set[str], Object]]:
    """The path of each cache point, the kinds of blocks that must allow it, and the point, in the
    order in which Bedrock reads them."""
    tools, system = nested(request.body, "toolConfig", "tools"), request.body.get("system")
    for section, place, listed in (
        ("tools", "toolConfig.tools", tools),
        ("system", "system", system),
    ):
        for index, each in objects(listed):
            if isinstance(each.get(CACHE_POINT), dict):
                yield f"{place}.{index}", {section}, each[CACHE_POINT]
    for blocks in request.blocks.values():
        results = {block.type for block in blocks} & {"toolResult"}
        for before, block in itertools.pairwise((None, *blocks)):
            if block is not None and isinstance(block.raw.get(CACHE_POINT), dict):
                kinds = results | {"" if before is None else before.type}
                yield dotted(block.path), kinds, block.raw[CACHE_POINT]


def _cache_points(request: CheckedRequest) -> None:
    """A point at a place that the model does not take, in the words of NousResearch/
    hermes-agent#97281; on a model without any, those of zeroclaw-labs/zeroclaw#7315 (a 403 by
    BerriAI/litellm#39210). The limits are Anthropic's: Portkey-AI/gateway#1762."""
    points, profile = list(_points(request)), request.profile
    places = profile.cache_points
    if not points or places is None:
        return
    if not places.value:
        reason = "You invoked an unsupported model or your request did not allow prompt caching."
        raise _refused(f"{reason} See the documentation for more information.", points[0][0])
    ttls = ("5m", "1h") if profile.cache_point_ttls is None else profile.cache_point_ttls.value
    for path, kinds, point in points:
        if not kinds <= set(places.value):
            raise _malformed(path, CACHE_POINT)
        if point.get("ttl") not in (None, *ttls):
            shown = text_of(point["ttl"])[:40]
            raise _refused(f"This model doesn't support the ttl '{shown}' of a cachePoint.", path)
    most = request.facts.rules.slots.value
    if len(points) > most:
        reason = f"A maximum of {most} blocks with cache_control may be provided."
        raise _refused(f"{_OF_MODEL}{reason} Found {len(points)}.", points[most][0])
    lifetimes: list[tuple[str, Ttl]] = [(p, point.get("ttl") or "5m") for p, _, point in points]
    for (_, before), (path, ttl) in itertools.pairwise(lifetimes):
        if TTL_SECONDS[ttl] > TTL_SECONDS[before]:
            reason = anthropic.ttl_order(ttl, before)
            raise _refused(f"{_OF_MODEL}{path}.cache_control.ttl: {reason}", path)


def _request_marker(request: CheckedRequest) -> None:
    """InvokeModel: models whose ids have a version take no marker of the whole request
    (pydantic-ai 2.66.0)."""
    if "cache_control" in request.body and _VERSION.search(text_of(request.body.get("model"))):
        raise _refused("cache_control: Extra inputs are not permitted", "cache_control")


CHECKS = WireChecks(
    messages_field="messages",
    checks=(_contents, _tool_pairs, _family, _cache_points, too_long),
    unreadable_code=_CODE,
    by_profile=True,
)
INVOKE_CHECKS = msgspec.structs.replace(
    anthropic.CHECKS, checks=(_request_marker, *anthropic.CHECKS.checks)
)
