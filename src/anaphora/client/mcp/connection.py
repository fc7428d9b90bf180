"""Connections to MCP servers, and the servers of one session, which end with it.

A separate task enters and leaves a connection, as the `mcp` package requires. It lists the tools,
and lists them again when the server reports a change.

If a server ends or becomes unreachable, the next call of one of its tools starts it again. A call
is never sent twice: the tool may have run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from fnmatch import fnmatchcase
from typing import IO, TYPE_CHECKING, Any

from anaphora.client.failures import described, log
from anaphora.errors import InvalidRequest, InvalidTool, MissingExtra, Transport
from anaphora.tools.mcp import McpTool, mcp_tools
from anaphora.tools.registry import ListingChange, ToolRegistry
from anaphora.values import Notice
from anaphora.version import __version__

from . import ADDED, ServerSettings

if TYPE_CHECKING:
    import mcp

_log = logging.getLogger("anaphora.mcp")

#: The most pages of a listing.
_MOST_PAGES = 1000
#: Seconds that a server may take to end.
_CLOSE_SECONDS = 10.0
#: Characters of a server's standard error that an error shows.
_SHOWN_ERRORS = 500


class McpConnection:
    """A connection to one server. `on_listing` gets the tools whenever the server lists them."""

    def __init__(
        self, settings: ServerSettings, on_listing: Callable[[Sequence[McpTool]], None]
    ) -> None:
        self.settings = settings
        self._on_listing = on_listing
        self._client: mcp.Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._redact = settings.redactor()
        self.problem: str | None = None
        """The error of the last listing, if it could not be used."""

    @property
    def name(self) -> str:
        return self.settings.name

    async def open(self) -> mcp.Client:
        """Returns when the tools are known. Raises `Transport`, `InvalidTool`."""
        async with self._starting:
            if self._client is not None:
                return self._client
            await self._end_task()
            server, ready = self.settings.server, asyncio.get_running_loop().create_future()
            self._ended, self._changed = asyncio.Event(), asyncio.Event()
            self._task = task = asyncio.create_task(self._run(ready), name=f"mcp {self.name}")
            try:
                async with asyncio.timeout(server.start_timeout):
                    client: mcp.Client = await asyncio.shield(ready)
            except BaseException as problem:
                task.cancel()  # it waits for `_ended` only when the tools are known
                await self._end_task()
                if not isinstance(problem, TimeoutError):
                    raise
                raise Transport(
                    f"the MCP server {self.name} ({server.place}) did not list its tools within"
                    f" {server.start_timeout:g} s",
                    phase="connect",
                ) from None
            return client

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """The result of a tool."""
        client = self._client if self._client is not None else await self.open()
        try:
            return await client.call_tool(name, arguments)
        except Exception as problem:
            if _is_answer(problem):
                raise  # the connection is there
            self._client = None
            self._ended.set()
            raise Transport(
                f"the MCP server {self.name} ended before the tool's result arrived; the tool may"
                " have run. The next call of one of its tools starts it again",
                phase="body",
            ) from None

    async def close(self) -> None:
        async with self._starting:
            self._client = None
            await self._end_task()

    async def _end_task(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._ended.set()
        done, _ = await asyncio.wait([task], timeout=_CLOSE_SECONDS)
        if not done:
            task.cancel()
            await asyncio.wait([task], timeout=_CLOSE_SECONDS)

    # ── In the connection's task ─────────────────────────────────────────────────────────────────

    async def _run(self, ready: asyncio.Future[mcp.Client]) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            try:
                async with self._connected(errors) as client:
                    self._on_listing(await self._list(client))
                    async with self._listening(client):
                        self._client = client
                        if not ready.done():
                            ready.set_result(client)
                        await self._look_after(client)
            except BaseException as problem:
                cause = _first(problem)
                if not ready.done():
                    ready.set_exception(self._start_error(cause, errors))
                    ready.exception()  # the caller may have left
                elif not isinstance(problem, asyncio.CancelledError):
                    log(logging.WARNING, f"the MCP server {self.name} is gone", cause)
                if isinstance(problem, asyncio.CancelledError):
                    raise
            finally:
                self._client = None

    @contextlib.asynccontextmanager
    async def _connected(self, errors: IO[str]) -> AsyncIterator[mcp.Client]:
        try:
            import mcp
            from mcp.client.stdio import StdioServerParameters, stdio_client
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client
        except ImportError:
            raise MissingExtra(
                "MCP servers need the package mcp: pip install 'anaphora[mcp]'", extra="mcp"
            ) from None
        server, values = self.settings.server, dict(self.settings.values.items())
        async with contextlib.AsyncExitStack() as stack:
            if server.url is not None:
                http = await stack.enter_async_context(create_mcp_http_client(headers=values))
                transport: Any = streamable_http_client(server.url, http_client=http)
            else:
                command, *args = server.command
                transport = stdio_client(
                    StdioServerParameters(command=command, args=args, env=values, cwd=server.cwd),
                    errlog=errors,  # type: ignore[arg-type]
                )
            client = mcp.Client(
                transport,
                client_info=mcp.types.Implementation(name="anaphora", version=__version__),
                message_handler=self._received,
                read_timeout_seconds=server.timeout,
                cache=None,
            )
            yield await stack.enter_async_context(client)

    async def _received(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._changed.set()

    @contextlib.asynccontextmanager
    async def _listening(self, client: mcp.Client) -> AsyncIterator[None]:
        """Subscribes to changes if the protocol has subscriptions; then only subscribers are
        notified."""
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        capability = client.server_capabilities.tools
        notifies = capability is not None and capability.list_changed
        if not notifies or client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            yield
            return
        async with client.listen(tools_list_changed=True) as events:
            follower = asyncio.create_task(self._follow(events))
            try:
                yield
            finally:
                follower.cancel()
                await asyncio.wait([follower])

    async def _follow(self, events: Any) -> None:
        with contextlib.suppress(Exception):
            async for _ in events:
                self._changed.set()
            return
        self._ended.set()  # the subscription was lost, and changes with it

    async def _look_after(self, client: mcp.Client) -> None:
        """Until the connection is to end."""
        ended = asyncio.create_task(self._ended.wait())
        try:
            while not ended.done():
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait([ended, changed], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if self._changed.is_set() and not ended.done():
                    self._changed.clear()
                    await self._list_again(client)
        finally:
            ended.cancel()

    async def _list_again(self, client: mcp.Client) -> None:
        try:
            self._on_listing(await self._list(client))
            self.problem = None
        except Exception as problem:  # the tools stay as they are
            self.problem = self._redact(described(problem))
            log(logging.WARNING, f"the MCP server {self.name} could not list its tools", problem)

    async def _list(self, client: mcp.Client) -> tuple[McpTool, ...]:
        server, tools = self.settings.server, list[McpTool]()
        cursor, seen = None, set[str]()
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += mcp_tools(page, prefix=server.prefix)
            cursor = page.next_cursor
            if cursor is None or cursor in seen:
                break
            seen.add(cursor)
        wanted = server.tools
        return tuple(
            tool for tool in tools if any(fnmatchcase(tool.listed, each) for each in wanted)
        )

    def _start_error(self, problem: BaseException, errors: IO[str]) -> BaseException:
        if isinstance(problem, InvalidRequest | MissingExtra | asyncio.CancelledError):
            return problem
        place, reason = self.settings.server.place, described(problem)
        if isinstance(problem, FileNotFoundError) and problem.filename == place:
            reason = f"no command {place}"
        text = f"the MCP server {self.name} ({place}) cannot be used: {reason}"
        with contextlib.suppress(OSError, ValueError):
            errors.seek(0)
            if written := errors.read()[-_SHOWN_ERRORS:].strip():
                text += f"; it wrote: {written}"
        return Transport(self._redact(text), phase="connect")


def _is_answer(problem: Exception) -> bool:
    """Whether the server itself reported an error, or took too long for one call."""
    import mcp

    closed = getattr(mcp.types, "CONNECTION_CLOSED", -32000)
    return isinstance(problem, mcp.MCPError) and problem.error.code != closed


def _first(problem: BaseException) -> BaseException:
    """The first exception of a group: task groups wrap exceptions."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


