"""The static server of bench/client.py: a bare Granian handler that answers by path.

    python bench/_client_answers.py fixed PORT

Each wire has one fixed answer of about 1 KB, with usage and cache counts: all but the newest tokens
were read. GET /seen returns how many requests came since the last GET, and how long they were.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from _client_workload import MODELS, PATHS, Json, prose
from _served import serve

TEXT = prose(760, 7)
READ, NEW, OUTPUT = 9_000, 180, 170


def _anthropic() -> Json:
    usage = {
        "input_tokens": NEW,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": READ,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": OUTPUT,
        "service_tier": "standard",
    }
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": MODELS["anthropic"],
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }


def _chat() -> Json:
    message: Json = {"role": "assistant", "content": TEXT, "refusal": None, "annotations": []}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": MODELS["openai_chat"],
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": READ + NEW,
            "completion_tokens": OUTPUT,
            "total_tokens": READ + NEW + OUTPUT,
            "prompt_tokens_details": {"cached_tokens": READ, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        },
        "service_tier": "default",
    }


def _responses() -> Json:
    text = {"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}
    message = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant"}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": MODELS["openai_responses"],
        "output": [{**message, "content": [text]}],
        "parallel_tool_calls": True,
        "store": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": READ + NEW,
            "input_tokens_details": {"cached_tokens": READ},
            "output_tokens": OUTPUT,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": READ + NEW + OUTPUT,
        },
    }


ANSWERS = {
    PATHS["anthropic"]: json.dumps(_anthropic()).encode(),
    PATHS["openai_chat"]: json.dumps(_chat()).encode(),
    PATHS["openai_responses"]: json.dumps(_responses()).encode(),
}

_seen = [0, 0]


async def fixed(scope: Any, receive: Any, send: Any) -> None:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    if scope["path"] == "/seen":
        data = json.dumps(_seen).encode()
        _seen[:] = 0, 0
    else:
        data = ANSWERS[scope["path"]]
        _seen[0] += 1
        _seen[1] += size
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": data, "more_body": False})


if __name__ == "__main__":
    serve(fixed, int(sys.argv[2]))
