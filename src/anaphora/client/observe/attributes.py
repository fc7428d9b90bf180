"""A record as OpenTelemetry attributes: the conventions for generative AI, and our own.

Names are written out, since the package that holds the conventions' names calls its module private
and all of them moved; the tests hold them against it.
"""

from __future__ import annotations

from typing import TypeAlias

from anaphora.cache.verdict import Verdict
from anaphora.client.response import Attempt, Record
from anaphora.values import StopReason, Usage

from .exported import OTHER, address, block_label, error_type, label, queued, shares, word

Attribute: TypeAlias = str | bool | int | float | list[str] | list[int]
Attributes: TypeAlias = dict[str, Attribute]

#: A span names so many blocks; a backend may cut off longer lists.
_MOST_BLOCKS = 64

#: The conventions' names for services that have another name here.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "xai": "x_ai",
}

#: The conventions' words for why an answer ended; the others have none, and keep ours.
_STOPS: dict[StopReason, str] = {
    "end": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_call",
    "refusal": "content_filter",
}


def provider_name(system: str, host: str) -> str:
    """Whose service it is, as the conventions call it."""
    if system == "google" and host.endswith("aiplatform.googleapis.com"):
        return "gcp.vertex_ai"
    return _PROVIDERS.get(system) or word(system)


def starting(record: Record) -> Attributes:
    """What a sampler may ask for; the attributes that metrics have, too."""
    host, port = address(record.host)
    out: Attributes = {
        "gen_ai.operation.name": record.operation,
        "gen_ai.provider.name": provider_name(record.system, host),
        "gen_ai.request.model": word(record.model),
        "server.address": host,
    }
    if port is not None:
        out["server.port"] = port
    return out


def ending(record: Record) -> Attributes:
    """Everything else that is known when the call is over."""
    out: Attributes = {
        "anaphora.provider": label(record.provider),
        "anaphora.wire": word(record.wire),
        "anaphora.attempts": len(record.attempts),
        "anaphora.queued_seconds": queued(record),
    }
    _put(out, "error.type", error_type(record.error))
    _put(out, "gen_ai.request.max_tokens", record.max_tokens)
    _put(out, "gen_ai.request.temperature", record.temperature)
    _put_word(out, "gen_ai.response.model", record.answered_by)
    _put_word(out, "gen_ai.response.id", record.response_id)
    _put_word(out, "anaphora.request_id", record.request_id)
    if record.streamed:
        out["gen_ai.request.stream"] = True
        _put(out, "gen_ai.response.time_to_first_chunk", record.first)
    if record.stop is not None:
        out["gen_ai.response.finish_reasons"] = [_STOPS.get(record.stop, record.stop)]
    _put_usage(out, record.usage)
    _put(out, "anaphora.cache.predicted_tokens", record.predicted)
    if record.verdict is not None:
        _put_verdict(out, record.verdict)
    if record.cost_usd is not None:
        out["anaphora.cost_usd"] = float(record.cost_usd)
    if record.saved is not None:
        out["anaphora.saved_usd"] = float(record.saved)
    if record.blocks:
        by_label = shares(record.blocks, _MOST_BLOCKS)
        out["anaphora.blocks.labels"] = list(by_label)
        out["anaphora.blocks.tokens"] = list(by_label.values())
    if record.notices:
        out["anaphora.notices"] = [word(notice.code) for notice in record.notices]
    return out


def failing(attempt: Attempt, number: int) -> Attributes:
    """One attempt that was not answered: what went wrong, not what was said about it."""
    out: Attributes = {
        "error.type": error_type(attempt.error) or OTHER,
        "gen_ai.request.model": word(attempt.model),
        "anaphora.provider": label(attempt.provider),
        "anaphora.attempt.number": number,
        "anaphora.attempt.seconds": attempt.seconds,
        "anaphora.attempt.queued_seconds": attempt.queued,
    }
    _put(out, "http.response.status_code", attempt.status)
    _put_word(out, "anaphora.request_id", attempt.request_id)
    _put(out, "anaphora.attempt.wait_seconds", attempt.wait)
    return out


def _put_usage(out: Attributes, usage: Usage) -> None:
    # By the conventions, too, all input is input, cached or not.
    _put(out, "gen_ai.usage.input_tokens", usage.input)
    _put(out, "gen_ai.usage.output_tokens", usage.output)
    _put(out, "gen_ai.usage.cache_read.input_tokens", usage.read)
    _put(out, "gen_ai.usage.cache_creation.input_tokens", usage.written_total)
    _put(out, "gen_ai.usage.reasoning.output_tokens", usage.reasoning)


def _put_verdict(out: Attributes, verdict: Verdict) -> None:
    out["anaphora.cache.result"] = verdict.result
    out["anaphora.cache.lost_tokens"] = verdict.lost
    _put(out, "anaphora.cache.cause", verdict.cause)
    if verdict.cost_usd is not None:
        out["anaphora.cache.lost_usd"] = float(verdict.cost_usd)
    if (change := verdict.change) is not None:
        out["anaphora.cache.change.kind"] = change.kind
        out["anaphora.cache.change.label"] = block_label(change.label, change.section)


def _put(out: Attributes, key: str, value: Attribute | None) -> None:
    if value is not None:
        out[key] = value


def _put_word(out: Attributes, key: str, value: str | None) -> None:
    if value is not None:
        out[key] = word(value)
