"""Limits in a response's headers apply from the next attempt on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.raw_server import answering, raw_server, reply

import anaphora
from anaphora.client.turn import Turn
from anaphora.errors import Overloaded, RateLimited, Throttled
from anaphora.values import Reply
from anaphora.wire import anthropic

BODY = b'{"type":"error","error":{"type":"api_error","message":"again"}}'
#: No request is scarce; of the prompt's tokens none is left, and 167 come back each second.
USED_UP = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\n"
    b"anthropic-ratelimit-requests-limit: 50\r\nanthropic-ratelimit-requests-remaining: 49\r\n"
    b"anthropic-ratelimit-requests-reset: 60s\r\n"
    b"anthropic-ratelimit-input-tokens-limit: 10000\r\n"
    b"anthropic-ratelimit-input-tokens-remaining: 0\r\n"
    b"anthropic-ratelimit-input-tokens-reset: 60s\r\n"
    b"content-length: %d\r\n\r\n" % len(BODY) + BODY
)


async def consume(turn: Turn, stream: bool) -> None:
    if not stream:
        await turn
        return
    async for _ in turn:
        pass


@pytest.mark.parametrize("session", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_next_attempt_waits_for_the_tokens_it_needs(session: bool, stream: bool) -> None:
    """The token limit was unknown when the call was prepared."""

    async def main() -> None:
        async with raw_server(answering(USED_UP)) as server:
            provider = {
                "wire": "anthropic",
                "base_url": server.url,
                "key": {"env": "KEY"},
                "model": "claude-sonnet-5-5",
                "retry": {"first_wait": 0.001},
            }
            config = {"providers": {"claude": provider}}
            async with anaphora.AsyncClient.from_config(config, environ={"KEY": "k"}) as client:
                if session:
                    turn = client.session("claude", timeout=5.0).send("Hello?")
                else:
                    turn = client.send("Hello?", provider="claude", timeout=5.0)
                with pytest.raises(Overloaded) as caught:
                    await consume(turn, stream)
            first, *others = caught.value.attempts
            assert (first.queued, len(others)) == (0.0, 2)
            assert all(other.queued > 0 for other in others)

    asyncio.run(main())


FOREVER = b"1000000000"
LIMITED = b'{"type":"error","error":{"type":"rate_limit_error","message":"later"}}'
REPLY = anthropic.write_reply(
    Reply(id="r", model="m", message=anaphora.Message.assistant("Hi."), stop_reason="end")
)
REFUSED = (
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: %b\r\ncontent-length: %d\r\n\r\n"
    % (FOREVER, len(LIMITED))
) + LIMITED
LAST_ONE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b"anthropic-ratelimit-requests-limit: 50\r\nanthropic-ratelimit-requests-remaining: 0\r\n"
    b"anthropic-ratelimit-requests-reset: %bs\r\ncontent-length: %d\r\n\r\n" % (FOREVER, len(REPLY))
) + REPLY
ANSWERED = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(REPLY) + REPLY


@pytest.mark.parametrize("first", [REFUSED, LAST_ONE], ids=["an error", "a header"])
def test_absurd_wait_is_not_believed(first: bytes) -> None:
    async def main(**limits: float) -> str:
        async with raw_server(answering(first, ANSWERED)) as server:
            provider = {
                "wire": "anthropic",
                "base_url": server.url,
                "key": {"env": "KEY"},
                "model": "claude-sonnet-5-5",
                "retry": {"max_attempts": 1},
                "limits": limits,
            }
            config = {"providers": {"claude": provider}}
            async with anaphora.AsyncClient.from_config(config, environ={"KEY": "k"}) as client:
                with contextlib.suppress(RateLimited):
                    await client.complete("Hello?", "claude")
                return (await client.complete("Hello?", "claude", timeout=60.0)).text

    assert asyncio.run(main(longest_wait=0.2)) == "Hi."
    with pytest.raises(Throttled) as caught:  # an hour is longer than the call may take
        asyncio.run(main())
    assert 60 < caught.value.wait <= 3600


def test_wait_beyond_all_reason_is_written_briefly() -> None:
    refused = reply(b"{}", "429 Too Many Requests", "retry-after: 1e300")

    async def main() -> None:
        async with raw_server(answering(refused)) as server:
            provider = {"wire": "anthropic", "base_url": server.url, "key": {"env": "KEY"}}
            config = {"providers": {"claude": provider | {"model": "claude-sonnet-5-5"}}}
            async with anaphora.AsyncClient.from_config(config, environ={"KEY": "k"}) as client:
                with pytest.raises(RateLimited, match=r"asks to wait 1e\+300 s, longer than"):
                    await client.complete("Hello?", "claude")

    asyncio.run(main())
