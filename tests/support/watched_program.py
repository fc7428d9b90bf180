"""The proxy in front of the emulator, and the calls of a program that pass both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from anaphora.emulator.server import Emulator
from anaphora.proxy.page import WatchedCalls, WatchPage
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.traffic.judging import Judge

from .dashboard_data import SCRIPT

KEY = "sk-canary-of-a-program"
LONG = "You sell tea, and answer in one line. " * 300


class Hosts(NamedTuple):
    """A program's calls pass the proxy, and the emulator answers them."""

    proxy: Proxy
    watch: str
    """The address of the proxy's pages."""
    emulator: str

    def ask(self, day: str, **changes: Any) -> None:
        text = {"type": "text", "text": f"Today is {day}. {LONG}"}
        body: dict[str, Any] = {
            "model": "claude-opus-5-5",
            "max_tokens": 20,
            "system": [{**text, "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": "Hello"}],
        }
        headers = {"anthropic-version": "2023-06-01", "x-api-key": KEY}
        url = self.proxy.url_of("anthropic") + "/v1/messages"
        httpx.post(url, json=body | changes, headers=headers)
        assert self.proxy.settle(10)


@contextmanager
def watched_program(emulator: Emulator) -> Iterator[Hosts]:
    """After three turns, the last of which broke the prefix, and an error."""
    judge = Judge()
    calls = WatchedCalls(judge)
    page = WatchPage(judge, calls)
    routes = default_routes({"anthropic": emulator.url})
    with running(routes, observers=[judge, calls], pages=page) as proxy:
        hosts = Hosts(proxy, proxy.url + page.path, f"{emulator.url}/_emulator")
        for day in ("Monday", "Monday", f"Tuesday {SCRIPT}"):
            hosts.ask(day)
        hosts.ask("Monday", max_tokens=-1)
        yield hosts
