"""The hosts of all providers, and the routes of their paths.

Each wire's own provider answers at its own paths: `/v1/messages`, `/v1/chat/completions`,
`/v1/responses`, `/v1beta/models/…`, `/api/chat`. Every provider answers below its name, so that
`http://…/deepseek` stands for `https://api.deepseek.com`. Azure's older paths are also answered
without its name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from anaphora import catalog, wire
from anaphora.catalog import Dialect
from anaphora.emulator.journal import Billing
from anaphora.emulator.replies.text import IdGenerator
from anaphora.wire import Wire

from .anthropic import AnthropicHost
from .gemini import GeminiHost
from .host import EmulatorRoute, Host
from .ollama import OllamaHost
from .openai import OpenAIChatHost
from .openai_responses import OpenAIResponsesHost

HOSTS: dict[str, type[Host]] = {
    host.wire: host
    for host in (AnthropicHost, OpenAIChatHost, OpenAIResponsesHost, GeminiHost, OllamaHost)
}
#: The format of errors at paths where no host answers.
DEFAULT_WIRE = "openai_chat"
_ROUTES = 1024
#: Azure's paths before its v1 API: those with an api-version, which the AzureOpenAI class of the
#: openai SDK uses. A deployment is named in the path, and stands for the model of its name.
_AZURE = re.compile(
    r"(?:/azure)?/openai/(?:deployments/(?P<deployment>[^/]+)/)?(?P<rest>(?!v1/|deployments/).+)"
)
_SHARED = ("models", "model", "model_delete", "files", "file", "file_content")


class HostRoutes:
    """The hosts of one engine by path."""

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        self.hosts = {name: host(billing, ids) for name, host in HOSTS.items()}
        self._rows: dict[str, list[tuple[str, Dialect]]] = {"": []}
        self._unanswered: list[tuple[str, Dialect]] = []
        for row in catalog.dialects().rows:
            rows = self._rows.setdefault(row.provider, [])
            host = self.hosts.get(row.wire)
            if host is None or row.envelope:
                self._unanswered.append((row.request_path + "/", row))
                continue
            if not host.generate_path:
                continue
            rows.append((self._root(row), row))
            if row.provider == wire.PROVIDERS[row.wire]:
                self._rows[""].append((self._root(row), row))
            if row.wire == "anthropic" and row.provider == "anthropic":
                self._rows[""].append(("", row))  # some clients leave out /v1
        # Google's other wire has a path of its own.
        row = catalog.dialects().find("google", "openai_chat")
        self._rows[""].append((self._root(row), row))
        self._find = functools.lru_cache(maxsize=_ROUTES)(self._route)

    def find(self, method: str, path: str, headers: Mapping[str, str]) -> EmulatorRoute | None:
        """The route of a request; None if no host answers."""
        return self._find(method, path, "x-goog-api-key" in headers, "anthropic-version" in headers)

    def codec(self, path: str, headers: Mapping[str, str]) -> Wire:
        """The error format that a client expects at a path where no host answers."""
        path = "/" + path.strip("/")
        first, _, rest = path[1:].partition("/")
        rows = self._rows.get(first) if first else None
        for start, row in self._unanswered:
            if path.startswith(start) or (first == row.provider and f"/{rest}".startswith(start)):
                return wire.codec_for(row)
        if rows:
            return wire.codec_for(rows[0][1])
        if "anthropic-version" in headers or "/messages" in path:
            return wire.get("anthropic")
        if "x-goog-api-key" in headers or path.startswith(("/v1beta", "/v1alpha")):
            return wire.get("gemini")
        return wire.get("ollama" if first == "api" else DEFAULT_WIRE)

    def _route(self, method: str, path: str, google: bool, anthropic: bool) -> EmulatorRoute | None:
        path = "/" + path.strip("/")
        first, _, rest = path[1:].partition("/")
        provider = first if first in self._rows else ""
        if provider:
            path = "/" + rest
        deployment = ""
        if (found := _AZURE.fullmatch(f"/{first}/{rest}")) is not None:
            provider, deployment = "azure", found["deployment"] or ""
            path = f"/openai/v1/{found['rest']}"
        for root, row in self._rows[provider]:
            if not path.startswith(root + "/"):
                continue
            host = self.hosts[row.wire]
            operation, name = host.operation(method, path[len(root) :]) or (None, "")
            if operation is None:
                continue
            # Models and files of several providers have one path: the headers tell clients apart.
            shared = operation in _SHARED and not provider
            if shared and (google or anthropic != (row.wire == "anthropic")):
                continue
            name = name or deployment
            return EmulatorRoute(host, row, wire.codec_for(row), operation, path, name)
        gemini = self.hosts["gemini"]
        if provider in ("", "google") and isinstance(gemini, GeminiHost):
            return gemini.route(method, path)
        return None

    def _root(self, row: Dialect) -> str:
        """The part of a dialect's paths before that of its host."""
        host = self.hosts[row.wire]
        return row.path.removesuffix(host.generate_path) if row.path else host.root
