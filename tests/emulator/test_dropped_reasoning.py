"""Responses: models before gpt-5.6 get the reasoning of the current turn only. From the next
message of the user on it is neither billed nor part of the cached prefix."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.emulated_client import LONG
from support.waiting import PATIENCE

from anaphora import catalog
from anaphora.emulator.server import Emulator

Json = dict[str, Any]
THOUGHT: Json = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": "thought " * 2000,
}
CALL: Json = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
RESULT: Json = {"type": "function_call_output", "call_id": "c1", "output": "seen " * 2000}
ANSWER: Json = {"role": "assistant", "content": "Done."}
TOOL: Json = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def usage(emu: Emulator, model: str, items: list[Json], **options: Any) -> tuple[int, int]:
    """The tokens of the prompt, and those of them that were read."""
    body = {
        "model": model,
        "instructions": LONG,
        "input": items,
        "tools": [TOOL],
        "store": False,
        **options,
    }
    headers = {"authorization": "Bearer sk-x"}
    answer = httpx.post(f"{emu.url}/v1/responses", json=body, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    billed = answer.json()["usage"]
    return billed["input_tokens"], billed["input_tokens_details"]["cached_tokens"]


LOOP = [user("First?"), THOUGHT, CALL, RESULT]


@pytest.mark.parametrize("model", ["gpt-5.5", "gpt-5.2"])
def test_earlier_reasoning_is_left_out_at_a_user_turn(emu: Emulator, model: str) -> None:
    assert catalog.profile("openai", model).strips_thinking.value
    rules = catalog.rules("openai", model)
    begin, _ = usage(emu, model, LOOP[:1])
    inside, read = usage(emu, model, LOOP)
    # Inside of the loop the thought is sent and billed: it is a part of the prefix.
    assert inside > begin + 3000
    assert read == rules.whole_granules(begin)
    whole, read = usage(emu, model, [*LOOP, THOUGHT, CALL, RESULT])
    assert read > rules.whole_granules(inside) - rules.granule_tokens.value
    next_turn = [*LOOP, ANSWER, user("Second?")]
    shorter, read = usage(emu, model, next_turn)
    assert shorter < inside
    # Only what lies before the first thought is as it was: the start of the last turn.
    assert begin - 2 * rules.granule_tokens.value < read <= begin
    # The prompt without thoughts is cached in its turn.
    again, read = usage(emu, model, [*next_turn, ANSWER, user("Third?")])
    assert read >= rules.whole_granules(shorter) - rules.granule_tokens.value
    assert again < whole


def test_all_turns_may_be_asked_for(emu: Emulator) -> None:
    items = [*LOOP, ANSWER, user("Second?")]
    without, _ = usage(emu, "gpt-5.5", items)
    kept, _ = usage(emu, "gpt-5.5", items, reasoning={"context": "all_turns"})
    assert kept > without + 1500


def test_newer_models_keep_it(emu: Emulator) -> None:
    assert not catalog.profile("openai", "gpt-5.6").strips_thinking.value
    inside, _ = usage(emu, "gpt-5.6", LOOP)
    later, _ = usage(emu, "gpt-5.6", [*LOOP, ANSWER, user("Second?")])
    assert later > inside
