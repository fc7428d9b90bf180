"""Calls sent to llama.cpp on each wire it supports, and its replies read."""

from __future__ import annotations

import msgspec
from support.llama import MODEL, Answer, Llama

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.prompt import Call, Params, PromptIR
from anaphora.rendered import Rendered, Request
from anaphora.values import Conversation, Event, Message, Reply, Tool

#: The wires that llama.cpp supports.
WIRES = ("anthropic", "openai_chat", "openai_responses")

LOOK = Tool(
    "look",
    "Look at the weather of a place.",
    '{"properties":{"city":{"type":"string"},"days":{"type":"integer"}},'
    '"required":["city","days"],"type":"object"}',
)
NOW = Tool("now", "What time it is.")


def call(*texts: str | Message, system: str = "", **fields: object) -> Call:
    """A call to the tiny model. Texts are user messages; `fields` are fields of Call or Params."""
    messages = [Message.user(item) if isinstance(item, str) else item for item in texts]
    return conversation(Conversation(messages), system=system, **fields)


def conversation(messages: Conversation, *, system: str = "", **fields: object) -> Call:
    own = {name: value for name, value in fields.items() if name in ("tools", "extras", "model")}
    params = {name: value for name, value in fields.items() if name not in own}
    values = msgspec.structs.replace(Params(max_tokens=200), **params)
    made = Call(ir=PromptIR.chat(messages, system=system), model=MODEL, params=values)
    return msgspec.structs.replace(made, **own)


def rendered(name: str, made: Call, previous: Rendered | None = None) -> Rendered:
    # It signs no reasoning, which only Anthropic itself requires.
    own = (name, made.model) == ("anthropic", MODEL)
    profile = catalog.profile("llamacpp" if own else wire.PROVIDERS[name], made.model)
    return wire.get(name).render(made, profile, previous)


def request(name: str, made: Call | Rendered) -> Request:
    """Renders, plans and assembles the request of a call."""
    prompt = rendered(name, made) if isinstance(made, Call) else made
    plan = plan_once(prompt, catalog.rules(wire.PROVIDERS[name], prompt.model), reuse_expected=True)
    return wire.get(name).assemble(prompt, plan)


def answer(llama: Llama, name: str, made: Call | Rendered) -> Answer:
    """The response, which must have status 200."""
    response = llama.send(request(name, made))
    assert response.status == 200, response.body.decode()
    return response


def ask(llama: Llama, name: str, made: Call | Rendered) -> Reply:
    return wire.get(name).read_reply(answer(llama, name, made).body)


def streaming(made: Call) -> Call:
    return msgspec.structs.replace(made, params=msgspec.structs.replace(made.params, stream=True))


def stream(llama: Llama, name: str, made: Call) -> bytes:
    response = answer(llama, name, streaming(made))
    assert response.headers["content-type"].startswith("text/event-stream")
    return response.body


def read(name: str, body: bytes, size: int | None = None) -> list[Event]:
    """The events of a stream that arrives in pieces of that size."""
    reader = wire.get(name).reader()
    events: list[Event] = []
    size = size or len(body)
    for at in range(0, len(body), size):
        events += reader.feed(body[at : at + size])
    return events + reader.close()
