"""What a Responses request may say in two ways: every difference that `render(parse(request))` may
show, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphora.analysis.roundtrip.meaning import Body, Normalisation, drop_nulls, drop_when, keep
from anaphora.wire.openai_responses.output import item_id


def _items(body: Body) -> list[dict[str, Any]]:
    found = body.get("input")
    return found if isinstance(found, list) else []


def _parts(body: Body) -> Iterator[dict[str, Any]]:
    for item in _items(body):
        for name in ("content", "output"):
            if isinstance(item.get(name), list):
                yield from (part for part in item[name] if isinstance(part, dict))


def _nulls(body: Body) -> int:
    """At the top and among the options; inside an item a null may be what the service wants."""
    dropped = 0
    tools = body.get("tools") or []
    for holder in (body, body.get("reasoning") or {}, body.get("text") or {}, *tools):
        for name in [name for name, value in holder.items() if value is None]:
            del holder[name]
            dropped += 1
    return dropped


def _text_input(body: Body) -> int:
    if not isinstance(body.get("input"), str):
        return 0
    body["input"] = [{"role": "user", "content": body["input"]}]
    return 1


def _typed_items(body: Body) -> int:
    untyped = [item for item in _items(body) if item.get("type") is None]
    for item in untyped:
        item["type"] = "message" if "role" in item or "id" not in item else "item_reference"
    return len(untyped)


def _text_as_parts(body: Body) -> int:
    changed = 0
    for item in _items(body):
        name = "output" if item["type"] == "function_call_output" else "content"
        spoken = item.get("role") == "assistant"
        if isinstance(item.get(name), str) and not spoken:
            item[name] = [{"type": "input_text", "text": item[name]}]
            changed += 1
    return changed


def _blank_instructions(body: Body) -> int:
    blank = isinstance(body.get("instructions"), str) and not body["instructions"].strip()
    if blank:
        del body["instructions"]
    return int(blank)


def _system_role(body: Body) -> int:
    developers = [item for item in _items(body) if item.get("role") == "developer"]
    for item in developers:
        item["role"] = "system"
    return len(developers)


def _finished(body: Body) -> int:
    items = _items(body)

    def followed(at: int) -> bool:
        behind = next((item for item in items[at:] if item["type"] != "reasoning"), None)
        if behind is None or behind["type"].endswith("_output"):
            return False
        return behind["type"] != "message" or behind.get("role") == "assistant"

    return keep(items, lambda at: items[at]["type"] != "reasoning" or followed(at))


def _parallel(body: Body) -> int:
    if "parallel_tool_calls" not in body or "tool_choice" in body:
        return 0
    body["tool_choice"] = "auto"
    return 1


def _default_ttl(body: Body) -> int:
    default = (body.get("prompt_cache_options") or {}).get("ttl", "30m")
    markers = [part.get("prompt_cache_breakpoint") for part in _parts(body)]
    bare = [marker for marker in markers if marker is not None and "ttl" not in marker]
    for marker in bare:
        marker["ttl"] = default
    return len(bare)


def _defaults(body: Body) -> int:
    dropped = drop_when(body, "stream", False)
    if isinstance(body.get("prompt_cache_options"), dict):
        dropped += drop_when(body["prompt_cache_options"], "prewarm", False)
    for part in _parts(body):
        if part.get("type") == "input_image":
            dropped += drop_when(part, "detail", "auto")
    for name in ("prompt_cache_options", "reasoning", "text"):
        dropped += drop_when(body, name, {})
    for tool in body.get("tools") or []:
        dropped += drop_when(tool, "description", "")
    return dropped


REQUEST = (
    Normalisation("null means the same as a missing option", _nulls),
    Normalisation("text input is a list with one message", _text_input),
    Normalisation("an item without a type is a message or a reference", _typed_items),
    Normalisation("text content is a list with one part", _text_as_parts),
    Normalisation("blank instructions are left out", _blank_instructions),
    Normalisation("without developer messages, system ones", _system_role, "role_changed"),
    Normalisation(
        "reasoning that nothing follows is refused, so it is left out with a notice", _finished
    ),
    Normalisation("with parallel_tool_calls, tool_choice auto is said", _parallel),
    Normalisation("a breakpoint without a TTL gets the request's", _default_ttl),
    Normalisation("a field that says its default is left out", _defaults),
)


def _identified(body: Body) -> int:
    """A call that came with nothing but itself gets an id and a status when it is said again."""
    bare = {"type", "call_id", "name", "arguments"}
    changed = 0
    for index, item in enumerate(body.get("output") or []):
        if item.get("type") == "function_call" and {*item} == bare:
            item |= {"id": item_id("fc", body.get("id", ""), index), "status": "completed"}
            changed += 1
    return changed


REPLY = (
    Normalisation("null means the same as a missing field", drop_nulls),
    Normalisation("a call without an id gets one", _identified),
)
