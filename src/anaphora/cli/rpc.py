"""`anaphora rpc`"""

from __future__ import annotations

import os
from pathlib import Path

import click

from anaphora.client.config.secrets import Secret
from anaphora.errors import InvalidRequest, Io
from anaphora.redaction import hides_arguments

from .common import EXISTING_FILE, print_json
from .daemon_connection import daemon_socket, home_option, open_home

STDIN, STDOUT = 0, 1
#: A longer file holds no token.
_MAX_BYTES = 4096


@click.command()
@click.option("--stdio", is_flag=True, help="Connect standard input and output to a daemon.")
@click.option("--schema", is_flag=True, help="Print the JSON Schemas of all methods.")
@home_option
@click.option("--app", metavar="ID", help="App that makes the calls.")
@click.option("--token-file", type=EXISTING_FILE, help="File with the app's token.")
@click.option("--token-fd", type=int, metavar="N", help="Open descriptor to read the token from.")
def command(
    stdio: bool,
    schema: bool,
    home: Path,
    app: str | None,
    token_file: Path | None,
    token_fd: int | None,
) -> None:
    """Send JSON-RPC messages to a running daemon.

    With --stdio, every line of standard input is a request or a batch, and every line of standard
    output is a response or an `llm.delta` of a streamed one. Requests run concurrently, and
    responses are printed as they complete.

    An app names itself and its token: --app ID --token-file FILE. Without a token, the owner of the
    home folder is an administrator.

    \b
      echo '{"jsonrpc":"2.0","id":1,"method":"llm.models"}' |
        anaphora rpc --stdio --home DIR --app marketing --token-file marketing.token

    Exit code 2 when no daemon runs in the home folder or the token is another app's, 7 when it is
    rejected.
    """
    if stdio == schema:
        raise click.UsageError("Give either --stdio or --schema.")
    if schema:
        from anaphora.daemon.rpc.methods import schemas

        print_json(schemas())
        return
    if token_file is not None and token_fd is not None:
        raise click.UsageError("Give either --token-file or --token-fd.")
    if (app is None) != (token_file is None and token_fd is None):
        raise click.UsageError("--app goes with --token-file or --token-fd.")
    _run(home, app, _read_token(token_file, token_fd))


def _run(home: Path, app: str | None, token: Secret | None) -> None:
    import asyncio

    from anaphora.daemon.rpc.stdio import bridge

    asyncio.run(
        bridge(
            daemon_socket(open_home(home)),
            app=app,
            token=token,
            source=STDIN,
            sink=STDOUT,
        )
    )


@hides_arguments
def _read_token(file: Path | None, descriptor: int | None) -> Secret | None:
    if file is None and descriptor is None:
        return None
    source = "--token-file" if file is not None else "--token-fd"
    try:
        with open(file if descriptor is None else descriptor, "rb") as opened:  # type: ignore[arg-type]
            data = opened.read(_MAX_BYTES + 1)
    except OSError as problem:
        raise Io(f"{source}: cannot be read: {os.strerror(problem.errno or 0)}") from None
    text = data.strip()
    if not text.isascii() or len(text.split()) != 1 or len(data) > _MAX_BYTES:
        raise InvalidRequest("holds no token: it must be one word (ana_…)", path=source)
    return Secret(text.decode())
