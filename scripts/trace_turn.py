"""Print the files of ours that one warm, streamed `send` with a tool on Anthropic runs through.

The emulator runs in a process of its own, so that only the client's files are counted. The last
line is a JSON list of paths.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import anaphora

PACKAGE = str(Path(anaphora.__file__).parent)


def look(city: str) -> str:
    """Look up the weather of a city."""
    return f"{city}: sunny"


async def traced(url: str) -> set[str]:
    tools = anaphora.ToolRegistry()
    tools.tool(look)
    claude = {"wire": "anthropic", "model": "claude-sonnet-5-5", "key": {"env": "KEY"}}
    config = {"providers": {"claude": claude | {"base_url": url}}}
    seen: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    kind: Any = getattr(anaphora, "AsyncClient", None) or anaphora.AsyncClient
    async with kind.from_config(config, environ={"KEY": "any"}) as client:
        chat = client.session("claude", system="You are terse. " * 400, tools=tools)
        async for _ in chat.run("What is the weather in Rome?"):
            pass
        sys.setprofile(profile)
        async for _ in chat.send("And in Oslo?"):
            pass
        sys.setprofile(None)
    return {name for name in seen if name.startswith(PACKAGE)}


def main() -> None:
    command = [sys.executable, "-m", "anaphora", "emulate", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = ""
            while not url:
                match = re.search(r"http://[\d.]+:\d+", server.stdout.readline())
                url = match.group() if match else ""
            files = asyncio.run(traced(url))
        finally:
            server.terminate()
    print(json.dumps(sorted(files)))


if __name__ == "__main__":
    main()
