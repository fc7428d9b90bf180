"""Self-hosted engines: slots of llama.cpp, blocks of vLLM."""

from __future__ import annotations

from support.prompts import chat, unmarked

from anaphora import catalog
from anaphora.cache.simulator import Simulator

LLAMA = catalog.rules("llamacpp", "any")


def test_a_slot_continues_from_its_last_prompt_except_the_last_token() -> None:
    cache = Simulator(LLAMA)
    cache.call(chat([("a", 100), ("b", 50)]), at=0)
    assert cache.call(chat([("a", 100), ("b", 50), ("c", 7)]), at=1).read == 150
    again = cache.call(chat([("a", 100), ("b", 50), ("c", 7)]), at=2)
    assert [(span.tokens, span.reason) for span in again.spans] == [
        (156, "found"),
        (1, "last_token"),
    ]


def test_with_one_slot_a_second_conversation_evicts_the_first_and_four_keep_four() -> None:
    for slots, read in [(1, 0), (4, 100)]:
        cache = Simulator(LLAMA, slots=slots)
        for at, name in enumerate("abcd"[: max(2, slots)]):
            cache.call(chat([(name, 100)]), at=at)
        assert cache.call(chat([("a", 100), ("more", 1)]), at=9).read == read


def test_a_prompt_uses_the_most_similar_slot_else_the_least_recent() -> None:
    cache = Simulator(LLAMA, slots=2)
    cache.call(chat([("a", 100), ("b", 50)]), at=0)
    cache.call(chat([("x", 100)]), at=1)
    cache.call(chat([("a", 100), ("b", 50), ("c", 9)]), at=2)  # the first slot again
    cache.call(chat([("new", 100)]), at=3)  # so this takes the second
    assert cache.predict(chat([("a", 100), ("b", 50), ("c", 9), ("d", 1)]), at=4).read == 159
    assert cache.predict(chat([("x", 100), ("y", 1)]), at=4).read == 0


def test_a_changed_block_invalidates_itself_and_what_follows() -> None:
    cache = Simulator(LLAMA)
    cache.call(chat([("a", 100), ("b", 50), ("c", 7)]), at=0)
    assert cache.call(chat([("a", 100), ("B", 50), ("c", 7)]), at=1).read == 100


def test_blocks_of_one_server_are_shared_by_its_conversations_and_not_by_another() -> None:
    cache = Simulator(catalog.rules("vllm", "any"))
    cache.call(unmarked([("system", 160), ("one", 40)]), at=0, scope="gpu 0")
    assert cache.call(unmarked([("system", 160), ("two", 40)]), at=1, scope="gpu 0").read == 160
    assert cache.call(unmarked([("system", 160), ("two", 40)]), at=1, scope="gpu 1").read == 0
