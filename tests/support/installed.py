"""Building the package, what must not be in a wheel, and programs that run where it is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Literal

#: The packages and modules of the wheel.
_TOPS = ("anaphora/", "anaphora_statusline.py")
_NEEDED = ("anaphora/py.typed", "anaphora/_tour/story.yaml")
#: The files of deploy/, in the environment that the wheel is installed in.
_SHARED = "data/data/share/anaphora/"
_DEPLOYED = ("systemd/anaphora.service", "container/compose.yaml")
_JUNK = re.compile(r"(^|/)(__pycache__|tests?)/|\.(pyc|pyo|orig|swp)$|(^|/)\.[^/]+$")


def build(source: Path, target: Literal["sdist", "wheel"], folder: Path) -> Path:
    """Builds one artefact of a source tree, without a network."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def wheel_problems(wheel: Path) -> list[str]:
    """Files that do not belong there, files that are missing, and links that lead nowhere."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        text = packed.read(metadata).decode()
    info = metadata.partition("/")[0] + "/"
    folder = info.removesuffix("dist-info/")
    problems = [
        f"{name}: no part of the package"
        for name in sorted(names)
        if not name.startswith((*_TOPS, info, f"{folder}{_SHARED}")) or _JUNK.search(name)
    ]
    needed = (*_NEEDED, *(f"{folder}{_SHARED}{name}" for name in _DEPLOYED))
    problems += [f"{name}: missing" for name in needed if name not in names]
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'\b(?:src|srcset)="([^"]+)"', text)
    problems += [
        f"README: {link} is relative" for link in links if not link.startswith(("https://", "#"))
    ]
    return problems if "# Anaphora\n" in text else [*problems, "README: missing"]


#: Runs several commands, given as JSON, and prints exit code, output and errors of each.
COMMANDS = """
import io, json, sys
from anaphora.cli.main import main

done = []
for line in json.loads(sys.argv[1]):
    streams = sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    try:
        code = main(line)
    except SystemExit as ended:
        code = ended.code or 0
    done.append([code, *(stream.getvalue() for stream in streams)])
sys.stdout = sys.__stdout__
print(json.dumps(done))
"""

#: Calls the emulator at a URL in seven ways, and prints the cost of each.
CALLS = """
import asyncio, os, sys
import anaphora

url = sys.argv[1]
claude = {"wire": "anthropic", "base_url": url, "key": {"env": "KEY"}}
llm = {"providers": {"claude": claude | {"model": "claude-sonnet-4-5"}}}
answers = []


async def main():
    async with anaphora.AsyncClient.from_config(llm, environ={"KEY": "any"}) as client:
        answers.append(await client.complete("Hello?", "claude"))
        turn = client.send("Hello?", "claude")
        async for event in turn: pass
        answers.append(turn.response)
        chat = client.session("claude")
        answers.append(await chat.send("Hello?"))
        turn = chat.send("Hello?")
        async for event in turn: pass
        answers.append(turn.response)
        assert chat.cost_usd == answers[2].cost_usd + answers[3].cost_usd


asyncio.run(main())
with anaphora.Client.from_config(llm, environ={"KEY": "any"}) as client:
    answers.append(client.complete("Hello?", "claude"))
    answers.append(client.session("claude").send("Hello?").result())
    turn = client.send("Hello?", "claude")
    assert [*turn]
    answers.append(turn.response)
for answered in answers:
    assert answered.text and answered.notices == (), answered.notices
    print(answered.cost_usd)
"""
