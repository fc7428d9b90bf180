"""The steps of a call through the daemon in order, and when each of them runs.

    authenticate ▸ read ▸ permit ▸ plan ▸ hold ▸ send ▸ relay ▸ settle ▸ judge ▸ audit

A call of an app is a call of the client (decision 0023): attempts, retries, rate limits and
breakers are the client's. So `plan` runs once for each target, and `hold`, `send` and `settle` for
each attempt, when the client requests it; the others run once.

| moment | started by | steps |
|---|---|---|
| `arrive` | the handler, for each request | authenticate |
| `read` | the endpoint; JSON-RPC reads its messages itself | read |
| `enter` | the service | permit; audit (whether rows can be written) |
| `prepare` | the client, for each target | plan |
| `begin` | the client, when the rate limits let an attempt pass | hold, send; judge, for streams |
| `end` | the client, for each attempt | settle |
| `answer` | the client's call, when it was answered or has failed | plan, judge |
| `reply` | the same, next | relay, audit |
| `behind` | the service, when the answer has gone to the app | audit |

The provider answers between `begin` and `end`; `relay` turns the pieces of a stream into what the
app may see. Verdict and cost are known at `answer` and sent with the reply. Audit rows, metrics and
explanations are made afterwards, for many calls at a time (`calls.behind`), and the rows are
written by the audit log's thread; a daemon killed before that writes them at its next start
(decision 0028).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from anaphora.client.failures import log
from anaphora.wire.known_requests import KnownRequests

from .call import AppCall, CallOutcome

if TYPE_CHECKING:
    from anaphora.client.observe import Watchers
    from anaphora.client.pool import ProviderPool
    from anaphora.daemon.access.denials import DenialLog
    from anaphora.daemon.access.granted_models import GrantedTargets
    from anaphora.daemon.access.isolation import SharedProviders
    from anaphora.daemon.access.rates import GrantRates
    from anaphora.daemon.money.ledger import Ledger
    from anaphora.daemon.off_loop import OffLoop
    from anaphora.errors import Denied

    from .behind import CallTexts, Explanations
    from .conversations import CallMemory, ColdGate

ORDER = (
    "authenticate", "read", "permit", "plan", "hold", "send", "relay", "settle", "judge", "audit",
)  # fmt: skip
#: The steps that run at each moment: `before` on the way to the provider, `after` on the way back.
BEFORE = {
    "arrive": ("authenticate",),
    "read": ("read",),
    "enter": ("permit", "audit"),
    "prepare": ("plan",),
    "begin": ("hold", "send", "judge"),
}
AFTER = {"end": ("settle",), "answer": ("plan", "judge"), "reply": ("relay", "audit")}
BEHIND = ("audit",)


#: The limit of what is kept of requests to parse only the new messages of the next ones.
_MOST_BYTES = 192 * 1024 * 1024


class CallTools(msgspec.Struct, kw_only=True, eq=False):
    """Objects that all calls of a daemon share."""

    pool: ProviderPool
    granted: GrantedTargets
    ledger: Ledger
    rates: GrantRates
    memory: CallMemory
    shared: SharedProviders
    watchers: Watchers
    denials: DenialLog
    explanations: Explanations
    texts: CallTexts
    off_loop: OffLoop
    cold: ColdGate
    requests: KnownRequests = msgspec.field(default_factory=lambda: KnownRequests(_MOST_BYTES))
    draining: bool = False
    """New calls are refused."""
    _locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = msgspec.field(
        default_factory=WeakValueDictionary
    )

    def refuse(self, call: AppCall, error: Denied) -> None:
        """Notes a call that was refused before anything was sent."""
        self.denials.add(
            call.app,
            call.method,
            error,
            request_id=call.request_id,
            provider=call.provider or "",
            model=call.model or "",
            ignored=call.ignored,
        )

    def lock(self, app: str, provider: str) -> asyncio.Lock:
        """The lock of the one call of an app that waits for a provider's rate limits."""
        lock = self._locks.get((app, provider))
        if lock is None:
            lock = self._locks[app, provider] = asyncio.Lock()
        return lock


class CallStep:
    """One step of all calls of a daemon. State of a call is in the call, not in the step. A step
    overrides only the methods that it needs."""

    name = ""

    async def before(self, call: AppCall) -> None:
        """On the way to the provider. Raises if the call may not continue."""

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        """On the way back. Never raises: an answer that has arrived is sent to its app."""

    def behind(self, call: AppCall) -> None:
        """After the answer was sent: queues what is left to do. Never raises."""


async def _in_order(steps: Sequence[Callable[[AppCall], Awaitable[None]]], call: AppCall) -> None:
    for step in steps:
        await step(call)


def _joined(
    steps: Sequence[Callable[[AppCall], Awaitable[None]]],
) -> Callable[[AppCall], Awaitable[None]]:
    """One step alone needs no coroutine around it."""
    return steps[0] if len(steps) == 1 else partial(_in_order, steps)


class CallPipeline:
    """Runs the steps of calls. Any of them can be left out."""

    def __init__(self, steps: Iterable[CallStep] = ()) -> None:
        self.steps: dict[str, CallStep] = {}
        self.use(*steps)

    def use(self, *steps: CallStep) -> None:
        """Adds steps, each in its place; one of the same name is replaced."""
        found = self.steps | {step.name: step for step in steps}
        self.steps = {name: found[name] for name in ORDER if name in found}
        self.before = {
            moment: _joined([step.before for step in self._named(names, "before")])
            for moment, names in BEFORE.items()
        }
        """The steps of each moment, to be awaited at once."""
        self._after = {
            moment: [step.after for step in self._named(names, "after")]
            for moment, names in AFTER.items()
        }
        self._behind = [step.behind for step in self._named(BEHIND, "behind")]

    def _named(self, names: Iterable[str], hook: str) -> list[CallStep]:
        """The steps of these names that override the method."""
        steps = [self.steps[name] for name in names if name in self.steps]
        return [step for step in steps if getattr(type(step), hook) is not getattr(CallStep, hook)]

    def after(self, moment: str, call: AppCall, outcome: CallOutcome) -> None:
        for step in self._after[moment]:
            step(call, outcome)

    def behind(self, call: AppCall) -> None:
        """Runs the remaining steps when the app has its answer. They only queue what is left to
        do, and so in the order of the calls."""
        for step in self._behind:
            try:
                step(call)
            except Exception as problem:
                log(logging.ERROR, "a step behind an answer failed", problem)
