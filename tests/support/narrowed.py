"""Narrowed tokens of an app under test, and calls with them.

task = narrowed(daemon, usd=0.5)
assert task.call("health")["app"] == "demo"
"""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai

from .daemon import NO_TLS, TestedDaemon
from .rpc_calls import request
from .waiting import PATIENCE


class NarrowedApp:
    """A caller with a narrowed token."""

    def __init__(self, daemon: TestedDaemon, made: dict[str, Any]) -> None:
        self.daemon = daemon
        self.made = made
        self.id: str = made["token_id"]
        self.token: str = made["token"]
        self.headers = {"authorization": f"Bearer {self.token}"}

    def http(self, daemon: TestedDaemon | None = None) -> httpx.Client:
        """At another node, if one is given."""
        return (daemon or self.daemon).client(None, headers=self.headers)

    def rpc(self, method: str, /, **params: Any) -> Any:
        """The response."""
        with self.http() as client:
            return client.post("/rpc", json=request(method, **params)).json()

    def call(self, method: str, /, **params: Any) -> Any:
        """The result."""
        answer = self.rpc(method, **params)
        assert "error" not in answer, answer
        return answer["result"]

    def narrow(self, **params: Any) -> NarrowedApp:
        return NarrowedApp(self.daemon, self.call("llm.narrow", **{**WANTED, **params}))

    def anthropic(self) -> anthropic.Anthropic:
        http = anthropic.DefaultHttpxClient(verify=NO_TLS)
        return anthropic.Anthropic(
            base_url=self.daemon.url,
            api_key=self.token,
            max_retries=0,
            timeout=PATIENCE,
            http_client=http,
        )

    def openai(self) -> openai.OpenAI:
        http = openai.DefaultHttpxClient(verify=NO_TLS)
        return openai.OpenAI(
            base_url=f"{self.daemon.url}/v1",
            api_key=self.token,
            max_retries=0,
            timeout=PATIENCE,
            http_client=http,
        )


WANTED: dict[str, Any] = {"usd": 1, "expires_s": 3600}


def whole(daemon: TestedDaemon, app: str = "demo") -> NarrowedApp:
    """The same methods with the app's own token."""
    return NarrowedApp(daemon, {"token_id": "", "token": daemon.token(app)})


def narrowed(daemon: TestedDaemon, app: str = "demo", **params: Any) -> NarrowedApp:
    return whole(daemon, app).narrow(**params)
