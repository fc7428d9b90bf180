"""A call of another program's log, in the form that `request_log` reads.

These logs have the prompt in the format of OpenAI's Chat Completions whatever the provider is, so
a request for a provider that caches at markers only is read in a dialect that has markers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from anaphora import catalog
from anaphora.analysis.trace.log_lines import seconds

Fields: TypeAlias = dict[str, Any]

#: Reads Chat Completions with cache markers.
_WITH_MARKERS = "openrouter"


class LoggedBill(NamedTuple):
    uncached: int
    read: int | None
    written: int | None
    output: int

    def chat(self) -> Fields:
        read, written = self.read or 0, self.written or 0
        details = {"cached_tokens": self.read, "cache_write_tokens": self.written}
        return {
            "prompt_tokens": self.uncached + read + written,
            "completion_tokens": self.output,
            "total_tokens": self.uncached + read + written + self.output,
            "prompt_tokens_details": {k: v for k, v in details.items() if v is not None},
        }

    def responses(self) -> Fields:
        usage = self.chat()
        return {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": self.output,
            "total_tokens": usage["total_tokens"],
            "input_tokens_details": {"cached_tokens": self.read or 0},
        }

    def messages(self) -> Fields:
        return {
            "input_tokens": self.uncached,
            "cache_read_input_tokens": self.read or 0,
            "cache_creation_input_tokens": self.written or 0,
            "output_tokens": self.output,
        }

    def audit(self) -> Fields:
        written = None if self.written is None else {"unsplit": self.written}
        fields = {"uncached": self.uncached, "read": self.read, "written": written}
        return {k: v for k, v in fields.items() if v is not None} | {"output": self.output}


def call_of(
    *,
    program: str,
    provider: str,
    model: str,
    messages: list[Any] | str | None,
    params: Fields,
    response: Fields,
    bill: LoggedBill | None,
    common: Fields,
    form: Literal["chat", "responses", "own"] = "chat",
    unmarked: bool = False,
) -> Iterator[Fields]:
    """A call whose prompt is known, else a row with its bill; nothing if it has neither. If the log
    leaves out cache markers (`unmarked`), one is at the end if the bill shows that there was
    one."""
    known = catalog.provider_named(provider) if provider else None
    common = {**common, "program": program}
    if messages is None or known is None:
        if bill is not None:
            yield _row(provider, model, bill, common)
        return
    if form == "own":
        body = {"model": model, **params, "messages": messages}
        yield {**common, "request": body, "response": response, "provider": known}
        return
    name, answer = "messages", _answer(response)
    if form == "responses":
        name = "input"
        answer = {**response, "object": "response", "status": "completed"}
        answer["usage"] = None if bill is None else bill.responses()
    elif bill is not None:
        answer["usage"] = bill.chat()
    marked = form == "chat" and catalog.rules(known, model).needs_marks
    if marked and unmarked and bill is not None and (bill.read or bill.written):
        _mark_last(messages)
    if marked and "claude" in model:
        body, answer = _as_claude(messages, params, answer, bill)
        fields = {"request": {"model": model, **body}, "response": answer, "provider": known}
        yield {**common, **fields, "dialect": "anthropic", "model": model}
        return
    wire = "openai_responses" if form == "responses" else _WITH_MARKERS if marked else "openai_chat"
    body = {"model": model, **params, name: messages}
    fields = {"request": body, "response": answer, "provider": known, "dialect": wire}
    yield {**common, **fields, "model": model}


def _as_claude(
    messages: list[Any] | str, params: Fields, answer: Fields, bill: LoggedBill | None
) -> tuple[Fields, Fields]:
    """A request and its answer in the form of Anthropic's API, whose cache has the tools before the
    system text."""
    system: list[Any] = []
    sent: list[Fields] = []
    for message in messages if isinstance(messages, list) else [{"content": messages}]:
        role, parts = message.get("role") or "user", _claude_parts(message)
        if role in ("system", "developer"):
            system += parts
        else:
            sent.append({"role": "user" if role == "tool" else role, "content": parts})
    tools = [object_of(tool.get("function")) for tool in params.get("tools") or ()]
    body = {
        "tools": [
            {
                "name": tool.get("name") or "",
                "description": tool.get("description") or "",
                "input_schema": tool.get("parameters") or {"type": "object"},
            }
            for tool in tools
        ],
        "system": system,
        "messages": sent,
        "max_tokens": 1,
    }
    said = answer["choices"][0].get("message") if answer.get("choices") else None
    text = object_of(said).get("content")
    reply = {
        "id": answer.get("id") or "",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}] if isinstance(text, str) and text else [],
        "stop_reason": "end_turn",
        "usage": None if bill is None else bill.messages(),
    }
    return {name: value for name, value in body.items() if value}, reply


def _claude_parts(message: Fields) -> list[Any]:
    content = message.get("content") or []
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [part if "text" in part else {"type": "text", "text": text_of(part)} for part in given]
    if message.get("role") == "tool":
        id = message.get("tool_call_id") or ""
        parts = [{"type": "tool_result", "tool_use_id": id, "content": parts}]
    for call in message.get("tool_calls") or ():
        function = object_of(call.get("function"))
        given, name = object_of(function.get("arguments")), function.get("name") or ""
        id = call.get("id") or ""
        parts.append({"type": "tool_use", "id": id, "name": name, "input": given})
    return parts


def _mark_last(messages: list[Any] | str) -> None:
    last = messages[-1] if isinstance(messages, list) else {}
    if isinstance(last.get("content"), str):
        last["content"] = [{"type": "text", "text": last["content"]}]
    if last.get("content"):
        last["content"][-1]["cache_control"] = {"type": "ephemeral"}


def _answer(response: Fields) -> Fields:
    """A reply of Chat Completions with the logged text."""
    if isinstance(response.get("choices"), list):
        return {k: v for k, v in response.items() if k != "usage"}
    output = response.get("output")
    message = output if isinstance(output, dict) and "role" in output else {}
    content = message.get("content", output)
    text = content if isinstance(content, str) else text_of(content) if content else ""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    id = response.get("id") or ""
    return {"id": id, "object": "chat.completion", "choices": [choice | {"finish_reason": "stop"}]}


def _row(provider: str, model: str, bill: LoggedBill, common: Fields) -> Fields:
    began, ended = seconds(common["time"]), seconds(common["end_time"])
    known = catalog.provider_named(provider) or provider
    taken = 0.0 if began is None or ended is None else max(0.0, ended - began)
    return {
        "row": "call",
        "at": 0.0 if began is None else began,
        "app": str(common["account"] or common["program"]),
        "adapter": common["program"],
        "provider": known,
        "system": known,
        "model": model,
        "response_id": common["id"],
        "seconds": taken,
        "usage": bill.audit(),
        "conversation": str(common["conversation"] or ""),
    }


def value_of(given: Any) -> Any:
    """A value that may be written as JSON text."""
    if isinstance(given, str) and given[:1] in "{[" and given:
        try:
            return msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return given
    return given


def object_of(given: Any) -> Fields:
    value = value_of(given)
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def first_of(fields: Fields, names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def either(fields: Fields, name: str) -> Any:
    """A field in snake case or in camel case."""
    head, *rest = name.split("_")
    return first_of(fields, (name, head + "".join(part.title() for part in rest)))


def count_of(fields: Fields, names: tuple[str, ...]) -> int | None:
    value = first_of(fields, names)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
