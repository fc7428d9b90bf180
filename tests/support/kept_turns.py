"""One conversation in three ways: in one session, in a session for each turn, and in a process for
each turn. All of them return what was sent and its verdict."""

from __future__ import annotations

import asyncio
import hashlib
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from support.emulated_client import KEY, RecordingTransport, settings

from anaphora import AsyncClient, Message
from anaphora.client.arguments import prompt_from
from anaphora.client.session import PrefixWarning, Session
from anaphora.values import from_json, to_json


class Directory(MutableMapping[str, bytes]):
    """A mapping that several processes share: a file for each key."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def _file(self, key: str) -> Path:
        return self._path / hashlib.sha256(key.encode()).hexdigest()

    def __getitem__(self, key: str) -> bytes:
        try:
            return self._file(key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: bytes) -> None:
        self._file(key).write_bytes(value)

    def __delitem__(self, key: str) -> None:
        try:
            self._file(key).unlink()
        except FileNotFoundError:
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        return (file.name for file in self._path.iterdir())

    def __len__(self) -> int:
        return len(list(self._path.iterdir()))


class TurnResult(msgspec.Struct):
    """What a turn sent, and what became of it."""

    bodies: list[bytes]
    verdict: str
    predicted: int | None
    notices: list[str]
    cost_usd: str


@asynccontextmanager
async def opened(
    url: str,
    wires: str,
    conversations: Any = None,
    provider: Mapping[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[AsyncClient]:
    """A client with these providers; `provider` adds settings to each of them."""
    transport = RecordingTransport()
    client = AsyncClient.from_config(
        {"providers": settings(url, wires.split(), **(provider or {}))} | config,
        environ={"KEY": KEY},
        transport=transport,
        conversations=conversations,
    )
    try:
        yield client
        await client.close()
    finally:
        await transport.close()


def transport_of(client: AsyncClient) -> RecordingTransport:
    transport: Any = client._pool._transport
    assert isinstance(transport, RecordingTransport)
    return transport


async def take_turn(client: AsyncClient, chat: Session, text: str) -> TurnResult:
    transport = transport_of(client)
    before = len(transport.sent)
    response = await chat.send(text)
    return TurnResult(
        bodies=transport.bodies[before:],
        verdict=str(response.record.verdict),
        predicted=response.record.predicted,
        notices=[f"{each.code}: {each.message}" for each in response.notices],
        cost_usd=str(chat.cost_usd),
    )


def _reloaded(saved: list[bytes]) -> list[Message]:
    return [from_json(message, Message) for message in saved]


def in_one_session(
    url: str, wire: str, texts: list[str], system: Callable[[int], str], **options: Any
) -> list[TurnResult]:
    async def run() -> list[TurnResult]:
        results = []
        async with opened(url, wire) as client:
            chat = client.session(wire, system=system(0), **options)
            for number, text in enumerate(texts):
                # As the keyword `system` of a session that is made for each turn.
                prompt = prompt_from(system(number), None)
                history = chat.turns.history
                history.source = msgspec.structs.replace(history.source, prompt=prompt)
                results.append(await take_turn(client, chat, text))
        return results

    return asyncio.run(run())


def in_sessions(
    url: str, wire: str, texts: list[str], system: Callable[[int], str], **options: Any
) -> list[TurnResult]:
    async def run() -> list[TurnResult]:
        saved: list[bytes] = []
        results = []
        async with opened(url, wire) as client:
            for number, text in enumerate(texts):
                chat = client.session(
                    wire,
                    id="user-42",
                    system=system(number),
                    messages=_reloaded(saved),
                    save=lambda message: saved.append(to_json(message)),
                    **options,
                )
                results.append(await take_turn(client, chat, text))
        return results

    return asyncio.run(run())


def in_this_process(
    url: str, wire: str, directory: str, text: str, system: str, saved: list[bytes], options: Any
) -> tuple[bytes, list[bytes]]:
    """One turn by a client that knows nothing; what it adds to the history."""

    async def run() -> tuple[TurnResult, list[bytes]]:
        added: list[bytes] = []
        async with opened(url, wire, Directory(directory)) as client:
            chat = client.session(
                wire,
                id="user-42",
                system=system,
                messages=_reloaded(saved),
                save=lambda message: added.append(to_json(message)),
                **options,
            )
            return await take_turn(client, chat, text), added

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrefixWarning)
        result, added = asyncio.run(run())
    return msgspec.msgpack.encode(result), added


def in_processes(
    pool: Any,
    url: str,
    wire: str,
    texts: list[str],
    system: Callable[[int], str],
    directory: Path,
    **options: Any,
) -> list[TurnResult]:
    """Each turn by one of the pool's processes, with a client of its own."""
    saved: list[bytes] = []
    results = []
    for number, text in enumerate(texts):
        arguments = url, wire, str(directory), text, system(number), saved, options
        result, added = pool.submit(in_this_process, *arguments).result()
        saved += added
        results.append(msgspec.msgpack.decode(result, type=TurnResult))
    return results
