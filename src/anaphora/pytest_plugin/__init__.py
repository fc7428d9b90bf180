"""The pytest plugin: a prompt cache under test, recorded conversations, a local emulator.

    def test_the_agent_keeps_its_cache(cache_contract):
        run_agent()                    # any SDK; fails where a prompt prefix broke

    def test_the_agent_answers(anaphora_replay):
        assert "Paris" in run_agent()  # from recordings; --anaphora-record=once makes them

The fixtures start a proxy on this machine and point the environment variables of the SDKs at it, so
that the tested code needs no change. pytest loads this module in every run: everything else of
Anaphora is imported when a fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from anaphora.emulator import Emulator

    from .contract import CacheContract
    from .recordings import TestRecordings
    from .redirect import Redirect

_MODES = ("none", "once", "new", "all")
_MARKERS = (
    "cache_contract(min_read_share=None, max_cost_usd=None, allow_breaks=None, live=False): limits"
    " of the `cache_contract` fixture; allow_breaks is the reason why a prefix may break, live=True"
    " sends the calls to the provider",
    "anaphora_replay(folder=None, repeat=None, match=None, rules=None): options of the"
    " `anaphora_replay` fixture",
)
_SECTION = "anaphora"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("anaphora", "prompt caches and recorded conversations")
    group.addoption(
        "--anaphora-record",
        choices=_MODES,
        default=None,
        metavar="MODE",
        help="what `anaphora_replay` does: none (the default) only replays; once records tests that"
        " have no recordings; new also records requests that are not recorded; all records"
        " everything again",
    )
    group.addoption(
        "--anaphora-report",
        metavar="FILE",
        default=None,
        help="write a Markdown summary of every cache contract, for a pull request",
    )
    parser.addini(
        "anaphora_recordings",
        "folder of the recordings, beside each test file",
        default="recordings",
    )
    parser.addini(
        "anaphora_redirect",
        "set the SDKs' environment variables before tests are imported, for applications that"
        " create their client at import",
        type="bool",
        default=False,
    )
    parser.addini("anaphora_min_read_share", "least share of input read from the cache, 0 to 1")
    parser.addini("anaphora_max_cost_usd", "most that the calls of one test may cost, in dollars")


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    if config.getini("anaphora_redirect"):
        _redirect(config).set_environment()


def pytest_unconfigure(config: pytest.Config) -> None:
    redirect = config.stash.get(_redirect_key(), None)
    if redirect is not None:
        redirect.close()


def _redirect_key() -> Any:
    from .redirect import REDIRECT

    return REDIRECT


def _redirect(config: pytest.Config) -> Redirect:
    """The proxy of this test run, started when it is first needed."""
    from .redirect import REDIRECT, Redirect

    if REDIRECT not in config.stash:
        config.stash[REDIRECT] = Redirect()
    return config.stash[REDIRECT]
