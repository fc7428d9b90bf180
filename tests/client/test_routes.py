"""The model that each hop of a route is called with."""

from __future__ import annotations

import asyncio

import pytest
from support.emulated_client import MODELS, connected

from anaphora.emulator.server import Emulator
from anaphora.prompt import Call, PromptIR
from anaphora.values import Message

CLAUDE, GPT = MODELS["anthropic"], MODELS["openai_chat"]
OTHER = "claude-opus-4-8"
ROUTES = {
    "main": [{"provider": "anthropic"}, {"provider": "openai_chat"}],
    "named": [{"provider": "anthropic", "model": OTHER}, {"provider": "openai_chat"}],
}
#: The route, the model that a call names, and the models of its attempts.
ROUTED = [
    ("main", None, [CLAUDE, GPT]),
    ("main", OTHER, [OTHER, GPT]),
    ("main", GPT, [CLAUDE, GPT]),
    ("main", "brand-new-1", ["brand-new-1", "brand-new-1"]),
    ("named", CLAUDE, [OTHER, GPT]),
    ("named", None, [OTHER, GPT]),
]


@pytest.mark.parametrize(("route", "model", "models"), ROUTED)
@pytest.mark.parametrize("alone", [True, False], ids=["a call", "a conversation"])
def test_fallback_gets_a_model_that_it_has(
    emu: Emulator, route: str, model: str | None, models: list[str], alone: bool
) -> None:
    async def main() -> None:
        names = ["anthropic", "openai_chat"]
        async with connected(emu, names, routes=ROUTES, retry={"max_attempts": 1}) as emulated:
            emulated.transport.faults = ["529", None]
            if not alone:
                answered = await emulated.client.session(route, model=model).send("Hello")
            elif model is None:
                answered = await emulated.client.complete("Hello", route)
            else:
                call = Call(ir=PromptIR.chat([Message.user("Hello")]), model=model)
                answered = await emulated.client.complete(call, route)
            assert [attempt.model for attempt in answered.attempts] == models

    asyncio.run(main())
