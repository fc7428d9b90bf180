"""The hosts of all providers, and the routes of their paths.

Each wire's own provider answers at its own paths: `/v1/messages`, `/v1/chat/completions`,
`/v1/responses`, `/v1beta/models/…`, `/model/…/converse`. Every provider answers below
its name, so that `http://…/deepseek` stands for `https://api.deepseek.com`; Vertex AI and Azure
have names of their own. Azure's older paths are also answered without its name.
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
from .clouds import BedrockHost, InvokeHost, VertexHost
from .gemini import GeminiHost
from .host import EmulatorRoute, Host
from .openai import OpenAIChatHost
from .openai_responses import OpenAIResponsesHost

#: By wire, or by the surface of dialects that differ in more than fields.
HOSTS: dict[str, type[Host]] = {
    host.surface or host.wire: host
    for host in (
        AnthropicHost,
        OpenAIChatHost,
        OpenAIResponsesHost,
        GeminiHost,
        BedrockHost,
        InvokeHost,
        VertexHost,
    )
}
#: The format of errors at paths where no host answers.
DEFAULT_WIRE = "openai_chat"
_ROUTES = 1024
#: Azure's paths before its v1 API: those with an api-version, which the AzureOpenAI class of the
#: openai SDK uses. A deployment is named in the path, and stands for the model of its name.
_AZURE = re.compile(
    r"(?:/azure)?/openai/(?:deployments/(?P<deployment>[^/]+)/)?(?P<rest>(?!v1/|deployments/).+)"
)
_PLACEHOLDER = re.compile(r"\{\w+\}")
#: Dialects whose paths are answered without the provider's name, as no other has them.
_UNNAMED = ("google/openai_chat", "azure/openai_chat/inference")
_SHARED = ("models", "model", "model_delete", "files", "file", "file_content")


def host_name(row: Dialect) -> str:
    """The name of a dialect's host in `HOSTS`."""
    return row.surface if row.envelope or row.methods else row.wire


class HostRoutes:
    """The hosts of one engine by path."""

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        self.hosts = {name: host(billing, ids) for name, host in HOSTS.items()}
        self._rows: dict[str, list[tuple[re.Pattern[str], Dialect]]] = {"": []}
        for row in catalog.dialects().rows:
            names = dict.fromkeys((row.provider, row.known_as or row.provider))
            rows = [self._rows.setdefault(name, []) for name in names]
            if not self._host(row).generate_path:
                continue  # a host that reads whole paths
            if row.provider == wire.PROVIDERS[row.wire] or row.name in _UNNAMED:
                rows.append(self._rows[""])
            for each in rows:
                each.append((self._root(row), row))
            if row.wire == "anthropic" and row.provider == "anthropic" and not row.surface:
                self._rows[""].append((re.compile(""), row))  # some clients leave out /v1
        self._find = functools.lru_cache(maxsize=_ROUTES)(self._route)

    def find(self, method: str, path: str, headers: Mapping[str, str]) -> EmulatorRoute | None:
        """The route of a request; None if no host answers."""
        return self._find(method, path, "x-goog-api-key" in headers, "anthropic-version" in headers)

    def codec(self, path: str, headers: Mapping[str, str]) -> Wire:
        """The error format that a client expects at a path where no host answers."""
        path = "/" + path.strip("/")
        first, _, rest = path[1:].partition("/")
        rows = self._rows.get(first) if first else None
        if "model" in (first, rest.partition("/")[0] if first == "bedrock" else ""):
            return wire.get("bedrock")
        if rows:
            return wire.codec_for(rows[0][1])
        if "anthropic-version" in headers or "/messages" in path:
            return wire.get("anthropic")
        if "x-goog-api-key" in headers or path.startswith(("/v1beta", "/v1alpha")):
            return wire.get("gemini")
        return wire.get(DEFAULT_WIRE)

    def _route(self, method: str, path: str, google: bool, anthropic: bool) -> EmulatorRoute | None:
        path = "/" + path.strip("/")
        first, _, rest = path[1:].partition("/")
        provider = first if first in self._rows else ""
        if provider:
            path = "/" + rest
        deployment = ""
        if (dated := _AZURE.fullmatch(f"/{first}/{rest}")) is not None:
            provider, deployment = "azure", dated["deployment"] or ""
            path = f"/openai/v1/{dated['rest']}"
        for root, row in self._rows[provider]:
            begin = root.match(path)
            if begin is None or path[begin.end() : begin.end() + 1] != "/":
                continue
            host = self._host(row)
            operation, name = host.operation(method, path[begin.end() :]) or (None, "")
            if operation is None:
                continue
            # Models and files of several providers have one path: the headers tell clients apart.
            shared = operation in _SHARED and not provider
            if shared and (google or anthropic != (row.wire == "anthropic")):
                continue
            name = name or deployment
            return EmulatorRoute(host, row, wire.codec_for(row), operation, path, name)
        gemini, bedrock = self.hosts["gemini"], self.hosts["bedrock"]
        if provider in ("", "google", "vertex") and isinstance(gemini, GeminiHost):
            found = gemini.route(method, path)
            if found is not None:
                return found
        if provider in ("", "bedrock") and isinstance(bedrock, BedrockHost):
            return bedrock.route(method, path)
        return None

    def _host(self, row: Dialect) -> Host:
        return self.hosts[host_name(row)]

    def _root(self, row: Dialect) -> re.Pattern[str]:
        """The part of a dialect's paths before that of its host."""
        host = self._host(row)
        base, path = row.base_url.partition("//")[2].partition("/")[2], host.root
        if row.path:
            path = row.path.partition("?")[0].removesuffix(host.generate_path)
        root = (f"/{base}" if base else "") + ("" if row.methods else path)
        return re.compile("[^/]+".join(map(re.escape, _PLACEHOLDER.split(root))))
