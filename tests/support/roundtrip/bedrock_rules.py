"""Equivalent forms of Converse's requests and replies."""

from __future__ import annotations

from . import (
    DEFAULTS,
    NULLS,
    UNFINISHED,
    Body,
    Edit,
    WireRules,
    drop,
    drop_nulls,
    fill,
    keep,
    objects_at,
    remove,
)

#: Fields with the app's own content, or a schema: nulls inside stay unchanged.
_OPAQUE = ("input", "json", "additionalModelRequestFields")
_BLOCKS = "messages[].content[]"
_RESULTS = f"{_BLOCKS}.toolResult"
_MARKERS = "|".join(f"{path}.cachePoint" for path in ("toolConfig.tools[]", "system[]", _BLOCKS))


def _has_text(block: Body) -> bool:
    return not isinstance(block.get("text"), str) or bool(block["text"].strip())


def _merge_neighbours(body: Body) -> None:
    merged: list[Body] = []
    for message in objects_at(body, "messages[]"):
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += message["content"]
        elif message["content"]:
            merged.append(message)
    body["messages"] = merged


def _drop_unfinished_reasoning(body: Body) -> None:
    """Needs merged neighbours, and merges those that become neighbours."""
    for message in body["messages"]:
        content = message["content"]
        while message["role"] == "assistant" and content and "reasoningContent" in content[-1]:
            content.pop()
    _merge_neighbours(body)


def _fill_result(result: Body) -> None:
    if not result.get("content"):
        result["content"] = [{}]  # `json` is null, and left out as every null


BEDROCK = WireRules(
    wire="bedrock",
    request={
        NULLS: [drop_nulls(*_OPAQUE)],
        "the model is in the path": [remove("", "modelId")],
        "an empty text is refused, so it is left out with a notice": [
            keep("", "system", _has_text),
            keep("messages[]", "content", _has_text)._replace(notice="blank_text"),
            keep(_RESULTS, "content", _has_text)._replace(notice="blank_text"),
        ],
        "neighbours of one role are one message": [Edit("", _merge_neighbours)],
        UNFINISHED: [Edit("", _drop_unfinished_reasoning)._replace(notice="unfinished_thinking")],
        "a result without content is refused, so it gets null": [Edit(_RESULTS, _fill_result)],
        "a marker without a TTL lives five minutes": [
            drop(_MARKERS, ttl="5m"),
            fill(_MARKERS, type="default"),
        ],
        DEFAULTS: [
            drop(_RESULTS, status="success"),
            drop("toolConfig.tools[].toolSpec", description=""),
            drop("inferenceConfig", stopSequences=[]),
            drop("toolConfig", tools=[]),
            drop("", system=[], inferenceConfig={}, toolConfig={}, requestMetadata={}),
            drop("", additionalModelRequestFields={}, outputConfig={}),
        ],
    },
    reply={
        NULLS: [drop_nulls(*_OPAQUE)],
        "a reply is the assistant's, and has metrics": [
            fill("output.message", role="assistant"),
            fill("", metrics={"latencyMs": 0}),
        ],
    },
)
