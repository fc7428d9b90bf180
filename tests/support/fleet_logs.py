"""The calls of planted conversations as lines of the logs of other programs."""

from __future__ import annotations

import json
from typing import Any

from .planted import Json
from .planted_runs import Exchange, PlantedRun
from .planted_scripts import planted_run

#: Scripts with a loss, and the cause of it.
SCRIPTS = {
    "a growing conversation": None,
    "an expired entry": "expired",
    "a changed tool": "tools_changed",
    "a changed byte in the system prompt": "system_changed",
    "another model": "model_changed",
    "an edited message": "history_edited",
    "a loss at the provider": "provider_side",
}


def runs(place: str) -> list[PlantedRun]:
    return [planted_run(place, name) for name in SCRIPTS]


def logged(exchange: Exchange, conversation: str) -> Json:
    """As a request log has it."""
    fields = json.loads(exchange.line("openai"))
    return {**fields, "conversation": conversation, "account": "team"}


def litellm(exchange: Exchange, conversation: str) -> Json:
    """A `StandardLoggingPayload`."""
    body, answer = json.loads(exchange.body), json.loads(exchange.answer)
    params = {k: v for k, v in body.items() if k not in ("model", "messages")}
    return {
        "id": answer["id"],
        "trace_id": conversation,
        "call_type": "acompletion",
        "status": "success",
        "custom_llm_provider": "openai",
        "startTime": exchange.at,
        "endTime": exchange.at + 1,
        "model": body["model"],
        "metadata": {"user_api_key_alias": "team"},
        "messages": body["messages"],
        "response": answer,
        "model_parameters": params,
    }


def spend_log(exchange: Exchange, conversation: str) -> Json:
    """A row of LiteLLM's table, without prompts."""
    answer = json.loads(exchange.answer)
    return {
        "request_id": answer["id"],
        "call_type": "acompletion",
        "api_key": "0123abcd",
        "spend": 0.01,
        "startTime": "2026-11-18T10:00:00Z",
        "endTime": "2026-11-18T10:00:02Z",
        "model": "gpt-4.1",
        "custom_llm_provider": "openai",
        "metadata": json.dumps({"usage_object": answer["usage"]}),
        "messages": "{}",
        "response": "{}",
        "session_id": conversation,
    }


def langfuse(exchange: Exchange, conversation: str) -> Json:
    """A row of `observations_v2`."""
    body, answer = json.loads(exchange.body), json.loads(exchange.answer)
    usage = answer["usage"]
    read = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "id": answer["id"],
        "trace_id": f"trace of {conversation}",
        "session_id": conversation,
        "project_id": "team",
        "type": "GENERATION",
        "start_time": _stamp(exchange.at),
        "end_time": _stamp(exchange.at + 1),
        "provided_model_name": body["model"],
        "model_parameters": json.dumps({}),
        "input": json.dumps({"messages": body["messages"], "tools": body["tools"]}),
        "output": json.dumps(answer["choices"][0]["message"]),
        "usage_details": {
            "input": usage["prompt_tokens"] - read,
            "input_cached_tokens": read,
            "output": usage["completion_tokens"],
        },
    }


def telemetry(exchange: Exchange, conversation: str) -> Json:
    """A span in OTLP's JSON."""
    body, answer = json.loads(exchange.body), json.loads(exchange.answer)
    usage = answer["usage"]
    messages = [
        {"role": each["role"], "parts": _parts(each["content"])} for each in body["messages"]
    ]
    read = usage["prompt_tokens_details"]["cached_tokens"]
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": body["model"],
        "gen_ai.response.id": answer["id"],
        "gen_ai.conversation.id": conversation,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": read,
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.tool.definitions": json.dumps([tool["function"] for tool in body["tools"]]),
    }
    span = {
        "name": f"chat {body['model']}",
        "startTimeUnixNano": str(int(exchange.at * 1e9)),
        "endTimeUnixNano": str(int((exchange.at + 1) * 1e9)),
        "attributes": [{"key": k, "value": _typed(v)} for k, v in attributes.items()],
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "team"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}


FORMATS = {"requests": logged, "litellm": litellm, "langfuse": langfuse, "opentelemetry": telemetry}


def _typed(value: Any) -> Json:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def _parts(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    return [{"type": "text", "content": part.get("text", json.dumps(part))} for part in content]


def _stamp(at: float) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S.%f}"
