"""Recorded exchanges, asked by the official SDKs: each sends a recorded request as it is, and reads
the answer into its own types.

    with asker("anthropic", proxy.url_of("anthropic")) as ask:      through a server
        ask(record)
    with asker("anthropic") as ask:                                 the recorded answer itself
        ask(record)
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import anthropic
import httpx
import httpx2
import openai
from anthropic.types import Message, RawMessageStreamEvent
from google import genai
from google.genai import errors as genai_errors
from google.genai import types
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from support.exchanges import Json

#: In every request.
KEY = "sk-canary-9aF3xLq8ZtP2mK7v"
_UNUSED = "http://provider.test"

#: Sends one exchange's request, and returns what the SDK read, or the error it raised.
Ask: TypeAlias = Callable[[Json], Any]


class RecordedProvider:
    """Answers with one exchange at a time, without a network."""

    def __init__(self) -> None:
        self.record: Json = {}

    def transport(self, library: Any) -> Any:
        """For a client of httpx, or of its successor."""

        def handle(_: Any) -> Any:
            headers = {"content-type": self.record["content_type"]}
            return library.Response(
                self.record["status"], headers=headers, text=self.record["response"]
            )

        return library.MockTransport(handle)

    def before(self, ask: Ask) -> Ask:
        def answered(record: Json) -> Any:
            self.record = record
            return ask(record)

        return answered


@contextmanager
def asker(wire: str, base_url: str | None = None) -> Iterator[Ask]:
    """Asks a server for exchanges of a wire; without one, the exchange itself answers."""
    provider, (library, make) = RecordedProvider(), _ASKERS[wire]
    transport = provider.transport(library) if base_url is None else None
    # Nothing here uses TLS, and reading the certificates for each client takes long.
    with library.Client(transport=transport, verify=False) as http:
        ask = make(base_url or _UNUSED, http)
        yield provider.before(ask)


def _anthropic(base_url: str, http: Any) -> Ask:
    sdk = anthropic.Anthropic(api_key=KEY, base_url=base_url, max_retries=0, http_client=http)
    return _stainless(sdk, anthropic.Stream[RawMessageStreamEvent], Message)


def _chat(base_url: str, http: Any) -> Ask:
    sdk = openai.OpenAI(api_key=KEY, base_url=base_url, max_retries=0, http_client=http)
    return _stainless(sdk, openai.Stream[ChatCompletionChunk], ChatCompletion)


def _responses(base_url: str, http: Any) -> Ask:
    sdk = openai.OpenAI(api_key=KEY, base_url=base_url, max_retries=0, http_client=http)
    return _stainless(sdk, openai.Stream[ResponseStreamEvent], Response)


def _stainless(sdk: Any, stream_type: Any, cast_to: Any) -> Ask:
    def ask(record: Json) -> Any:
        options: dict[str, Any] = {"body": json.loads(record["request"]), "cast_to": cast_to}
        if record["stream"]:
            options |= {"stream": True, "stream_cls": stream_type}
        try:
            read = sdk.post(record["path"], **options)
            return list(read) if record["stream"] else read
        except (anthropic.APIError, openai.APIError) as error:
            return type(error), getattr(error, "status_code", None), error.body, error.message

    return ask


def _gemini(base_url: str, http: Any) -> Ask:
    unused = {"verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}
    options = types.HttpOptions(
        base_url=base_url, httpx_client=http, client_args=unused, async_client_args=unused
    )
    api = genai.Client(api_key=KEY, http_options=options)._api_client

    def ask(record: Json) -> Any:
        version, path = record["path"].strip("/").split("/", 1)
        body, at = json.loads(record["request"]), types.HttpOptions(api_version=version)
        try:
            if record["stream"]:
                chunks = api.request_streamed("post", f"{path}?alt=sse", body, at)
                bodies = [chunk.body for chunk in chunks]
            else:
                bodies = [api.request("post", path, body, at).body]
        except genai_errors.APIError as error:
            return type(error), error.code, error.details
        reads = types.GenerateContentResponse._from_response
        values = [json.loads(each or "{}") for each in bodies]
        return [reads(response=value, kwargs={}) for value in values]

    return ask


def _plain(base_url: str, http: Any) -> Ask:
    """Without an SDK, for a service whose own is not installed."""

    def ask(record: Json) -> Any:
        response = http.post(base_url + record["path"], content=record["request"])
        return response.status_code, response.json()

    return ask


#: The HTTP library of each SDK, and how to ask with it.
_ASKERS: dict[str, tuple[Any, Callable[[str, Any], Ask]]] = {
    "anthropic": (httpx2, _anthropic),
    "openai_chat": (httpx2, _chat),
    "openai_responses": (httpx2, _responses),
    "gemini": (httpx, _gemini),
    "bedrock": (httpx, _plain),
}
