"""A small agent: two tools, a system prompt that never changes, and state that always does.

    python examples/agent.py

It runs against the emulator, so it needs no key and no network. To use a provider, replace `config`
by the path of an llm.yaml.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

from anaphora import AsyncClient, RunResult, ToolRegistry, emulator

NOTES = {
    "rome.md": "Trains from the airport leave every 15 minutes. The museum is closed on Mondays.",
    "paris.md": "Buy metro tickets in packs of ten. The tower opens at 9:30.",
}

#: Stable: these bytes are the same in every call, so the provider caches them.
INSTRUCTIONS = "You answer travel questions from notes, and name the note. " * 60

tools = ToolRegistry()


@tools.tool
def list_notes() -> str:
    """List the names of all notes."""
    return "\n".join(NOTES)


@tools.tool
def read_note(name: str) -> str:
    """Read one note.

    Args:
        name: A name from list_notes.
    """
    return NOTES.get(name, f"There is no note {name}.")


def state() -> str:
    """Changes with every call, so it goes after everything that is cached."""
    return f"It is {datetime.datetime.now(datetime.UTC):%H:%M:%S} UTC."


async def run(config: Any, questions: list[str]) -> list[RunResult]:
    """Ask the questions in one conversation, and print what each of them cost."""
    results = []
    async with AsyncClient.from_config(config, environ={"KEY": "any"}) as client:
        session = client.session("claude", system=INSTRUCTIONS, tools=tools, state=state)
        for question in questions:
            print(f"> {question}\n  before: {session.preview(question)}")
            result = await session.run(question, max_turns=8)
            print(f"  {result.text}\n  {result.turns} turns, ${result.cost_usd}")
            assert result.last is not None
            print(f"  after: {result.last.verdict}")
            results.append(result)
    return results


def main() -> None:
    with emulator.running() as emu:
        claude = {
            "wire": "anthropic",
            "model": "claude-sonnet-5-5",
            "base_url": emu.url,
            "key": {"env": "KEY"},
        }
        questions = ["How do I get to Rome from the airport?", "And when does the tower open?"]
        asyncio.run(run({"providers": {"claude": claude}}, questions))


if __name__ == "__main__":
    main()
