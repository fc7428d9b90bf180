"""Calls of conversations that a balancer spreads over several nodes: each node with a memory of its
own, all at one provider, whose cache a simulator keeps and bills."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from anaphora import catalog, wire
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.cache.verdict import Prediction, Verdict
from anaphora.daemon.calls.conversations import CallMemory
from anaphora.daemon.shared_state import SharedState
from anaphora.prompt import Call
from anaphora.rendered import Plan
from anaphora.traffic.matching import RememberedCall
from anaphora.traffic.planning import ReadRequest, own_plan, read_request
from anaphora.values import Usage
from anaphora.wire.reading import decode_members

#: The providers whose own wires these are.
_PROVIDERS = {"anthropic": "anthropic", "openai_chat": "openai", "openai_responses": "openai"}
#: Seconds from a request to the first byte of its answer.
ANSWERED_AFTER = 1.0


class RoutedCall(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What one call got."""

    plan: Plan
    usage: Usage
    expected: Prediction | None
    verdict: Verdict
    conversation: str
    turn: int
    cost: float
    """In multiples of the uncached input price of a token."""


class Nodes:
    """The memories of some nodes, behind a balancer. `shared` are what they share; None: nothing."""

    def __init__(
        self, shared: Sequence[SharedState | None], model: str, dialect: str, *, app: str = "app"
    ) -> None:
        self.states = list(shared)
        self.memories = [CallMemory(each) for each in shared]
        self.model = model
        if dialect in _PROVIDERS:
            self.provider, row = _PROVIDERS[dialect], dialect
        else:
            self.provider = wire.provider_of(dialect)
            row = dialect.partition("/")[2] or wire.dialect_of(dialect).wire
        self._codec = wire.get(dialect)
        self._app = app
        self.profile = catalog.profile(self.provider, model)
        self.rules = catalog.rules(self.provider, model, row)
        self._simulator = Simulator(self.rules)

    def body(self, call: Call) -> tuple[str, bytes]:
        """The path and the body of a call, without markers."""
        request = self._codec.assemble(self._codec.render(call, self.profile, None), Plan())
        return request.path, request.body.join()

    def read(self, path: str, body: bytes) -> ReadRequest:
        request = read_request("POST", self.provider, path, {}, body)
        assert request is not None
        return request

    async def call(self, node: int, path: str, body: bytes, at: float) -> RoutedCall:
        """One call through a node."""
        remembered = await self.begin(node, path, body, at)
        return self.answer(node, remembered, at)

    async def begin(self, node: int, path: str, body: bytes, at: float) -> RememberedCall:
        memory, request = self.memories[node], self.read(path, body)
        rendered = request.rendered
        own = own_plan(rendered, self.rules, decode_members(body))
        if rendered.marks or rendered.automatic is not None:
            request = replace(request, takes_markers=False)
        scope = (self._app, self.provider, rendered.wire, self.model)
        elsewhere = await memory.look_up(request, scope=scope, at=at, own=own)
        remembered = memory.begin(request, scope=scope, at=at, own=own, elsewhere=elsewhere)
        plan = remembered.plan or own
        remembered.sent = replace(remembered.sent, plan=plan)
        return remembered

    def answer(self, node: int, remembered: RememberedCall, at: float) -> RoutedCall:
        memory, sent = self.memories[node], remembered.sent
        plan, began = sent.marks, at + ANSWERED_AFTER
        prompt = RenderedPrompt(replace(sent.rendered, bills=()), plan)
        outcome = self._simulator.call(prompt, at=at, began=began)
        usage = replace(outcome.usage(), output=20)
        remembered.sent = replace(sent, at=at, began=began, usage=usage)
        expected = remembered.expect(self.rules)
        verdict = remembered.judge(self.rules, price=None, profile=self.profile, diagnosis=None)
        memory.answered(remembered)
        read = self.rules.read_price.value
        if not plan.marks and self.rules.automatic_read_price is not None:
            read = self.rules.automatic_read_price.value
        cost = outcome.uncached + outcome.read * read
        for ttl, tokens in outcome.written.items():
            price = None if ttl == "unsplit" else self.rules.write_price.get(ttl)
            cost += tokens * (1.0 if price is None else price.value)
        return RoutedCall(
            plan=plan,
            usage=usage,
            expected=expected,
            verdict=verdict,
            conversation=remembered.conversation,
            turn=remembered.turn,
            cost=cost,
        )
