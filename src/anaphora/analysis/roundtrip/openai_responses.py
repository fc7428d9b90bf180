"""Forms of a Responses request or reply that mean the same."""

from __future__ import annotations

from anaphora.wire.openai_responses.reply import item_id

from .normalise import (
    DEFAULTS,
    DEVELOPER,
    NULLS,
    PARALLEL,
    UNFINISHED,
    Body,
    Normalisation,
    auto_tool_choice,
    drop,
    drop_nulls,
    objects_at,
    rename_role,
)


def _drop_null_options(body: Body) -> int:
    """At the top and among the options; inside an item a null may be required."""
    dropped = 0
    options = (body.get("reasoning") or {}, body.get("text") or {})
    for holder in (body, *options, *objects_at(body, "tools[]")):
        nulls = [name for name, value in holder.items() if value is None]
        for name in nulls:
            del holder[name]
        dropped += len(nulls)
    return dropped


def _text_input(body: Body) -> int:
    if not isinstance(body.get("input"), str):
        return 0
    body["input"] = [{"role": "user", "content": body["input"]}]
    return 1


def _item_types(body: Body) -> int:
    untyped = [item for item in objects_at(body, "input[]") if item.get("type") is None]
    for item in untyped:
        item["type"] = "message" if "role" in item or "id" not in item else "item_reference"
    return len(untyped)


def _text_as_parts(body: Body) -> int:
    changed = 0
    for item in objects_at(body, "input[]"):
        name = "output" if item["type"] == "function_call_output" else "content"
        if isinstance(item.get(name), str) and item.get("role") != "assistant":
            item[name] = [{"type": "input_text", "text": item[name]}]
            changed += 1
    return changed


def _blank_instructions(body: Body) -> int:
    blank = isinstance(body.get("instructions"), str) and not body["instructions"].strip()
    if blank:
        del body["instructions"]
    return int(blank)


def _drop_unfinished(body: Body) -> int:
    items = body.get("input")
    if not isinstance(items, list):
        return 0
    kept = []
    followed = False
    for item in reversed(items):
        if item["type"] != "reasoning":
            from_model = item["type"] != "message" or item.get("role") == "assistant"
            followed = from_model and not item["type"].endswith("_output")
        if item["type"] != "reasoning" or followed:
            kept.append(item)
    dropped = len(items) - len(kept)
    items[:] = kept[::-1]
    return dropped


def _parts(body: Body) -> list[Body]:
    return [*objects_at(body, "input[].content[]"), *objects_at(body, "input[].output[]")]


def _default_ttl(body: Body) -> int:
    default = (body.get("prompt_cache_options") or {}).get("ttl", "30m")
    markers = [part.get("prompt_cache_breakpoint") for part in _parts(body)]
    bare = [marker for marker in markers if marker is not None and "ttl" not in marker]
    for marker in bare:
        marker["ttl"] = default
    return len(bare)


def _default_detail(body: Body) -> int:
    images = [part for part in _parts(body) if part.get("type") == "input_image"]
    default = [image for image in images if image.get("detail") == "auto"]
    for image in default:
        del image["detail"]
    return len(default)


REQUEST = (
    Normalisation("null means the same as a missing option", _drop_null_options),
    Normalisation("text input is a list with one message", _text_input),
    Normalisation("an item without a type is a message or a reference", _item_types),
    Normalisation("text content is a list with one part", _text_as_parts),
    Normalisation("blank instructions are left out", _blank_instructions),
    Normalisation(DEVELOPER, rename_role("input[]"), notice="role_changed"),
    Normalisation(UNFINISHED, _drop_unfinished),
    Normalisation(PARALLEL, auto_tool_choice),
    Normalisation("a breakpoint without a TTL gets the request's", _default_ttl),
    Normalisation(
        DEFAULTS,
        drop("", False, "stream"),
        drop("prompt_cache_options", False, "prewarm"),
        _default_detail,
        drop("", {}, "prompt_cache_options", "reasoning", "text"),
        drop("tools[]", "", "description"),
    ),
)


def _identified(body: Body) -> int:
    """A call with nothing but itself gets an id and a status when it is written."""
    bare = {"type", "call_id", "name", "arguments"}
    changed = 0
    for index, item in enumerate(body.get("output") or []):
        if item.get("type") == "function_call" and {*item} == bare:
            item |= {"id": item_id("fc", body.get("id", ""), index), "status": "completed"}
            changed += 1
    return changed


REPLY = (
    Normalisation(NULLS, drop_nulls),
    Normalisation("a call without an id gets one", _identified),
)
