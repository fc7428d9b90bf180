"""Single calls without a client: `anaphora.complete` and `anaphora.acomplete`.

    anaphora.complete("claude-sonnet-5-5", "Hello?").text
    (await anaphora.acomplete("openai/gpt-6.1-sol", "Hello?")).text

All calls of a process share one `Client` with a background thread, usable from any thread and event
loop. Keys come from the environment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Unpack, overload

from anaphora import catalog
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call

from .choice import EXAMPLE_MODEL, check_content, missing_content
from .client import AsyncClient
from .config import environment
from .content import Content
from .options import SingleCallOptions
from .response import Output, Response
from .structured import Structured
from .sync import Client

#: Longer texts are not names of models.
_LONGEST_NAME = 100


@overload
def complete(
    model: str,
    content: Call | Content,
    *,
    output: None = None,
    **options: Unpack[SingleCallOptions],
) -> Response[None]: ...
@overload
def complete(
    model: str,
    content: Call | Content,
    *,
    output: type[Output] | Structured[Output],
    **options: Unpack[SingleCallOptions],
) -> Response[Output]: ...
@overload
def complete(
    model: str,
    content: Call | Content,
    *,
    output: object,
    **options: Unpack[SingleCallOptions],
) -> Response[Any]: ...
def complete(
    model: str = "", /, content: Any = None, *, output: Any = None, **options: Any
) -> Response[Any]:
    """The response to a single call, with the keys in the environment (`ANTHROPIC_API_KEY`, …).

    `model` is `model` or `provider/model`; `content` and the options are those of
    `AsyncClient.complete`.
    """
    model = _checked_model(model, content, options)
    return _shared.client().complete(content, model=model, output=output, **options)


@overload
async def acomplete(
    model: str,
    content: Call | Content,
    *,
    output: None = None,
    **options: Unpack[SingleCallOptions],
) -> Response[None]: ...
@overload
async def acomplete(
    model: str,
    content: Call | Content,
    *,
    output: type[Output] | Structured[Output],
    **options: Unpack[SingleCallOptions],
) -> Response[Output]: ...
@overload
async def acomplete(
    model: str,
    content: Call | Content,
    *,
    output: object,
    **options: Unpack[SingleCallOptions],
) -> Response[Any]: ...
async def acomplete(
    model: str = "", /, content: Any = None, *, output: Any = None, **options: Any
) -> Response[Any]:
    """As `complete`, in any event loop."""
    model = _checked_model(model, content, options)
    client = _shared.client()
    return await client._background.call_from_loop(
        lambda: client._client.complete(content, model=model, output=output, **options)
    )


def _checked_model(model: Any, content: object, options: dict[str, Any]) -> str:
    """The model, which is also taken from the keywords. `complete` of a client takes the content
    first."""
    named = options.pop("model", None)
    if model and named:  # complete("Hi", model=…), as of a client
        reason = f"the model comes first: anaphora.complete({named!r}, …)"
        raise InvalidRequest(reason, path="model")
    model = model or named
    if not model:
        raise missing_content(model, options, model_first=True)
    if isinstance(model, Mapping):
        check_content(model, None, options, model_first=True)
    if not isinstance(model, str):
        reason = f"must be a model's name, not {type(model).__name__}: the model comes first"
        raise InvalidRequest(
            f"{reason}, as in anaphora.complete('{EXAMPLE_MODEL}', …)", path="model"
        )
    check_content(content, model, options, model_first=True)
    if isinstance(content, str) and len(content) <= _LONGEST_NAME:
        swapped = catalog.maker_of(content) is not None and len(content.split()) == 1
        if swapped and "/" not in model and catalog.maker_of(model) is None:
            reason = f"the model comes first: anaphora.complete({content!r}, …)"
            raise InvalidRequest(reason, path="model")
    return model


class _SharedClient:
    """The client of this process, made on first use, and again when a variable has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._variables = 0

    def client(self) -> Client:
        with self._lock:
            variables = environment.state()
            # Calls that have begun keep the former client, which closes itself after the last.
            former, client = self._client, self._client
            if client is None or variables != self._variables:
                client = Client(AsyncClient.of_environment(environment.Environment()))
                self._client, self._variables = client, variables
        del former
        return client

    def leave_to_parent(self) -> None:
        """After a fork: the thread and the connections are the parent's. They are kept, so that
        nothing is closed here."""
        self._inherited = self._client
        self._client, self._lock = None, threading.Lock()


_shared = _SharedClient()


def shared_client() -> Client:
    """The client of `complete` and `acomplete`, for adapters without their own."""
    return _shared.client()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.leave_to_parent)
