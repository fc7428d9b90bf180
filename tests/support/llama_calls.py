"""Calls sent to llama.cpp over each of the wires it speaks, and its answers read."""

from __future__ import annotations

import msgspec
from support.llama import MODEL, Answer, Llama

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.prompt import Call, Params, PromptIR
from anaphora.rendered import Rendered, Request
from anaphora.values import Conversation, Event, Message, Reply, Tool

#: What llama.cpp serves of ours.
WIRES = ("anthropic", "openai_chat", "openai_responses")

LOOK = Tool(
    "look",
    "Look at the weather of a place.",
    '{"properties":{"city":{"type":"string"},"days":{"type":"integer"}},'
    '"required":["city","days"],"type":"object"}',
)
NOW = Tool("now", "What time it is.")


def call(*talk: str | Message, system: str = "", **fields: object) -> Call:
    """A call to the tiny model. Texts are a user's; `fields` are a call's or its parameters'."""
    messages = [Message.user(said) if isinstance(said, str) else said for said in talk]
    return conversation(Conversation(messages), system=system, **fields)


def conversation(talk: Conversation, *, system: str = "", **fields: object) -> Call:
    own = {name: value for name, value in fields.items() if name in ("tools", "extras", "model")}
    params = {name: value for name, value in fields.items() if name not in own}
    asked = msgspec.structs.replace(Params(max_tokens=200), **params)
    made = Call(ir=PromptIR.chat(talk, system=system), model=MODEL, params=asked)
    return msgspec.structs.replace(made, **own)


def rendered(name: str, made: Call, previous: Rendered | None = None) -> Rendered:
    # It signs no reasoning, which only Anthropic itself asks for.
    own = (name, made.model) == ("anthropic", MODEL)
    profile = catalog.profile("llamacpp" if own else wire.PROVIDERS[name], made.model)
    return wire.get(name).render(made, profile, previous)


def request(name: str, made: Call | Rendered) -> Request:
    """The way every call goes: render, plan, assemble."""
    said = rendered(name, made) if isinstance(made, Call) else made
    plan = plan_once(said, catalog.rules(wire.PROVIDERS[name], said.model), reuse_expected=True)
    return wire.get(name).assemble(said, plan)


def answer(llama: Llama, name: str, made: Call | Rendered) -> Answer:
    """A good answer's bytes."""
    given = llama.send(request(name, made))
    assert given.status == 200, given.body.decode()
    return given


def ask(llama: Llama, name: str, made: Call | Rendered) -> Reply:
    return wire.get(name).read_reply(answer(llama, name, made).body)


def streaming(made: Call) -> Call:
    return msgspec.structs.replace(made, params=msgspec.structs.replace(made.params, stream=True))


def stream(llama: Llama, name: str, made: Call) -> bytes:
    given = answer(llama, name, streaming(made))
    assert given.headers["content-type"].startswith("text/event-stream")
    return given.body


def read(name: str, body: bytes, size: int | None = None) -> list[Event]:
    """The events of a stream that arrives in pieces of that size."""
    reader = wire.get(name).reader()
    events: list[Event] = []
    size = size or len(body)
    for at in range(0, len(body), size):
        events += reader.feed(body[at : at + size])
    return events + reader.close()
