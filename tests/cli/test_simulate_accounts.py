"""`anaphora simulate` on many short conversations of one account, whose system prompt and tools are
not recorded. The recordings are made here, as a provider would have billed them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.mark.structures import ParameterSet
from click.testing import CliRunner

from anaphora.cli.common import anaphora

Json = dict[str, Any]

#: Tokens of the beginning that no recording shows.
UNRECORDED = 6241
#: Bytes per token of what is sent: denser than the catalog says.
DENSITY = 2.6
IMAGE = 1450


class Previous(NamedTuple):
    total: int
    output: int
    cached: int


class Client(NamedTuple):
    provider: str
    model: str
    read: Callable[[int, Previous | None], int]
    """What a call reads: given what is shared with earlier conversations, and the call before."""
    marks: bool = False


def by_markers(shared: int, before: Previous | None) -> int:
    return shared if before is None else before.cached


def in_granules(shared: int, before: Previous | None) -> int:
    return (shared if before is None else before.total) // 128 * 128


def with_reply_in_granules(shared: int, before: Previous | None) -> int:
    return (shared if before is None else before.total + before.output) // 128 * 128


def with_reply_but_two(shared: int, before: Previous | None) -> int:
    return shared if before is None else before.total + before.output - 2


CLIENTS = {
    "anthropic": Client("anthropic", "claude-sonnet-4-5", by_markers, marks=True),
    "openai": Client("openai", "gpt-4.1", with_reply_in_granules),
    "hidden reasoning": Client("openai", "gpt-5.2", in_granules),
    "glm": Client("zai", "glm-4.6", with_reply_but_two),
}


def words(chance: random.Random, count: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(count))


def recorded(client: Client, *, clock: bool, images: bool, count: int = 40) -> list[Json]:
    """Conversations of one to six calls, one after the other."""
    chance, now, found = random.Random(7), 1.7e9, []
    for number in range(count):
        messages: list[Json] = []
        calls: list[Json] = []
        before: Previous | None = None
        total = UNRECORDED
        for turn in range(chance.randint(1, 6)):
            text = words(chance, chance.randint(5, 600 if turn else 60))
            content: Any = text
            if images and turn and chance.random() < 0.3:
                image = {"type": "image", "data": "iVBORw0KGgo" * 9000, "mimeType": "image/png"}
                content = [{"type": "text", "text": text}, image]
                total += IMAGE
            messages.append({"role": "tool" if turn else "user", "content": content})
            total += int(len(text) / DENSITY) + 4
            read = client.read(UNRECORDED if number else 0, before)
            usage = {"input": total - read, "cache_read": read}
            if client.marks:
                usage |= {"input": 3, "cache_write_5m": total - 3 - read}
            reply = words(chance, chance.randint(5, 200))
            output = usage["output"] = int(len(reply) / DENSITY) + 6
            call = {"messages": len(messages), "usage": usage}
            calls.append({**call, "t": now, "t_end": now + 2} if clock else call)
            before = Previous(total, output, total - 3)
            messages.append({"role": "assistant", "content": reply})
            total += output
            now += 8
        found.append({
            "id": f"conversation {number}", "group": f"run {number}", "provider": client.provider,
            "model": client.model, "system_tokens_unknown": True, "calls": calls,
            "messages": messages,
        })  # fmt: skip
        now += 40
    return found


def simulated(file: Path, lines: list[Json]) -> Json:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = CliRunner().invoke(anaphora, ["simulate", str(file), "--json"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.stderr
    found: Json = json.loads(ran.stdout)
    return found


def accounts() -> list[ParameterSet]:
    """Each client with each kind of beginning; every second pair of kinds takes long."""
    return [
        pytest.param(
            name,
            clock,
            images,
            id=f"{name}-{'clock' if clock else 'no clock'}-{'images' if images else 'text'}",
            marks=[pytest.mark.soak] if (number + clock + images) % 2 else [],
        )
        for number, name in enumerate(CLIENTS)
        for clock in (True, False)
        for images in (False, True)
    ]


@pytest.mark.parametrize("name, clock, images", accounts())
@pytest.mark.long
def test_an_account_with_an_unrecorded_beginning(
    name: str, clock: bool, images: bool, tmp_path: Path
) -> None:
    lines = recorded(CLIENTS[name], clock=clock, images=images)
    report = simulated(tmp_path / "calls.jsonl", lines)
    rows = report["rows"]
    first, later = ([row for row in rows if bool(row["call"]) is follows] for follows in (0, 1))
    # The first two conversations show how long the beginning is.
    assert sum(row["exact"] for row in first) >= len(first) - 2
    assert sum(row["exact"] for row in later) >= 0.95 * len(later)
    errors = sorted(
        abs(sum_of(row["predicted"]) / sum_of(row["billed"]) - 1) for row in rows if row["call"]
    )
    assert errors[int(0.99 * len(errors))] < 0.06
    # Of the very first call nothing is known.
    predicted, billed = (
        sum(float(row[of]["cost_usd"]) for row in rows[1:]) for of in ("predicted", "billed")
    )
    assert abs(predicted / billed - 1) < 0.05


def sum_of(tokens: Json) -> int:
    return int(tokens["read"] + tokens["written"] + tokens["uncached"])


def test_conversations_of_two_files_share_nothing_unless_they_name_the_account(
    tmp_path: Path,
) -> None:
    lines = recorded(CLIENTS["anthropic"], clock=True, images=False, count=6)

    def first_reads(lines: list[Json]) -> list[int]:
        for name, some in (("a", lines[:3]), ("b", lines[3:])):
            text = "".join(json.dumps(line) + "\n" for line in some)
            (tmp_path / f"{name}.jsonl").write_text(text)
        ran = CliRunner().invoke(anaphora, ["simulate", str(tmp_path), "--json"])
        rows = json.loads(ran.stdout)["rows"]
        return [row["predicted"]["read"] for row in rows if row["call"] == 0]

    assert first_reads(lines)[3:] == [0, UNRECORDED, UNRECORDED]
    assert first_reads([{**line, "account": "key"} for line in lines])[3:] == [UNRECORDED] * 3


def test_clients_that_add_to_the_same_text_have_counts_of_their_own(tmp_path: Path) -> None:
    """Two programs in turn, with the same recorded text; one adds 900 tokens that no recording
    shows. Each one's first calls are as long as the ones before it."""
    lines: list[Json] = []
    for number in range(8):
        added = 900 if number % 2 else 0
        usage = {"input": 2000 + added, "cache_read": 0, "output": 5}
        lines.append({
            "id": f"conversation {number}", "group": "chatty" if added else "plain",
            "provider": "openai", "model": "gpt-4.1",
            "calls": [{"messages": 2, "usage": usage, "t": 1.7e9 + number * 86_400}],
            "messages": [
                {"role": "system", "content": "Be brief. " * 600}, {"role": "user", "content": "Hi"}
            ],
        })  # fmt: skip
    rows = simulated(tmp_path / "calls.jsonl", lines)["rows"]
    assert [sum_of(row["predicted"]) for row in rows[2:]] == [2000, 2900] * 3
