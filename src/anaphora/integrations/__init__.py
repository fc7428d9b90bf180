"""Anaphora in programs that call providers through other libraries.

sdk           hooks for the official SDKs, and for all calls on httpx, aiohttp and http.client
langchain     ChatAnaphora, a chat model for LangChain
pydantic_ai   AnaphoraModel, a model for agents of pydantic-ai
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "sdk":
        return import_module("anaphora.integrations.sdk")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
