"""Reads the facts of a request from its fields: models, limits, tools, tiers, unknown fields.

    facts = read_facts("anthropic", members, content, "/v1/messages", headers)
    facts.max_tokens, facts.server_tools, facts.handles, facts.unknown

The messages are not read here: `content` is what was found in them. A field of the wrong type
raises `InvalidRequest`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from anaphora.catalog.pricing import STANDARD_TIERS
from anaphora.values import Ttl
from anaphora.wire.gemini.types import camel, raw_elements
from anaphora.wire.reading import (
    Members,
    converts_errors,
    decode_value,
    request_error,
)

from .facts import (
    ALWAYS_READ,
    CallFacts,
    HandleRef,
    KnownFields,
    Named,
    OutputLimit,
    ServerTool,
    known_fields,
)
from .kept import CallContent
from .stored import ID_NAMES, stored_objects
from .tools import FoundTools, read_tools

#: Tiers that need no permission: the standard one under each provider's name.
_STANDARD = STANDARD_TIERS | {"on_demand"}
NULL = msgspec.Raw(b"null")
#: The largest accepted output limit, as for JSON-RPC.
_MOST_TOKENS = 2**32 - 1
#: A stored prompt of Bedrock, in place of a model.
_STORED_PROMPT = re.compile(r"arn:[^:/]*:bedrock:[^/]*:prompt/")
#: The name of a cache point, or an escape in which it may be written.
_MAY_BE_POINT = re.compile(rb"cachePoint|\\u").search
_BETA_HEADERS = ("anthropic-beta", "openai-beta")
#: Fields of an entry of `fallbacks` that add no cost beyond its output limit.
_FALLBACK_FIELDS = frozenset({"model", "thinking", "output_config"})


@converts_errors(request_error)
def read_facts(
    wire: str,
    members: Members,
    content: CallContent | None = None,
    path: str = "",
    headers: Iterable[tuple[str, str]] = (),
) -> CallFacts:
    """The facts of a request. `wire` may be a dialect's name, which adds its fields; `members` are
    those of the body, and `path` may name the model, as Gemini's does. `content` is what the
    messages hold besides text; None: nothing."""
    reading = _Reading(known_fields(wire), path)
    reading.read(members)
    reading.read_headers(headers)
    return reading.facts(content)


class _Reading:
    """The reading of one request."""

    def __init__(self, known: KnownFields, path: str) -> None:
        self._known = known
        self._table = known.table
        self.wire = known.wire
        self._renames = known.table.rename is camel
        self._models: list[Named] = []
        self._handles: list[HandleRef] = []
        self._tiers: list[Named] = []
        self._betas: list[Named] = []
        self._unknown: list[str] = []
        self._unbounded: list[str] = []
        self._tools = FoundTools()
        self._content = frozenset({known.table.messages, known.table.system})
        """The fields that a call has as its messages and its system text."""
        self._ttls: set[Ttl] = set()
        self._limits: list[OutputLimit] = []
        self._values: dict[str, Any] = {"max_tokens_field": known.table.limit}
        if known.table.read_path is not None:
            self._read_path(known.table.read_path(path))

    def facts(self, content: CallContent | None) -> CallFacts:
        tools, values, unknown = self._tools, self._values, self._unknown
        handles = self._handles + tools.handles
        if content is not None:
            tools.add(content.tools)
            handles += [HandleRef(one.path, one.kind, one.id) for one in content.owned]
            unknown = unknown + content.unknown
            values["media"] = content.media
            self._ttls |= content.cache_ttls
            values["late_tools"] = content.changes_tools
        if self._ttls:
            values["cache_ttls"] = tuple(sorted(self._ttls))
        self._models += [
            Named(f"{one.param}.model", one.model) for one in tools.server if one.model
        ]
        # The requested model comes first, wherever its field is in the body.
        self._models.sort(key=lambda named: named.param != "model")
        lists: Mapping[str, list[Any]] = {
            "limits": self._limits,
            "handles": handles,
            "tools": tools.functions,
            "server_tools": tools.server,
            "remote_mcp": tools.remote_mcp,
            "tiers": self._tiers,
            "betas": self._betas,
            "unknown": unknown + self._unbounded,
            "unbounded": self._unbounded,
        }
        values |= {name: tuple(found) for name, found in lists.items() if found}
        return CallFacts(wire=self.wire, models=tuple(self._models), **values)

    # ── Fields ───────────────────────────────────────────────────────────────────────────────────

    def read(self, members: Members) -> None:
        if self._renames:
            members = _camel_names(members, "")
        size = 0
        top = self._known.top
        for name, raw in members.items():
            size += memoryview(raw).nbytes + len(name) + 4
            if name not in top and name not in ALWAYS_READ:
                if raw != NULL:
                    self._check_case(name, name)
                    self._unknown.append(name)
                    self._add_stored(name, raw)
                continue
            if raw == NULL or name in self._content:
                continue
            if name in self._known.nested and bytes(raw)[:1] == b"{":
                self._check_nested(name, raw)
            read = _READERS.get(name)
            if read is not None:
                read(self, name, raw)
            if name not in top and name not in self._unbounded:
                self._unknown.append(name)
            if read is None or read is not _READERS["tools"]:
                self._add_stored(name, raw)
        self._values["size"] = size
        if self._limits:
            name, limit = max(self._limits, key=lambda one: one.tokens)
            self._values |= {"max_tokens": limit, "max_tokens_field": name}

    def _add_stored(self, name: str, raw: msgspec.Raw) -> None:
        """Adds the stored objects named in a field."""
        if name in ID_NAMES or bytes(memoryview(raw)[:1]) in (b"[", b"{"):
            value = decode_value(raw, Any, f"$.{name}", request_error)
            for one in stored_objects({name: value}):
                if one.problem and name in ID_NAMES:
                    raise request_error(one.problem, f"$.{name}")
                if one.is_owned:
                    self._handles.append(HandleRef(one.path, one.kind, one.id))

    def read_headers(self, headers: Iterable[tuple[str, str]]) -> None:
        for name, value in headers:
            if name.lower() in _BETA_HEADERS:
                values = (part.strip() for part in value.split(","))
                self._betas += [Named(name.lower(), part) for part in values if part]

    def _read_path(self, named: tuple[str, bool]) -> None:
        model, self._values["stream"] = named
        if model:
            self._models.append(Named("model", model))
        if _STORED_PROMPT.match(model):
            self._values["stored_prompt"] = True

    def _check_case(self, name: str, path: str) -> None:
        """Refuses an unknown field name that some servers would read as a known one."""
        own = self._known.folded.get(name.casefold())
        if own is not None and own != name:
            raise request_error(f"is spelled {own}", f"$.{path}")

    def _check_nested(self, path: str, raw: msgspec.Raw) -> Members:
        """Notes unknown members of an object and returns all members."""
        members = _members(raw, path)
        if self._renames:
            members = _camel_names(members, f"{path}.")
        known = self._known.nested[path]
        for name in members:
            if name not in known and members[name] != NULL:
                self._check_case(name, f"{path}.{name}")
                self._unknown.append(f"{path}.{name}")
        return members

    def _limit(self, name: str, raw: msgspec.Raw) -> None:
        if raw == NULL:
            return
        limit = _whole(raw, name, least=None, floats=self._renames)
        if limit > _MOST_TOKENS:
            raise request_error(f"must be at most {_MOST_TOKENS}", f"$.{name}")
        if limit < (least := self._table.smallest_limit):
            raise request_error(f"must be at least {least}, not {limit}", f"$.{name}")
        self._limits.append(OutputLimit(name, limit))

    def _model(self, name: str, raw: msgspec.Raw) -> None:
        model = _text(raw, name)
        if self._renames:
            model = model.removeprefix("models/")
        if model:
            self._models.append(Named(name, model))

    def _model_list(self, name: str, raw: msgspec.Raw) -> None:
        """A list of models, or of objects that name one."""
        listed = decode_value(raw, list[str | _NamesModel], f"$.{name}", request_error)
        for index, each in enumerate(listed):
            model = each if isinstance(each, str) else each.model
            where = f"{name}[{index}]" + ("" if isinstance(each, str) else ".model")
            if model is not None:
                self._models.append(Named(where, model))

    def _fallbacks(self, name: str, raw: msgspec.Raw) -> None:
        """Fallback models, each with its own limits; or `default`: models that the provider
        chooses."""
        if bytes(raw)[:1] == b'"':
            self._models.append(Named(name, _text(raw, name)))
            return
        self._model_list(name, raw)
        for index, entry in enumerate(raw_elements(raw, f"$.{name}")):
            if bytes(entry)[:1] != b"{":
                continue
            for member, value in _members(entry, f"{name}[{index}]").items():
                path = f"{name}[{index}].{member}"
                if value == NULL:
                    continue
                if member == "max_tokens":
                    self._limit(path, value)
                elif member == "speed":
                    self._speed(path, value)
                elif member not in _FALLBACK_FIELDS:
                    self._unknown.append(path)

    def _flag(self, name: str, raw: msgspec.Raw) -> None:
        value = decode_value(raw, bool, f"$.{name}", request_error)
        self._values[name.rpartition(".")[2]] = value

    def _choices(self, name: str, raw: msgspec.Raw) -> None:
        if raw != NULL:
            self._values["n"] = _whole(raw, name, least=1, floats=self._renames)

    def _tier(self, name: str, raw: msgspec.Raw) -> None:
        if bytes(raw)[:1] == b"{":  # Bedrock's
            name, raw = f"{name}.type", _members(raw, name).get("type", NULL)
            if raw == NULL:
                return
        tier = _text(raw, name)
        if tier.lower() not in _STANDARD:
            self._tiers.append(Named(name, tier))
            self._values["service_tier"] = tier.lower()

    def _speed(self, name: str, raw: msgspec.Raw) -> None:
        speed = _text(raw, name)
        if speed != "standard":
            self._tiers.append(Named(name, speed))

    def _geo(self, name: str, raw: msgspec.Raw) -> None:
        self._values["geo"] = _text(raw, name)

    def _tool_list(self, name: str, raw: msgspec.Raw) -> None:
        read_tools(self.wire, name, raw, self._tools)

    def _mcp_servers(self, name: str, raw: msgspec.Raw) -> None:
        if bytes(raw) != b"[]":
            self._tools.remote_mcp.append(name)

    def _web_search(self, name: str, _: msgspec.Raw) -> None:
        self._tools.server.append(ServerTool(param=name, type="web_search_options", max_calls=1))

    def _max_tool_calls(self, name: str, raw: msgspec.Raw) -> None:
        self._values["max_tool_calls"] = _whole(raw, name, least=0)

    def _thread(self, _: str, __: msgspec.Raw) -> None:
        self._values["store"] = True

    def _thinking(self, name: str, raw: msgspec.Raw) -> None:
        """A budget of thinking tokens, under the providers' names for it."""
        kind = decode_value(raw, _Budget | bool | int | str, f"$.{name}", request_error)
        if isinstance(kind, _Budget):
            kind = kind.budget_tokens or kind.max_tokens or kind.thinkingBudget
        if isinstance(kind, str) and kind.strip().isdecimal():
            raise request_error("must be a number, not text", f"$.{name}")
        if type(kind) is int:
            self._values["budget"] = max(0, kind)
            if not self._table.limits_thinking:
                self._values["thinking_budget"] = max(0, kind)

    def _reasoning(self, name: str, raw: msgspec.Raw) -> None:
        """`pro` bills several answers as one."""
        self._thinking(name, raw)
        mode = _members(raw, name).get("mode", NULL)
        if mode != NULL and _text(mode, f"{name}.mode") not in ("", "standard"):
            self._unbounded.append(f"{name}.mode")

    def _modalities(self, name: str, raw: msgspec.Raw) -> None:
        """Audio and images in an answer have their own prices."""
        listed = decode_value(raw, list[str], f"$.{name}", request_error)
        if any(each.lower() != "text" for each in listed):
            self._unbounded.append(name)

    def _stored_prompt(self, _: str, raw: msgspec.Raw) -> None:  # noqa: ARG002
        self._values["stored_prompt"] = True

    def _prediction(self, _: str, raw: msgspec.Raw) -> None:
        self._values["predicted"] = memoryview(raw).nbytes

    def _context_edits(self, name: str, raw: msgspec.Raw) -> None:
        """Clearing blocks makes a prompt smaller; compaction is another call."""
        if name not in self._known.top:
            self._unbounded.append(name)
            return
        edits = decode_value(raw, _Edits, f"$.{name}", request_error).edits or []
        for edit in edits:
            if not edit.type.startswith("clear_"):
                self._unbounded.append(f"{name}.{edit.type}")

    def _generation_config(self, name: str, raw: msgspec.Raw) -> None:
        config = _camel_names(_members(raw, name), f"{name}.")
        for member, value in config.items():
            path = f"{name}.{member}"
            if value == NULL:
                continue
            if member == "maxOutputTokens":
                self._limit(path, value)
            elif member == "candidateCount":
                self._choices(path, value)
            elif member == "responseModalities":
                self._modalities(path, value)
            elif member == "thinkingConfig":
                inner = self._check_nested(path, value)
                budget = inner.get("thinkingBudget", NULL)
                if budget != NULL:
                    self._thinking(f"{path}.thinkingBudget", budget)

    # ── Bedrock's Converse ───────────────────────────────────────────────────────────────────────

    def _inference_config(self, name: str, raw: msgspec.Raw) -> None:
        self._limit(f"{name}.maxTokens", _members(raw, name).get("maxTokens", NULL))

    def _tool_config(self, name: str, raw: msgspec.Raw) -> None:
        tools = _members(raw, name).get("tools", NULL)
        if tools != NULL:
            self._tool_list(f"{name}.tools", tools)
            if self._table.one_member and _MAY_BE_POINT(bytes(tools)):
                for tool in decode_value(tools, list[_ToolPoint], f"$.{name}", request_error):
                    if tool.cachePoint is not None:
                        self._ttls.add("1h" if tool.cachePoint.ttl == "1h" else "5m")

    def _latency(self, name: str, raw: msgspec.Raw) -> None:
        latency = _members(raw, name).get("latency", NULL)
        if latency != NULL:
            self._speed(f"{name}.latency", latency)

    def _guardrail(self, name: str, _: msgspec.Raw) -> None:
        self._unbounded.append(name)

    def _model_fields(self, name: str, raw: msgspec.Raw) -> None:
        """Fields that Bedrock adds to the model's own request. They are read like those of a body;
        a prompt in them is not."""
        for member, value in _members(raw, name).items():
            path = f"{name}.{member}"
            if value == NULL or member == name:
                continue
            if member in self._content:
                self._unbounded.append(path)
            elif member == "anthropic_beta":
                listed = decode_value(value, list[str], f"$.{path}", request_error)
                self._betas += [Named(path, beta) for beta in listed]
            elif member in ("tools", "functions"):
                read_tools("anthropic", path, value, self._tools)
            elif (read := _READERS.get(member)) is not None:
                if path in self._known.nested:
                    self._check_nested(path, value)
                read(self, path, value)

    def _options(self, name: str, raw: msgspec.Raw) -> None:
        members = _members(raw, name)
        if "num_predict" in members:
            self._limit(f"{name}.num_predict", members["num_predict"])


