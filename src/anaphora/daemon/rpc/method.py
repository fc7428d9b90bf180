"""A method of JSON-RPC: how its params are read, and what it gets to answer a request."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar, get_args

import msgspec

from anaphora.daemon import LlmCompleteInput
from anaphora.daemon.access.grants import Capability
from anaphora.daemon.access.identity import Directory
from anaphora.daemon.calls.call import AppCall
from anaphora.daemon.calls.delegation import CallService
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.values import App
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call
from anaphora.values import Notice
from anaphora.wire.reading import decode_members, decode_value, request_error

from .completion import (
    PromptParams,
    RpcSystemBlock,
)
from .protocol import NULL, RequestKey

T = TypeVar("T")

#: Maximum number of ignored params that are named.
_MOST_IGNORED = 20
#: Words for expected and given types in errors about params.
_WANTED = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
_GIVEN: dict[type, str] = {str: "a text", list: "a list", dict: "an object"}
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_EXPECTED = re.compile(r"Expected `([^`]*)`(?: ([<>]=? [\d.]+))?(?:, got `.*)?")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


class Cancels(Protocol):
    def cancel(self, context: MethodContext, key: RequestKey) -> bool:
        """Cancels a request of the same caller. Returns whether one was running."""
        ...


class MethodContext(msgspec.Struct, kw_only=True, eq=False):
    """One request, and the objects that methods need to answer it."""

    calls: CallService
    tokens: Directory
    requests: Cancels
    app: App | None
    connection: str
    """Name of the caller's connection; empty over HTTP."""
    method: str
    request_id: str
    id: bytes = NULL
    ignored: tuple[str, ...] = ()
    off_loop: OffLoop | None = None
    """Reads large requests in threads."""
    notify: Callable[[bytes], Awaitable[None]]
    """Writes lines; returns when the caller can accept more."""
    notices: list[Notice]
    """Notices for the header of the response."""
    started: float = msgspec.field(default_factory=time.perf_counter)

    @property
    def calling_app(self) -> App:
        assert self.app is not None, "checked by the service"
        return self.app

    async def work(self, act: Callable[[], T]) -> T:
        """Runs `act`, whose time grows with the size of the request; in a thread if that is
        large."""
        if self.off_loop is None:
            return act()
        return await self.off_loop.run("" if self.app is None else self.app.id, act)

    def app_call(self, params: LlmCompleteInput | PromptParams, call: Call) -> AppCall:
        timeout = getattr(params, "timeout_ms", None)
        return AppCall(
            app=self.calling_app,
            request_id=self.request_id,
            started=self.started,
            method=self.method,
            provider=params.provider,
            model=params.model,
            stream=getattr(params, "stream", False),
            is_large=self.off_loop is not None,
            call=call,
            timeout=None if timeout is None else timeout / 1000,
            allows_cold=getattr(params, "cold", None) is not None,
            ignored=self.ignored,
        )

    def ignored_notices(self) -> tuple[Notice, ...]:
        return tuple(
            Notice("param_ignored", "unknown; it was ignored", name) for name in self.ignored
        )


Run = Callable[[MethodContext, Any], Awaitable[object]]


class RpcMethod(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    params: type[msgspec.Struct]
    result: Any
    run: Run
    capability: Capability | None = None
    calls_provider: bool = False
    notified: bool = True
    """Whether it is executed as a notification, whose answer is lost."""

    def read_params(self, data: bytes) -> Any:
        """Raises `InvalidRequest` with the path of the field."""
        try:
            return decode_value(data, self.params, "", request_error)
        except InvalidRequest as problem:
            path = problem.path.removeprefix(".")
            reason = _error_text(problem.reason, path, data, _choices(self.params, path))
            raise InvalidRequest(reason, path=path) from None

    def ignored_params(self, data: bytes) -> tuple[str, ...]:
        """Names of params and message fields unknown to the method."""
        known = {field.encode_name: field for field in msgspec.structs.fields(self.params)}
        members = decode_members(data)
        ignored = [name for name in members if name not in known]
        if "messages" in known and "messages" in members:
            ignored += _unknown_fields(members["messages"], known["messages"].type)
        return tuple(name[:64] for name in ignored[:_MOST_IGNORED])


def _choices(params: type[msgspec.Struct], path: str) -> tuple[str, ...]:
    """The allowed texts of the field at a path, if it is an enumeration."""
    name = path.rpartition(".")[2]
    fields = {field.name: field.type for field in msgspec.structs.fields(params)}
    if "messages" not in fields:
        return ()
    struct = RpcSystemBlock if name == "cache" else fields["messages"].__args__[0]
    for field in msgspec.structs.fields(struct):
        if field.name == name:
            return get_args(field.type)
    return ()


def _unknown_fields(messages: msgspec.Raw, kind: Any) -> list[str]:
    names = frozenset(kind.__args__[0].__struct_fields__)
    return [
        f"messages[{index}].{name}"
        for index, message in enumerate(_decode_objects(messages))
        for name in message
        if name not in names
    ]


def _error_text(reason: str, path: str, data: bytes, choices: Iterable[str] = ()) -> str:
    """msgspec's error for the value at `path` in our words. `choices` are its allowed texts."""
    if "matching regex" in reason:
        return "must not be blank"
    if (missing := _MISSING.fullmatch(reason)) is not None:
        return f"{missing[1]} is missing"
    given = _shown(_value_at(msgspec.json.decode(data), path))
    if reason.startswith("Invalid enum value"):
        return f"must be one of {', '.join(choices)}, not {given}"
    expected = _EXPECTED.fullmatch(reason)
    if expected is None:
        return reason
    names = [name for name in expected[1].split(" | ") if name != "null"]
    wanted = " or ".join(_WANTED.get(name, name) for name in names)
    bound = f" {expected[2].removesuffix('.0')}" if expected[2] else ""
    return f"must be {wanted}{bound}, not {given}"


def _value_at(value: Any, path: str) -> Any:
    for name, index in _STEP.findall(path):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and index and int(index) < len(value):
            value = value[int(index)]
        else:
            break
    return value


def _shown(value: Any) -> str:
    """The value for an error message; long values are not repeated."""
    if isinstance(value, str) and len(value) <= 40:
        return json.dumps(value, ensure_ascii=False)
    return _GIVEN.get(type(value)) or json.dumps(value)
