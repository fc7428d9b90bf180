"""What Converse rejects. Texts are the service's own if they were recorded, or are quoted in the
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

from . import (
    CheckedRequest,
    Object,
    WireChecks,
    anthropic,
    dotted,
    objects,
    rejected,
    text,
    too_long,
)

_CODE = "ValidationException"
_OF_MODEL = "The model returned the following errors: "
#: Blocks that are part of a tool call or its result.
_OF_TOOLS = ("toolUse", "toolResult")
#: Recorded.
_NO_VIDEO = (
    "This model doesn't support the video content block that you provided. Update the content "
    "block and try again."
)
#: strands-agents/harness-sdk#1223, langchain-ai/langchain-aws#141
_ONE_KIND = "Conversation blocks and tool result blocks cannot be provided in the same turn."


def _refused(message: str, path: str = "") -> Upstream:
    return rejected(message, param=path or None, code=_CODE)


def _unsupported(field: str, path: str) -> Upstream:
    """Recorded of Claude, for `s3Uri`."""
    reason = f"This model doesn't support the {field} field. Remove {field} and try again."
    return _refused(reason, path)


def _malformed(path: str, key: str) -> Upstream:
    """Recorded of Nova: a block that the model's own schema lacks, by its JSON pointer."""
    pointer = path.replace(".", "/")
    reason = f"Malformed input request: #/{pointer}: extraneous key [{key}] is not permitted"
    return _refused(f"{_OF_MODEL}{reason}, please reformat your input and try again.", path)


def _limits(request: CheckedRequest) -> None:
    """botocore's constraints, with AWS's usual words."""
    if not request.messages:
        raise _refused("A conversation must start with a user message.", "messages")
    wanted = nested(request.body, "inferenceConfig", "maxTokens")
    if wanted is not None and (type(wanted) is not int or wanted < 1):
        path, rule = "inferenceConfig.maxTokens", "value greater than or equal to 1"
        raise _refused(
            f"1 validation error detected: Value '{text(wanted)[:40]}' at '{path}' failed to "
            f"satisfy constraint: Member must have {rule}",
            path,
        )


def _contents(request: CheckedRequest) -> None:
    """earendil-works/pi#3443; NousResearch/hermes-agent#55092, which was measured."""
    family, blank = request.profile.converse_family, takes_blank_text(request.profile)
    for index, message in request.messages:
        if message.get("content") == []:
            raise _refused(
                f"The content field in the Message object at messages.{index} is empty. Add a "
                "ContentBlock object to the content field and try again.",
                f"messages[{index}].content",
            )
    for block in _blocks(request):
        said, path = block.raw.get("text"), dotted(block.path)
        if said == "" or (isinstance(said, str) and not blank and not said.strip()):
            raise _refused(
                f"The text field in the ContentBlock object at {path} is blank. Add text to the "
                "text field, and try again.",
                block.path,
            )
        result = block.raw.get("toolResult")
        if isinstance(result, dict) and result.get("content") == []:
            failed = result.get("status") == "error"
            if failed or family is None or family.value != "claude":
                # aws-samples/sample-multi-agent-orchestration-chat-on-agentcore#15
                when = " when status value is error" if failed else ""
                reason = f"The content field at {path}.toolResult cannot be empty{when}."
                raise _refused(reason, block.path)


def _blocks(request: CheckedRequest) -> Iterator[WalkedBlock]:
    return itertools.chain.from_iterable(request.blocks.values())


def _tools(request: CheckedRequest) -> None:
    """patriceckhart/zot#18; camel-ai/camel#3954; strands-agents/harness-sdk#1435."""
    used = [block for block in _blocks(request) if block.type in _OF_TOOLS]
    if used and not nested(request.body, "toolConfig", "tools"):
        raise _refused(
            "The toolConfig field must be defined when using toolUse and toolResult content "
            "blocks.",
            "toolConfig",
        )
    calls: list[str] = []
    turns = itertools.groupby(request.messages, lambda pair: str(pair[1].get("role")))
    for _, messages in turns:
        turn = list(messages)
        blocks = [block for index, _ in turn for block in request.blocks.get(index, ())]
        results = [text(_id(block)) for block in blocks if block.type == "toolResult"]
        place = f"messages.{turn[0][0]}.content"
        missing = [each for each in calls if each not in results]
        if missing:
            listed = ", ".join(missing)
            reason = f"Expected toolResult blocks at {place} for the following Ids: {listed}"
            raise _refused(reason, place)
        if len(results) > len(calls):
            raise _refused(
                f"The number of toolResult blocks at {place} exceeds the number of toolUse blocks "
                "of previous turn.",
                place,
            )
        calls = [
            text(_id(block))
            for block in blocks
            if block.type == "toolUse" and nested(block.raw, "toolUse", "type") is None
        ]


def _id(block: WalkedBlock) -> object:
    return nested(block.raw, block.type, "toolUseId")