class _NamesModel(msgspec.Struct):
    model: str | None = None


class _Budget(msgspec.Struct):
    budget_tokens: int | None = None
    max_tokens: int | None = None
    thinkingBudget: int | None = None


class _Point(msgspec.Struct):
    ttl: str | None = None


class _ToolPoint(msgspec.Struct):
    cachePoint: _Point | None = None


class _Edit(msgspec.Struct):
    type: str = ""


class _Edits(msgspec.Struct):
    edits: list[_Edit] | None = None


_WholeFloat: Any = int | Annotated[float, msgspec.Meta(multiple_of=1)]
_Read: TypeAlias = Callable[[_Reading, str, msgspec.Raw], None]


#: Readers by field name, which has the same meaning on every wire.
_READERS: dict[str, _Read] = {
    "model": _Reading._model,
    "models": _Reading._model_list,
    "fallbacks": _Reading._fallbacks,
    "max_tokens": _Reading._limit,
    "max_completion_tokens": _Reading._limit,
    "max_output_tokens": _Reading._limit,
    "generationConfig": _Reading._generation_config,
    "options": _Reading._options,
    "n": _Reading._choices,
    "stream": _Reading._flag,
    "store": _Reading._flag,
    "background": _Reading._flag,
    "tools": _Reading._tool_list,
    "functions": _Reading._tool_list,
    "max_tool_calls": _Reading._max_tool_calls,
    "mcp_servers": _Reading._mcp_servers,
    "web_search_options": _Reading._web_search,
    "service_tier": _Reading._tier,
    "serviceTier": _Reading._tier,
    "speed": _Reading._speed,
    "inference_geo": _Reading._geo,
    "thread": _Reading._thread,
    "thinking": _Reading._thinking,
    "thinking_budget": _Reading._thinking,
    "reasoning_config": _Reading._thinking,
    "reasoning": _Reading._reasoning,
    "modalities": _Reading._modalities,
    "prediction": _Reading._prediction,
    "prompt": _Reading._stored_prompt,
    "context_management": _Reading._context_edits,
    "inferenceConfig": _Reading._inference_config,
    "toolConfig": _Reading._tool_config,
    "performanceConfig": _Reading._latency,
    "guardrailConfig": _Reading._guardrail,
    "modelId": _Reading._model,
    "additionalModelRequestFields": _Reading._model_fields,
}


def _camel_names(members: Members, path: str) -> Members:
    """The members under Gemini's own names: it also accepts snake_case. A field under both names
    could be read differently by two readers."""
    if not any("_" in name for name in members):
        return members
    named: Members = {}
    for name, raw in members.items():
        own = camel(name)
        if own in named:
            raise request_error(f"is given twice, as {own} and in snake_case", f"$.{path}{own}")
        named[own] = raw
    return named


def _members(raw: msgspec.Raw, name: str) -> Members:
    members: Members = decode_value(raw, Members, f"$.{name}", request_error)
    return members


def _text(raw: msgspec.Raw, name: str) -> str:
    value: str = decode_value(raw, str, f"$.{name}", request_error)
    return value


def _whole(raw: msgspec.Raw, name: str, *, least: int | None, floats: bool = False) -> int:
    """`floats`: Google accepts 50.0 for 50."""
    kind = _WholeFloat if floats else int
    value = int(decode_value(raw, kind, f"$.{name}", request_error))
    if least is not None and value < least:
        raise request_error(f"must be at least {least}, not {value}", f"$.{name}")
    return value
