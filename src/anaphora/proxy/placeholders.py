"""Placeholder credentials for replayed programs: they start without their own, and reach no token
server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from anaphora.client.config.environment import default_rows, key_variables
from anaphora.client.credentials.aws_keys import REGION_VARIABLES
from anaphora.serving.exchange import CompleteResponse, HttpExchange

from .command_line import TABLES, parse
from .destinations import expanded
from .signing import PLACEHOLDER_KEYS, known_region

#: The value of key variables in replay, for programs that require one.
PLACEHOLDER_KEY = "anaphora-replay"
#: A region for programs that require one; recordings do not depend on it.
_REGION = "us-east-1"
_TOKEN_PATH = "/_replay/token"


def with_placeholder_keys(environ: Mapping[str, str], command: Sequence[str]) -> dict[str, str]:
    """Adds a value for the unset key variables of providers, for programs that do not start without
    one. A program with its own credentials gets none, except AWS keys."""
    made = dict(environ)
    for name in _missing_keys(environ, command):
        made[name] = PLACEHOLDER_KEY
    # Keys of the environment come before a profile's, which may need the network.
    if not made.get("AWS_ACCESS_KEY_ID"):
        made |= PLACEHOLDER_KEYS
    if not known_region(made):
        made |= dict.fromkeys(REGION_VARIABLES, _REGION)
    return made


def _missing_keys(environ: Mapping[str, str], command: Sequence[str]) -> Iterator[str]:
    program, rows = parse(command).program, default_rows()
    if program is not None:
        if any(os.path.exists(expanded(file, environ)) for file in program.login):
            return
        yield from (name for name in program.keys if not environ.get(name))
    for one in TABLES.variables:
        names = key_variables(rows[one.provider]) if one.provider else ()
        if one.key and environ.get(one.name):
            names = (one.key,)
        if names and not any(environ.get(name) for name in names):
            yield names[0]


class PlaceholderTokens:
    """A page of the proxy (`relay.Pages`) that answers like Google's token service, and the file of
    credentials that leads there."""

    def serves(self, path: str) -> bool:
        return path == _TOKEN_PATH

    async def answer(self, exchange: HttpExchange) -> None:
        token = {
            "access_token": PLACEHOLDER_KEY,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": 3600,
        }
        await exchange.respond(
            CompleteResponse(200, {"content-type": "application/json"}, msgspec.json.encode(token))
        )

    def environment(self, folder: str, url: str) -> dict[str, str]:
        """The variables for a program; the file is written to `folder`."""
        file = Path(folder) / "google.json"
        credentials = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/anaphora-replay",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{url}{_TOKEN_PATH}",
            "credential_source": {"file": str(file)},
        }
        file.write_bytes(msgspec.json.encode(credentials))
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(file), "CLAUDE_CODE_SKIP_VERTEX_AUTH": "1"}