def _family(request: CheckedRequest) -> None:
    """What the catalog says that a family of models refuses."""
    refused = refusals_of(request.profile)
    first = request.messages[0][1].get("role")
    if first == "assistant" and "assistant_first" in refused:
        raise _refused(
            "A conversation must start with a user message. Try again with a conversation that "
            "starts with a user message.",
            "messages",
        )
    fields: tuple[tuple[Feature, str, str], ...] = (
        ("output_schema", "outputConfig", "textFormat"),
        ("sampling", "inferenceConfig", "temperature"),
        ("sampling", "inferenceConfig", "topP"),
    )
    for feature, outer, name in fields:
        if feature in refused and nested(request.body, outer, name) is not None:
            raise _unsupported(name, f"{outer}.{name}")
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
    path = dotted(block.path)
    in_result = request.walk.inner(block) if block.type == "toolResult" else ()
    for each in (block, *in_result):
        if each.type == "video":
            yield "video", _refused(_NO_VIDEO, each.path)
        if nested(each.raw, "image", "source", "s3Location") is not None:
            yield "stored_images", _unsupported("s3Uri", each.path)
        if nested(each.raw, "document", "citations", "enabled"):
            yield "citations", _unsupported("citations", each.path)
    for each in in_result:
        malformed = _malformed(path, "toolResult")
        if each.type == "image":
            yield "images_in_results", malformed
        if each.type == "document":
            yield "documents_in_results", malformed
            if nested(each.raw, "document", "format") not in ("txt", "md", "csv", "html"):
                yield "binary_documents_in_results", malformed
    if block.type == "toolResult":
        if nested(block.raw, "toolResult", "status") is not None:
            yield "result_status", _malformed(path, "status")
    elif beside and block.type != CACHE_POINT:
        turn = path.rpartition(".")[0]
        yield "parts_beside_results", _refused(f"{turn}: {_ONE_KIND}", turn)
        if block.type in ("document", "video"):
            yield "documents_beside_results", _refused(f"{turn}: {_ONE_KIND}", turn)


# ── Cache points ─────────────────────────────────────────────────────────────────────────────────


def _points(request: CheckedRequest) -> Iterator[tuple[str, str, Object]]:
    """The path of each cache point, the kind of the block before it, and the point, in the order in
    which Bedrock reads them."""
    config = request.body.get("toolConfig")
    for section, place, listed in (
        ("tools", "toolConfig.tools", nested(config, "tools")),
        ("system", "system", request.body.get("system")),
    ):
        for index, each in objects(listed):
            if isinstance(each.get(CACHE_POINT), dict):
                yield f"{place}.{index}", section, each[CACHE_POINT]
    for blocks in request.blocks.values():
        before = ""
        for block in blocks:
            point = block.raw.get(CACHE_POINT)
            if isinstance(point, dict):
                yield dotted(block.path), before, point
            before = block.type


def _cache_points(request: CheckedRequest) -> None:
    """A point at a place that the model does not take, in the words of NousResearch/
    hermes-agent#97281; on a model without any, those of zeroclaw-labs/zeroclaw#7315 (a 403 by
    BerriAI/litellm#39210). The limits are Anthropic's: Portkey-AI/gateway#1762."""
    points, profile = list(_points(request)), request.profile
    places = profile.cache_points
    if not points or places is None:
        return
    if not places.value:
        raise _refused(
            "You invoked an unsupported model or your request did not allow prompt caching. See "
            "the documentation for more information.",
            points[0][0],
        )
    ttls = None if profile.cache_point_ttls is None else profile.cache_point_ttls.value
    for path, before, point in points:
        beside_results = "toolResult" not in places.value and _has_result(request, path)
        if before not in places.value or beside_results:
            raise _malformed(path, CACHE_POINT)
        ttl = point.get("ttl")
        if ttl is not None and (ttl not in TTL_SECONDS or ttl not in (ttls or ("5m", "1h"))):
            reason = f"This model doesn't support the ttl '{text(ttl)[:40]}' of a cachePoint."
            raise _refused(reason, path)
    most = request.facts.rules.slots.value
    if len(points) > most:
        reason = f"A maximum of {most} blocks with cache_control may be provided."
        raise _refused(f"{_OF_MODEL}{reason} Found {len(points)}.", points[most][0])
    lifetimes: list[tuple[str, Ttl]] = [(p, point.get("ttl") or "5m") for p, _, point in points]
    for (_, before), (path, ttl) in itertools.pairwise(lifetimes):
        if TTL_SECONDS[ttl] > TTL_SECONDS[before]:
            raise _refused(
                f"{_OF_MODEL}{path}.cache_control.ttl: a ttl='{ttl}' cache_control block must not "
                f"come after a ttl='{before}' cache_control block. Note that blocks are processed "
                "in the following order: `tools`, `system`, `messages`.",
                path,
            )


def _has_result(request: CheckedRequest, path: str) -> bool:
    """Whether a cache point's message has a tool result."""
    section, _, rest = path.partition(".")
    index = rest.partition(".")[0]
    blocks = request.blocks.get(int(index), ()) if section == "messages" else ()
    return any(block.type == "toolResult" for block in blocks)


CHECKS = WireChecks(
    messages_field="messages",
    checks=(_limits, _contents, _tools, _family, _cache_points, too_long),
    unreadable_code=_CODE,
)


# ── InvokeModel ──────────────────────────────────────────────────────────────────────────────────

#: The version at the end of an id.
_VERSION = re.compile(r"-v[0-9]+(?::[0-9]+)?\Z")


def _request_marker(request: CheckedRequest) -> None:
    """Models whose ids have a version take no marker of the whole request: pydantic-ai 2.66.0."""
    if "cache_control" in request.body and _VERSION.search(text(request.body.get("model"))):
        raise _refused("cache_control: Extra inputs are not permitted", "cache_control")


INVOKE_CHECKS = msgspec.structs.replace(
    anthropic.CHECKS, checks=(_request_marker, *anthropic.CHECKS.checks)
)
