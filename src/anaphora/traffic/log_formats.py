"""Calls in the logs of other programs: LiteLLM, Langfuse, OpenTelemetry (GenAI), and recordings.

    for fields in calls_in(decoded_line): ...

A call has the names that `request_log` reads: `request`, `response`, `provider`, `time`, … A call
without its prompt is a row of an audit log (`"row": "call"`): it can be summed, not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from blake3 import blake3

from anaphora.analysis.trace.log_lines import seconds
from anaphora.errors import InvalidRequest

from .log_calls import (
    Fields,
    LoggedBill,
    call_of,
    calls_of_telemetry,
    count_of,
    either,
    first_of,
    is_telemetry,
    object_of,
    value_of,
)

_MADE_UP = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
#: Names in Langfuse's usage details.
_READ = ("cache_read_input_tokens", "input_cached_tokens", "input_cache_read", "cached_tokens")
_WRITTEN = (
    "cache_creation_input_tokens", "input_cache_creation", "input_cache_creation_tokens",
    "input_cache_write_tokens", "input_cache_creation_5m", "input_cache_creation_1h",
)  # fmt: skip


class LogFormat(NamedTuple):
    name: str
    recognises: Callable[[Fields], bool]
    calls: Callable[[Fields], Iterator[Fields]]


def format_of(fields: Fields) -> LogFormat | None:
    """The format of a decoded line; None if it is unknown."""
    return next((one for one in FORMATS if one.recognises(fields)), None)


def calls_in(fields: Fields) -> Iterator[Fields]:
    """The calls in a decoded line of a log; raises `InvalidRequest` if its format is unknown."""
    found = format_of(fields)
    if found is None:
        names = ", ".join(one.name for one in FORMATS)
        raise InvalidRequest(f"no known log format; understood are {names}")
    return found.calls(fields)


# ── Ours ─────────────────────────────────────────────────────────────────────────────────────────


def _is_logged(fields: Fields) -> bool:
    from .request_log import recognises

    return recognises(fields) and "call_type" not in fields


def _itself(fields: Fields) -> Iterator[Fields]:
    yield fields


def _is_recording(fields: Fields) -> bool:
    return "pieces" in fields and "raw_hash" in fields


def _recording(fields: Fields) -> Iterator[Fields]:
    """A file of `anaphora record`."""
    pieces = [piece[1] for piece in fields["pieces"]]
    if fields.get("failure") or not all(isinstance(piece, str) for piece in pieces):
        return
    yield {
        "request": fields.get("request"),
        "response": "".join(pieces),
        **{name: fields.get(name) for name in ("provider", "path", "status")},
        "model": fields.get("model") or "",
        "time": fields.get("recorded"),
        "program": "recordings",
    }


def _is_audit_row(fields: Fields) -> bool:
    return "row" in fields and "at" in fields


def _audit_rows(fields: Fields) -> Iterator[Fields]:
    if fields["row"] == "call":
        yield fields


def _is_audit_column(fields: Fields) -> bool:
    return "prompt_hash" in fields and "cost_nano_usd" in fields and "row" not in fields


def _audit_columns(fields: Fields) -> Iterator[Fields]:
    """A row that `anaphora usage --out` wrote, whose columns are flat."""
    kept = {k: v for k, v in fields.items() if v is not None}
    usage: Fields = {
        k: kept.pop(k) for k in ("uncached", "read", "output", "reasoning") if k in kept
    }
    if (written := kept.pop("written", None)) is not None:
        usage["written"] = {"unsplit": written}
    kept["at"] = seconds(kept["at"])
    yield {**kept, "row": "call", "usage": usage}


# ── LiteLLM ──────────────────────────────────────────────────────────────────────────────────────


def _is_litellm(fields: Fields) -> bool:
    return "call_type" in fields and "startTime" in fields


def _litellm(fields: Fields) -> Iterator[Fields]:
    """A `StandardLoggingPayload`, or a row of the table of spend logs."""
    kind = str(fields.get("call_type") or "")
    if fields.get("status") == "failure" or "embedding" in kind or fields.get("cache_hit") is True:
        return
    metadata = object_of(fields.get("metadata"))
    response = object_of(fields.get("response"))
    usage = object_of(response.get("usage")) or object_of(metadata.get("usage_object"))
    sent = object_of(fields.get("proxy_server_request"))
    messages = sent.get("messages") or sent.get("input") or value_of(fields.get("messages"))
    params = {**sent, **object_of(fields.get("model_parameters"))}
    keys = ("user_api_key_team_alias", "user_api_key_alias", "user_api_key_team_id")
    account = first_of(metadata, (*keys, "user_api_key_hash"))
    # Without a session, LiteLLM makes up an id for each call.
    named = (fields.get("session_id"), fields.get("trace_id"))
    own = [str(one) for one in named if one and not _MADE_UP(str(one))]
    own.append(str(object_of(metadata.get("requester_metadata")).get("session_id") or ""))
    yield from call_of(
        program="litellm",
        provider=str(fields.get("custom_llm_provider") or ""),
        model=str(fields.get("model") or ""),
        messages=messages if isinstance(messages, list | str) and messages else None,
        params={k: v for k, v in params.items() if k not in ("messages", "input", "model")},
        response=response,
        bill=_openai_bill(usage or fields),
        form="responses"
        if "responses" in kind
        else "own"
        if kind.endswith("anthropic_messages")
        else "chat",
        common={
            "id": fields.get("id") or fields.get("request_id"),
            "time": fields.get("startTime"),
            "end_time": fields.get("endTime"),
            "conversation": own[0],
            "account": account or fields.get("team_id") or _key_name(fields.get("api_key")),
        },
    )


def _key_name(key: Any) -> str:
    """LiteLLM logs the digest of a key; a key itself is never shown."""
    text = str(key or "")
    return blake3(text.encode()).hexdigest(8) if text.startswith("sk-") else text


def _openai_bill(usage: Fields) -> LoggedBill | None:
    details = object_of(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
    whole = count_of(usage, ("prompt_tokens", "input_tokens"))
    output = count_of(usage, ("completion_tokens", "output_tokens"))
    if not whole:
        return None  # a stream without a bill
    read = count_of(details, ("cached_tokens",))
    written = count_of(details, ("cache_write_tokens", "cache_creation_tokens"))
    if "cache_creation_input_tokens" in usage:
        written = count_of(usage, ("cache_creation_input_tokens",))
    return LoggedBill(max(0, whole - (read or 0) - (written or 0)), read, written, output or 0)


# ── Langfuse ─────────────────────────────────────────────────────────────────────────────────────


def _is_langfuse(fields: Fields) -> bool:
    return "type" in fields and ("trace_id" in fields or "traceId" in fields)


def _langfuse(fields: Fields) -> Iterator[Fields]:
    """An observation, as exported to a blob storage or returned by the API."""
    if fields.get("type") != "GENERATION":
        return
    given, params = value_of(fields.get("input")), object_of(either(fields, "model_parameters"))
    if isinstance(given, dict):
        params = {**params, **{k: v for k, v in given.items() if k not in ("messages", "model")}}
        given = given.get("messages")
    if "tools" not in params and (tools := value_of(either(fields, "tool_definitions"))):
        params["tools"] = [*tools.values()] if isinstance(tools, dict) else tools
    usage = object_of(either(fields, "usage_details"))
    uncached, output = count_of(usage, ("input",)), count_of(usage, ("output",))
    written = [usage[name] for name in _WRITTEN if isinstance(usage.get(name), int)]
    bill = None
    if uncached is not None or output is not None:
        total = sum(written) if written else None
        bill = LoggedBill(uncached or 0, count_of(usage, _READ), total, output or 0)
    model = str(first_of(fields, ("provided_model_name", "providedModelName", "model")) or "")
    yield from call_of(
        program="langfuse",
        provider=_provider_of(model, object_of(fields.get("metadata"))),
        model=model,
        messages=given if isinstance(given, list) and given else None,
        params=params,
        response={"output": value_of(fields.get("output"))},
        bill=bill,
        common={
            "id": fields.get("id"),
            "time": either(fields, "start_time"),
            "end_time": either(fields, "end_time"),
            "conversation": either(fields, "session_id") or either(fields, "trace_id") or "",
            "account": either(fields, "project_id") or "",
        },
    )


def _provider_of(model: str, metadata: Fields) -> str:
    """The provider that the metadata names, else the one whose models begin like this one."""
    named = metadata.get("ls_provider") or metadata.get("provider")
    if isinstance(named, str) and named:
        return named
    head, slash, _ = model.partition("/")
    if slash:
        return head
    for beginning, provider in _BEGINNINGS:
        if model.startswith(beginning):
            return provider
    return ""


_BEGINNINGS = (
    ("claude", "anthropic"), ("gpt", "openai"), ("o1", "openai"), ("o3", "openai"),
    ("o4", "openai"), ("chatgpt", "openai"), ("gemini", "google"), ("deepseek", "deepseek"),
    ("grok", "xai"), ("mistral", "mistral"), ("kimi", "moonshot"), ("glm", "zai"),
)  # fmt: skip


FORMATS = (
    LogFormat("audit rows", _is_audit_row, _audit_rows),
    LogFormat("rows of `anaphora usage --out`", _is_audit_column, _audit_columns),
    LogFormat("recordings", _is_recording, _recording),
    LogFormat("LiteLLM's logging payloads and spend logs", _is_litellm, _litellm),
    LogFormat("Langfuse's observations", _is_langfuse, _langfuse),
    LogFormat("OpenTelemetry's GenAI spans and events", is_telemetry, calls_of_telemetry),
    LogFormat("request logs (`request` and `response` in each line)", _is_logged, _itself),
)
