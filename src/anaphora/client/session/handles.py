"""Cache handles: prompt prefixes that a provider stores (Gemini's `cachedContents`), created,
extended and deleted as planned.

A handle that cannot be created, or is gone, never fails a call: the whole prompt is sent.
"""

from __future__ import annotations

import datetime
import logging
import time
from typing import Any

from anaphora.cache.sent_call import is_alive
from anaphora.client.in_flight import PreparedRequest
from anaphora.client.transport import read_answer
from anaphora.errors import AnaphoraError, Forbidden, NotFound
from anaphora.rendered import (
    CacheHandle,
    CreateHandle,
    DeleteHandle,
    ExtendHandle,
    Prelude,
    Rendered,
)
from anaphora.rendered.held import held_digest
from anaphora.tokens import Counts
from anaphora.values import Notice

from .provider_state import ProviderState

_log = logging.getLogger("anaphora")


class Handles:
    """The handles of one conversation at one provider. At most one is alive."""

    def __init__(self, state: ProviderState, holders: set[Handles]) -> None:
        """Registers itself in `holders` while a handle is alive."""
        self._state = state
        self._holders = holders
        self._alive: dict[str, float] = {}
        """When each handle expires."""

    def restore(self, handle: str, until: float) -> None:
        """Takes over a handle that an earlier session of the conversation created."""
        for other in [other for other in self._holders if handle in other._alive]:
            self._holders.discard(other)
        self._keep(handle, until, time.time())

    async def run_preludes(self, prepared: PreparedRequest) -> None:
        """Carries out the plan's preludes, and plans the request again with the handles."""
        notices = [await self._run(prelude, prepared) for prelude in prepared.plan.preludes]
        planner = self._state.planner(prepared.at)
        prepared.plan = planner.plan(prepared.rendered, at=prepared.at)
        prepared.notices += tuple(notice for notice in notices if notice is not None)

    async def release(self) -> None:
        """Deletes all handles: they are paid for by the hour. One that cannot be deleted costs
        until it expires, and is logged."""
        for handle in list(self._alive):
            try:
                await self._send(DeleteHandle(handle), None)
            except (Forbidden, NotFound):
                pass  # Google answers Forbidden for a handle that is gone
            except AnaphoraError as problem:
                _log.warning(
                    "%s at %s could not be deleted (%s): it is billed until it expires",
                    handle,
                    self._state.endpoint.id,
                    type(problem).__name__,
                )
            self._gone(handle, time.time())

    def forget(self) -> None:
        """The provider no longer knows the handles."""
        for handle in list(self._alive):
            self._gone(handle, time.time())

    async def _run(self, prelude: Prelude, prepared: PreparedRequest) -> Notice | None:
        rendered, at = prepared.rendered, prepared.at
        try:
            info = await self._send(prelude, rendered)
        except AnaphoraError as problem:
            name = getattr(prelude, "handle", None)
            if name is not None:
                self._gone(name, at)
            kind = type(problem).__name__
            return Notice("handle_failed", f"nothing is held for this call: {kind}", "plan.held")
        memory = self._state.target.memory
        match prelude:
            case CreateHandle(chunks, seconds):
                until = _expiry(info.expires, at + seconds)
                handle = CacheHandle(info.handle, chunks, held_digest(rendered, chunks))
                tokens = info.tokens or Counts(rendered).tokens(chunks)
                with memory.lock:
                    memory.current().hold(info.handle, tokens, at=at, seconds=until - at)
                self._keep(info.handle, until, at)
                self._state.planner(at).handles.hold(handle, until)
            case ExtendHandle(name, seconds):
                current = prepared.plan.held
                assert current is not None
                until = _expiry(info.expires, at + seconds)
                with memory.lock:
                    memory.current().extend(name, at=at, seconds=until - at)
                self._keep(name, until, at)
                self._state.planner(at).handles.hold(current, until)
            case DeleteHandle(name):
                self._gone(name, at)
        return None

    def _keep(self, handle: str, until: float, at: float) -> None:
        """Joins the holders; those whose handles have expired leave, so that conversations which
        were never closed are not kept in memory."""
        self._alive[handle] = until
        for ended in [other for other in self._holders if other._has_ended(at)]:
            self._holders.discard(ended)
        self._holders.add(self)

    def _has_ended(self, at: float) -> bool:
        return all(until < at for until in self._alive.values())

    def _gone(self, handle: str, at: float) -> None:
        if is_alive(self._alive.pop(handle, 0.0), at):
            memory = self._state.target.memory
            with memory.lock:
                memory.current().release(handle, at=at)
        self._state.planner(at).handles.let_go(handle)
        if not self._alive:
            self._holders.discard(self)

    async def _send(self, prelude: Prelude, rendered: Rendered | None) -> Any:
        endpoint = self._state.endpoint
        wire: Any = endpoint.wire
        outgoing = endpoint.outgoing_resource(wire.prelude(rendered, prelude))
        answer = await endpoint.transport.send(outgoing)
        try:
            data = await read_answer(answer)
        finally:
            await answer.close()
        if answer.status >= 300:
            raise endpoint.wire.read_error(answer.status, answer.headers, data)
        return None if isinstance(prelude, DeleteHandle) else wire.read_held(data)


def _expiry(expires: str | None, default: float) -> float:
    if expires is None:
        return default
    try:
        return datetime.datetime.fromisoformat(expires).timestamp()
    except ValueError:
        return default
