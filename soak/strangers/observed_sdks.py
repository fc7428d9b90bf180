"""The official SDKs of this environment, observed: each asks twice, and both calls have a verdict.

    python observed_sdks.py URL

Prints one JSON object: for each way to ask, the turns that were judged, or the error.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from support.observed import ASYNC, GUIDE, SYNC, addresses, claude, close

import anaphora

SDKS = ("anthropic", "openai", "google-genai", "mistralai")


async def asked_sync(name: str, url: str) -> list[int]:
    make, ask = SYNC[name]
    client, calls = make(url), list[Any]()
    anaphora.observe(client, on_verdict=calls.append, addresses=addresses(url))
    for _ in range(2):
        await asyncio.to_thread(ask, client)
    await close(client)
    return [call.turn for call in calls if call.usage is not None]


async def asked_async(name: str, url: str) -> list[int]:
    make, ask = ASYNC[name]
    client = make(url)
    with anaphora.observing(addresses=addresses(url)) as seen:
        for _ in range(2):
            await ask(client)
    await close(client)
    return [call.turn for call in seen.calls if call.usage is not None]


async def asked_bedrock(client_name: str, _: str) -> list[int]:
    """Signed requests: never changed, also where markers are asked for."""
    import anthropic

    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [{"type": "text", "text": "Fine."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 2000, "output_tokens": 3},
    }
    sent: list[bytes] = []
    calls: list[Any] = []

    def answered(request: Any) -> Any:
        assert request.headers["authorization"].startswith("AWS4-")
        sent.append(request.content)
        return sys.modules[type(request).__module__.partition(".")[0]].Response(200, json=answer)

    client = getattr(anthropic, client_name)(
        aws_region="us-east-1", aws_access_key="AKIA", aws_secret_key="not-a-key"
    )
    package = sys.modules[type(client._client).__mro__[2].__module__.partition(".")[0]]
    client._client._transport = package.MockTransport(answered)
    client._client._mounts.clear()
    anaphora.observe(client, on_verdict=calls.append, mark=True)
    fields = {**claude(), "model": "anthropic.claude-opus-5-5", "system": GUIDE}
    for _turn in range(2):
        await asyncio.to_thread(client.messages.create, **fields)
    assert not any(b"cache_control" in body for body in sent)
    return [call.turn for call in calls if call.provider == "bedrock"]


def attempt(asked: Any, name: str, url: str) -> Any:
    from anaphora.integrations.observation import shared

    shared.cache_clear()
    try:
        return asyncio.run(asked(name, url))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    warnings.simplefilter("ignore")
    url = sys.argv[1]
    results = {f"sync {name}": attempt(asked_sync, name, url) for name in SYNC}
    results |= {f"async {name}": attempt(asked_async, name, url) for name in ASYNC}
    if find_spec("boto3"):
        results["bedrock"] = attempt(asked_bedrock, "AnthropicBedrock", url)
    print(json.dumps({"versions": {name: version(name) for name in SDKS}, "results": results}))


if __name__ == "__main__":
    main()
