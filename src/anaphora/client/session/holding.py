"""Handles: beginnings that a provider holds (Gemini's `cachedContents`), made, extended and let go
as the plan says.

A handle that cannot be made, or is gone, is never a reason for a call to fail: it goes out whole.
"""

from __future__ import annotations

import datetime
import logging
import time
from typing import Any

import msgspec

from anaphora.client.transport import HttpTransport
from anaphora.client.writing import Written
from anaphora.errors import AnaphoraError, Forbidden, NotFound
from anaphora.rendered import (
    CacheHandle,
    CreateHandle,
    DeleteHandle,
    ExtendHandle,
    Prelude,
    Rendered,
)
from anaphora.rendered.plan import held_digest
from anaphora.tokens import Counts
from anaphora.values import Notice

from .place import Place

_log = logging.getLogger("anaphora")


class Handles:
    """The handles of one conversation at one place. At most one is alive."""

    def __init__(self, place: Place, holders: set[Handles]) -> None:
        """While something is held, this is one of the `holders`."""
        self._place = place
        self._holders = holders
        self._alive: dict[str, float] = {}
        """Each handle, and when it ends by itself."""

    async def carry_out(self, written: Written) -> tuple[Written, tuple[Notice, ...]]:
        """Does what the plan wants done first; the call with a plan that has the handles."""
        notices = [await self._one(wanted, written) for wanted in written.plan.preludes]
        again = self._place.planner(written.at).plan(written.rendered, at=written.at)
        rewritten = Written(call=written.call, rendered=written.rendered, plan=again, at=written.at)
        return rewritten, tuple(notice for notice in notices if notice is not None)

    async def release(self) -> None:
        """Lets go of everything: what is held is paid for by the hour. What is gone already is
        fine; what cannot be deleted ends by itself, which is told, for it costs until then."""
        for handle in list(self._alive):
            try:
                await self._send(DeleteHandle(handle), None)
            except (Forbidden, NotFound):
                pass  # Google says the first of what is not there
            except AnaphoraError as problem:
                _log.warning(
                    "%s at %s could not be deleted (%s): it is paid for until it ends by itself",
                    handle,
                    self._place.endpoint.id,
                    type(problem).__name__,
                )
            self._gone(handle, time.time())

    def forget(self) -> None:
        """The provider says that there is nothing under the handle."""
        for handle in list(self._alive):
            self._gone(handle, time.time())

    async def _one(self, wanted: Prelude, written: Written) -> Notice | None:
        try:
            said = await self._send(wanted, written.rendered)
        except AnaphoraError as problem:
            handle = getattr(wanted, "handle", None)
            if handle is not None:
                self._gone(handle, written.at)
            kind = type(problem).__name__
            return Notice("handle_failed", f"nothing is held for this call: {kind}", "plan.held")
        simulator = self._place.model.memory.simulator
        match wanted:
            case CreateHandle(chunks, seconds):
                until = _seconds(said.expires, written.at + seconds)
                handle = CacheHandle(said.handle, chunks, held_digest(written.rendered, chunks))
                rendered = written.rendered
                tokens = said.tokens or Counts(rendered).tokens(chunks)
                simulator.hold(said.handle, tokens, at=written.at, seconds=until - written.at)
                self._alive[said.handle] = until
                self._join(written.at)
                self._place.planner(written.at).handles.hold(handle, until)
            case ExtendHandle(name, seconds):
                held = written.plan.held
                assert held is not None
                until = self._alive[name] = _seconds(said.expires, written.at + seconds)
                simulator.extend(name, at=written.at, seconds=until - written.at)
                self._join(written.at)
                self._place.planner(written.at).handles.hold(held, until)
            case DeleteHandle(name):
                self._gone(name, written.at)
        return None

    def _join(self, at: float) -> None:
        """Those whose handles have ended by themselves leave: nobody may have closed them, and
        whatever they know of their conversation would stay."""
        for ended in [other for other in self._holders if other._ended(at)]:
            self._holders.discard(ended)
        self._holders.add(self)

    def _ended(self, at: float) -> bool:
        return all(until < at for until in self._alive.values())

    def _gone(self, handle: str, at: float) -> None:
        if self._alive.pop(handle, 0.0) >= at:  # otherwise it has ended by itself
            self._place.model.memory.simulator.release(handle, at=at)
        self._place.planner(at).handles.let_go(handle)
        if not self._alive:
            self._holders.discard(self)

    async def _send(self, wanted: Prelude, rendered: Rendered | None) -> Any:
        endpoint = self._place.endpoint
        wire: Any = endpoint.wire
        transport: HttpTransport = endpoint.transport
        answer = await transport.send(endpoint.outgoing(wire.prelude(rendered, wanted)))
        try:
            data = await answer.read()
        finally:
            await answer.close()
        if answer.status >= 300:
            raise endpoint.wire.read_error(answer.status, answer.headers, data)
        return None if isinstance(wanted, DeleteHandle) else wire.read_held(data)


def unheld(written: Written) -> Written:
    """The call as it goes out whole."""
    plan = msgspec.structs.replace(written.plan, held=None, preludes=())
    return Written(call=written.call, rendered=written.rendered, plan=plan, at=written.at)


def _seconds(expires: str | None, otherwise: float) -> float:
    """An RFC 3339 time in seconds since the epoch."""
    if expires is None:
        return otherwise
    try:
        return datetime.datetime.fromisoformat(expires).timestamp()
    except ValueError:
        return otherwise