class SessionServers:
    """Shared by the branches of a session; the session that opened them closes them."""

    def __init__(self, servers: Sequence[ServerSettings], registry: ToolRegistry) -> None:
        self._registry = registry
        self._connections = [self._connection(one) for one in servers]
        self._opening = asyncio.Lock()
        self.opened = False
        self._notices: list[Notice] = []

    def _connection(self, settings: ServerSettings) -> McpConnection:
        def listed(tools: Sequence[McpTool]) -> None:
            change = self._registry.put_listing(
                settings.name, tools, connection.call, timeout=settings.server.timeout
            )
            self._notices += _notices(settings.name, change)

        connection = McpConnection(settings, listed)
        return connection

    async def open(self) -> None:
        """Starts all servers that are not running, before the first turn. If one fails, none is
        left running."""
        if self.opened:
            return
        async with self._opening:
            if self._is_open():
                return
            tasks = [asyncio.create_task(one.open()) for one in self._connections]
            try:
                await asyncio.gather(*tasks)
            except InvalidTool as problem:
                await self.close()
                raise InvalidTool(
                    f"{problem.reason.partition('; pass replace')[0]}; give one of the servers a"
                    " prefix (McpServer(prefix=…))",
                    path=problem.path,
                ) from None
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await self.close()
                raise
            # Sorted by name, not by the order of arrival: nothing was sent yet.
            self._registry.settle()
            self.opened = True

    def _is_open(self) -> bool:
        return self.opened

    def take_notices(self) -> tuple[Notice, ...]:
        """Notices about changes in the listings since the last turn."""
        taken, self._notices = tuple(self._notices), []
        return taken

    async def close(self) -> None:
        self.opened = False
        await asyncio.gather(*(one.close() for one in self._connections))


def _notices(server: str, change: ListingChange) -> list[Notice]:
    texts = (
        (ADDED, change.added, "are new, and come after all others"),
        ("mcp_tools_vanished", change.vanished, "are gone, and stay until the next compaction"),
        (
            "mcp_tools_changed",
            change.changed,
            "are described differently, which takes effect with the next compaction",
        ),
    )
    return [
        Notice(code, f"the MCP server {server}: {', '.join(names)} {text}", "mcp")
        for code, names, text in texts
        if names
    ]
