"""What `daemon.py` puts its load on, each in a process of its own.

    python bench/_lent.py upstream PORT
    python bench/_lent.py bare PORT UPSTREAM_PORT
    python bench/_lent.py daemon PORT HOME
    python bench/_lent.py no_ledger PORT HOME

`upstream` gives the same answers to all requests. `bare` is a pass-through of the same library,
aiohttp at both ends, with nothing around it; `daemon` is `anaphora serve`; `no_ledger` is the same
without holds and settlements, which are left out of the steps of its calls.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _proxied import HOPS, read
from _served import serve

APP = "bench"
KEY = "sk-bench"
MODEL = "gpt-4o"
PATH = "/v1/chat/completions"
#: A model of Anthropic's, and where its requests go.
CLAUDE, MESSAGES_PATH = "claude-sonnet-4-6", "/v1/messages"
#: Of a request, on average over the turns of a conversation.
MESSAGES, BYTES = 42, 40_000
TURNS = 10
#: Replaced by the number of the conversation.
CONVERSATION = "@" * 8

_SENTENCE = "The order was sent on Monday, and nobody has heard of it since. "
_STREAM = re.compile(rb'"stream":\s*true')


def request_body(
    turn: int,
    *,
    stream: bool,
    messages: int = MESSAGES,
    size: int = BYTES,
    path: str = PATH,
    model: str = MODEL,
) -> dict[str, Any]:
    """An agent's request: each turn sends a reply and a question more than the one before, so that
    there are so many messages and bytes on average."""
    count = max(1, messages - TURNS + 1 + 2 * turn) if messages > 1 else 1
    size = size // messages - 40
    start = [{"role": "system", "content": (_SENTENCE * size)[:size]}]
    said = [
        {
            "role": "assistant" if at % 2 else "user",
            "content": f"{CONVERSATION}, {at}: {_SENTENCE * size}"[:size],
        }
        for at in range(max(1, count - 1))
    ]
    body: dict[str, Any] = {"model": model, "messages": said, "max_tokens": 300}
    if count > 1 and path == MESSAGES_PATH:
        body["system"] = start[0]["content"]
        # The last message is the user's.
        body["messages"] = said if len(said) % 2 else said[:-1]
    elif count > 1:
        body["messages"] = start + said
    if stream:
        body["stream"] = True
    if stream and path == PATH:
        body["stream_options"] = {"include_usage": True}
    return body


def raw_requests(
    headers: dict[str, str],
    *,
    stream: bool = False,
    messages: int = MESSAGES,
    size: int = BYTES,
    path: str = PATH,
    model: str = MODEL,
) -> list[bytes]:
    """The turns of a conversation, as they go over a socket."""
    bodies = [
        request_body(turn, stream=stream, messages=messages, size=size, path=path, model=model)
        for turn in range(TURNS)
    ]
    return [raw_request(headers, json.dumps(body).encode(), path) for body in bodies]


def raw_request(headers: dict[str, str], data: bytes, path: str) -> bytes:
    about = {"host": "127.0.0.1", "content-type": "application/json", **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in about.items())]
    lines.append(f"content-length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def upstream() -> Any:
    """Answers at once, with what the emulator answers to such a request when it has the prefix in
    its cache: so it is for all turns of a conversation but the first."""
    from anaphora.emulator import EmulatorOptions, Latency
    from anaphora.emulator.engine import Engine
    from anaphora.emulator.exchange import EmulatorRequest

    engine = Engine(EmulatorOptions(latency=Latency(first=0.0)))
    answers = {}
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    for path, model in ((PATH, MODEL), (MESSAGES_PATH, CLAUDE)):
        named = headers | ({"anthropic-version": "2023-06-01"} if model == CLAUDE else {})
        for stream in (False, True):
            data = json.dumps(request_body(0, stream=stream, path=path, model=model)).encode()
            for now in (1e9, 1e9 + 60):
                answer = engine.respond(
                    EmulatorRequest(method="POST", path=path, headers=named, body=data, now=now)
                )
            assert answer.status == 200, answer.body
            pairs = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
            if not answer.stream:
                pairs.append((b"content-length", b"%d" % len(answer.body)))
            answers[path, stream] = pairs, [chunk.data for chunk in answer.chunks]

    async def handle(scope: Any, receive: Any, send: Any) -> None:
        body = await read(receive)
        path = MESSAGES_PATH if scope["path"] == MESSAGES_PATH else PATH
        headers, pieces = answers[path, _STREAM.search(body) is not None]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": pieces[-1], "more_body": False})

    return handle


def serve_bare(port: int, upstream_port: int) -> None:
    """As little as passes a request on and its response back."""
    import aiohttp
    from aiohttp import web
    from yarl import URL

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=timeout
        ) as session:

            async def handle(request: web.BaseRequest) -> web.StreamResponse:
                headers = [
                    (name, value)
                    for name, value in request.headers.items()
                    if name.lower().encode() not in HOPS
                ]
                async with session.request(
                    request.method,
                    URL(f"http://127.0.0.1:{upstream_port}{request.raw_path}", encoded=True),
                    headers=headers,
                    data=await request.read(),
                    allow_redirects=False,
                ) as answer:
                    response = web.StreamResponse(status=answer.status)
                    for name, value in answer.headers.items():
                        if name.lower().encode() not in HOPS:
                            response.headers.add(name, value)
                    await response.prepare(request)
                    async for piece in answer.content.iter_any():
                        await response.write(piece)
                    await response.write_eof()
                    return response

            server = web.Server(handle, access_log=None)
            await asyncio.get_running_loop().create_server(server, "127.0.0.1", port, backlog=1024)
            await asyncio.Event().wait()

    asyncio.run(run())


def create_home(folder: Path, upstream_port: int) -> str:
    """A home with one app that everything is checked, held, audited and judged for. Returns the
    app's token."""
    from anaphora.cli.serve import create_token
    from anaphora.daemon.home import Home, init

    provider = {
        "wire": "openai_chat",
        "base_url": f"http://127.0.0.1:{upstream_port}",
        "model": MODEL,
        "key": {"secret": "PROVIDER_KEY"},
    }
    claude = provider | {"wire": "anthropic", "model": CLAUDE}
    daemon = {"max_streams_per_app": 256, "log_file": "daemon.log"}
    llm = {"providers": {"openai": provider, "anthropic": claude}, "daemon": daemon}
    grant = {
        "capabilities_grant": ["llm_complete", "llm_stream"],
        "llm": {
            "providers": ["openai", "anthropic"],
            "models": [MODEL, CLAUDE],
            "max_tokens": 4096,
            "requests_per_minute": 10_000_000,
            "tokens_per_minute": 10**12,
            "usd_per_day": 100_000_000,
            "usd_per_month": 900_000_000,
        },
    }
    folder.mkdir(mode=0o700)
    (folder / "llm.yaml").write_text(json.dumps(llm))
    (folder / "extensions.yaml").write_text(json.dumps({APP: grant}))
    init(folder)
    secret = folder / "secrets" / "PROVIDER_KEY.txt"
    secret.touch(mode=0o600)
    secret.write_text(KEY + "\n")
    return asyncio.run(create_token(Home.open(folder), APP)).reveal()


