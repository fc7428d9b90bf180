"""MCP servers whose tools a session uses: processes (stdio) and addresses (streamable HTTP).

    chat = client.session("anthropic-default", mcp=[McpServer(command=("uvx", "mcp-server-git"))])
    chat = client.session("anthropic-default", mcp=["files"])           from `mcp:` in llm.yaml

The official package `mcp` speaks the protocol; it comes with the extra `anaphora[mcp]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from anaphora.client.config import ClientConfig, Key, McpServer
from anaphora.client.config.secrets import SecretHeaders, SecretVariables, find_key
from anaphora.errors import InvalidRequest
from anaphora.redaction import Redactor, hides_arguments, shown_name
from anaphora.yaml_values import Origin

__all__ = ["ConfiguredServers", "McpServer", "ServerSettings"]


ADDED = "mcp_tools_added"
"""The notice code for added tools: everything after the tools is written again."""


class ServerSettings(msgspec.Struct, frozen=True):
    """A server with the values of its variables or headers."""

    name: str
    server: McpServer
    values: SecretHeaders

    def redactor(self) -> Redactor:
        """Removes the values from texts."""

        def parts() -> Iterator[str]:
            for name in self.values:
                value = self.values[name]
                yield from (value, *value.split()[1:])  # without `Bearer`

        return Redactor(part for part in parts() if len(part) > 3)


class ConfiguredServers(msgspec.Struct, frozen=True):
    """The servers of a configuration, and the source of their keys."""

    servers: Mapping[str, McpServer] = {}
    folder: Path = Path()
    variables: SecretVariables = SecretVariables()
    origin: Origin = Origin()

    @classmethod
    @hides_arguments
    def of(cls, config: ClientConfig, environ: Mapping[str, str] | None) -> ConfiguredServers:
        folder = Path(config.origin.file).parent
        return cls(config.mcp, folder, SecretVariables(environ), config.origin)

    def chosen(self, given: Any) -> tuple[ServerSettings, ...]:
        """The servers of `mcp=`: names in llm.yaml, and `McpServer` objects. Raises
        `InvalidRequest`, and `MissingSecret` if a key is missing."""
        if given is None:
            return ()
        if isinstance(given, str | McpServer | Mapping) or not isinstance(given, Iterable):
            raise InvalidRequest(
                f"must be a list of names and McpServers, not {type(given).__name__}", path="mcp"
            )
        found: dict[str, ServerSettings] = {}
        for index, each in enumerate(given):
            name, server = self._server(each, f"mcp[{index}]")
            if name in found:
                raise InvalidRequest(
                    f"there are two servers {shown_name(name)}; give one another name"
                    " (McpServer(name=…))",
                    path=f"mcp[{index}]",
                )
            found[name] = ServerSettings(name, server, self._values(name, server))
        return tuple(found.values())

    def _server(self, given: Any, path: str) -> tuple[str, McpServer]:
        if isinstance(given, McpServer):
            return given.shown, given
        if not isinstance(given, str):
            reason = f"must be a name or an McpServer, not {type(given).__name__}"
            raise InvalidRequest(reason, path=path)
        server = self.servers.get(given)
        if server is None:
            known = ", ".join(map(shown_name, self.servers)) or "none"
            raise InvalidRequest(
                f"the configuration has no MCP server {shown_name(given)}; it has {known}",
                path=path,
            )
        return given, server

    def _values(self, name: str, server: McpServer) -> SecretHeaders:
        field = "env" if server.command else "headers"
        given: Mapping[str, str | Key] = getattr(server, field)
        path = ("mcp", name, field)

        def value(each: str, given: str | Key) -> str:
            if not isinstance(given, Key):
                return given
            place = (*path, each)
            found = find_key(given, self.folder, self.variables, origin=self.origin, path=place)
            return found.reveal()

        return SecretHeaders((each, value(each, one)) for each, one in given.items())
