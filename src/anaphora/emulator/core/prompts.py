"""The prompt that a request means: its own body, and what the provider holds for it already."""

from __future__ import annotations

import msgspec

from anaphora.errors import RequestRejected
from anaphora.prompt import Call
from anaphora.rendered import CacheHandle, Plan, Rendered
from anaphora.tokens import for_model
from anaphora.wire.reading import Members

from . import held, stored
from .asked import Asked, members
from .billing import Billing, Facts, asked_plan
from .held import Contents
from .routes import Route
from .stored import Responses

#: What counts a prompt of which nobody says which model it is for.
_ANY_MODEL = b'"gpt-5.6"'


class Prompt(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    body: bytes
    """With everything that is not sent because the provider has it."""
    call: Call
    rendered: Rendered
    plan: Plan
    facts: Facts
    items: tuple[bytes, ...] = ()
    """Of Responses: the input of the whole chain."""


class Prompts:
    """Reads requests; knows what is held for whom."""

    def __init__(self, billing: Billing) -> None:
        self._billing = billing
        self.responses = Responses()
        self.contents = Contents()

    def read(self, asked: Asked, route: Route, workspace: str) -> Prompt:
        """The request in full; errors as the provider would tell them."""
        body, items, content = self._whole(asked, route, workspace)
        call = route.codec.parse(body, route.path)
        found = asked.fields if body is asked.body else body
        rendered, facts = self._split(found, route)
        plan = asked_plan(rendered, facts.rules, call.ir.cache.mode)
        if content is not None:
            if content.model != rendered.model:
                reason = f"the cached content is for {content.model}, not for {rendered.model}"
                raise RequestRejected(reason, status=400, param="model")
            plan = Plan(held=CacheHandle(content.name, content.chunks, ""))
        return Prompt(body=body, call=call, rendered=rendered, plan=plan, facts=facts, items=items)

    def cut(self, asked: Asked, route: Route, workspace: str) -> tuple[Rendered, Facts]:
        """A prompt that nobody wants answered."""
        return self._split(self._whole(asked, route, workspace)[0], route)

    def _split(self, body: bytes | Members, route: Route) -> tuple[Rendered, Facts]:
        path = route.path.replace(":countTokens", ":generateContent")
        rendered = route.codec.split(body, (), path)
        facts = self._billing.facts(route, rendered.model)
        return for_model(rendered, facts.profile), facts

    def _whole(
        self, asked: Asked, route: Route, workspace: str
    ) -> tuple[bytes, tuple[bytes, ...], held.Content | None]:
        """The body with what is held for it put in; the chain of its input, or the handle."""
        if route.wire == "openai_responses":
            return *self._chained(asked, workspace), None
        if route.wire == "gemini":
            body, content = self._held(asked, route, workspace)
            return body, (), content
        return asked.body, (), None

    def _chained(self, asked: Asked, workspace: str) -> tuple[bytes, tuple[bytes, ...]]:
        fields = asked.fields
        own = fields.get("input")
        items = stored.input_items(None if own is None else bytes(own))
        previous = msgspec.json.decode(fields.get("previous_response_id", msgspec.Raw(b"null")))
        if previous is None and "model" in fields:
            return asked.body, items
        if previous is not None:
            items = (*self.responses.chained(workspace, str(previous)), *items)
        whole = {"model": msgspec.Raw(_ANY_MODEL), **fields}
        return stored.with_input(whole, items), items

    def _held(
        self, asked: Asked, route: Route, workspace: str
    ) -> tuple[bytes, held.Content | None]:
        fields = asked.fields
        inner = fields.get("generateContentRequest")
        if route.operation == "count" and inner is not None:
            fields = members(bytes(inner))
        named = fields.get("cachedContent", fields.get("cached_content"))
        if named is None:
            return (asked.body if inner is None else bytes(inner)), None
        content = self.contents.get(workspace, str(msgspec.json.decode(named)), asked.at)
        return held.merged(content.fields, fields), content