def node_homes(
    folder: Path, upstream_port: int, servers: Mapping[str, str], count: int
) -> tuple[str, list[Path]]:
    """Homes of so many nodes of one installation, and the token of their app. `servers` are `store`
    and `shared` of the daemon section."""
    from anaphora.daemon.access.identity import Directory
    from anaphora.daemon.home import Home
    from anaphora.daemon.home.extensions import Grants
    from anaphora.daemon.store.postgres import PostgresStore
    from anaphora.postgres.address import PostgresAddress

    first = folder / "first"
    create_home(first, upstream_port)
    llm = json.loads((first / "llm.yaml").read_text())
    homes = []
    for number in range(count):
        homes.append(folder / f"node{number}")
        shutil.copytree(first, homes[-1])
        llm["daemon"] |= {**servers, "node": homes[-1].name}
        (homes[-1] / "llm.yaml").write_text(json.dumps(llm))

    async def token() -> str:
        store = await PostgresStore.open(PostgresAddress.parse(servers["store"]))
        grants = Grants.read(first / "extensions.yaml")
        directory = await Directory.open(Home.open(homes[0]), store, grants)
        created = await directory.create_token(APP)
        await store.close()
        return created.token.reveal()

    return asyncio.run(token()), homes


def remove_ledger() -> None:
    """Leaves holds and settlements out of the steps of calls: for this process only."""
    from anaphora.daemon.calls.pipeline import CallPipeline, CallStep

    use = CallPipeline.use

    def use_others(pipeline: CallPipeline, *steps: CallStep) -> None:
        use(pipeline, *(step for step in steps if step.name not in ("hold", "settle")))

    CallPipeline.use = use_others  # type: ignore[assignment,method-assign]


def main() -> None:
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "upstream":
        serve(upstream(), port)
    elif kind == "bare":
        serve_bare(port, int(sys.argv[3]))
    else:
        from anaphora.cli.main import main as run

        if kind == "no_ledger":
            remove_ledger()
        sys.exit(run(["serve", "--home", sys.argv[3], "--port", str(port), *sys.argv[4:]]))


if __name__ == "__main__":
    main()
