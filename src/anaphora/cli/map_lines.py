"""The lines of a file for `anaphora map`: prompts, or whole requests of any wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from anaphora import wire
from anaphora.client.options import CALL_KEYWORDS, CallOptions, check_keywords
from anaphora.client.parameters import call_of
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.prompt import Call, Params
from anaphora.wire import detect
from anaphora.wire.reading import DECODE_ERRORS, decode_reason

#: Arguments of a call that a line cannot have: their values are Python objects.
_KEYWORDS = CALL_KEYWORDS - {"params", "cache", "output", "provider", "timeout"}


class MapLine(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One line: a call, or the reason why it is invalid."""

    number: int
    id: str | int | None = None
    call: Call | None = None
    problem: str = ""

    def labels(self) -> dict[str, object]:
        return {"line": self.number} | ({} if self.id is None else {"id": self.id})


class LineDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults from the command line for every call."""

    model: str
    replaces_model: bool
    """Replaces the model of a request."""
    options: Mapping[str, Any]


def read_lines(data: bytes, defaults: LineDefaults) -> Iterator[MapLine]:
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        found: dict[str, Any] = {}
        try:
            found["call"] = _call(line, defaults, found)
        except AnaphoraError as problem:
            found |= {"call": None, "problem": str(problem)}
        yield MapLine(number=number, **found)


def _call(line: bytes, defaults: LineDefaults, found: dict[str, Any]) -> Call:
    try:
        value = msgspec.json.decode(line)
    except DECODE_ERRORS as problem:
        raise InvalidRequest(
            f"not JSON: {decode_reason(problem, line)}; a text is in quotes"
        ) from None
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise InvalidRequest('a line is a request, {"prompt": …} or a text')
    name = value.pop("custom_id" if "custom_id" in value else "id", None)
    if name is not None and not isinstance(name, str | int):
        raise InvalidRequest("must be a text or a number", path="id")
    found["id"] = name
    if "prompt" in value:
        return _prompt(value, defaults)
    path = ""
    for inside in ("params", "body"):  # a line of a batch
        if isinstance(value.get(inside), dict):
            path, value = str(value.get("url", "")), value[inside]
            break
    return _request(msgspec.json.encode(value), path, defaults)


def _prompt(value: dict[str, Any], defaults: LineDefaults) -> Call:
    content = value.pop("prompt")
    if not isinstance(content, str | list | dict) or not content:
        raise InvalidRequest("must be a text or a list of messages", path="prompt")
    check_keywords(value, _KEYWORDS)
    options: CallOptions = {**defaults.options, **value}  # type: ignore[typeddict-item]
    model = value.get("model", defaults.model)
    if not isinstance(model, str) or not model:
        raise InvalidRequest(f"must be the name of a model, not {model!r}", path="model")
    return call_of(content, model, options)


def _request(body: bytes, path: str, defaults: LineDefaults) -> Call:
    options = dict(defaults.options)
    if "system" in options:
        raise InvalidRequest("a whole request has its own system prompt; leave out -s")
    call = wire.get(detect(body)).parse(body, path)
    if defaults.replaces_model or not call.model:
        call = msgspec.structs.replace(call, model=defaults.model)
    given = {
        name: value
        for name, value in options.items()
        if getattr(call.params, name, None) is None and name in Params.__struct_fields__
    }
    if given:
        whole: CallOptions = {"params": call.params, **given}  # type: ignore[typeddict-item]
        call = call_of(call, call.model, whole)
    return call
