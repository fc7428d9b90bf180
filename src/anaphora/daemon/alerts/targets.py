"""Sends an alert to a target, once: a signed POST, a run of a command, or a line of the log.

    await AlertSender(home).send(rules.to["pager"], facts)      raises `NotSent`

Errors and log lines have the name of a target, never its URL or key.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from anaphora.client.config import Key, Timeouts
from anaphora.client.config.secrets import Secret, SecretHeaders
from anaphora.client.transport import HttpRequest
from anaphora.daemon.admin import Admin, NoParams
from anaphora.daemon.health import utc
from anaphora.daemon.home import Home
from anaphora.daemon.home.alerts import AlertRules, AlertTarget, Webhook, is_url
from anaphora.daemon.home.extensions import Grants
from anaphora.daemon.home.secrets import SecretsFolder
from anaphora.errors import AnaphoraError, InvalidConfig, InvalidRequest, Transport
from anaphora.redaction import quoted
from anaphora.yaml_values import Origin

_log = logging.getLogger("anaphora.daemon")

AlertFacts: TypeAlias = Mapping[str, Any]
"""The JSON object that targets get: `kind`, `text`, and what belongs to the kind."""

SIGNATURE = "anaphora-signature"
"""`t=SECONDS,v1=HEX`: HMAC-SHA256 of `SECONDS.BODY`."""

_MOST_BYTES = 64 * 1024
_MOST_OUTPUT = 4_000
#: Variables that a command gets. No other, since a key may be in any.
_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class NotSent(Exception):
    """Why a target did not get an alert."""


class AlertSender:
    def __init__(self, home: Home) -> None:
        self._home = home

    async def send(self, target: AlertTarget, facts: AlertFacts) -> None:
        body = msgspec.json.encode(facts)
        if target.log is not None:
            _log.log(_LEVELS[target.log], "alert: %s", facts["text"])
        elif target.command is not None:
            await _run(target.command, body + b"\n", target.seconds)
        elif target.webhook is not None:
            url, key = self._secrets(target.webhook)
            await _post(url, key, body, target.seconds)

    def _secrets(self, webhook: Webhook) -> tuple[Secret, Secret]:
        """The URL and the key, read for each attempt: a replaced file counts at once."""
        url = Secret(webhook.url) if isinstance(webhook.url, str) else self._read(webhook.url)
        if not is_url(url.reveal()):
            raise NotSent(f"{webhook.url} is not a URL: it needs http:// or https://, and a host")
        return url, self._read(webhook.key)

    def _read(self, key: Key) -> Secret:
        try:
            return SecretsFolder(self._home.secrets).read(key.secret or "")
        except AnaphoraError as problem:
            raise NotSent(str(problem)) from None

    def problems(self, rules: AlertRules, origin: Origin) -> Iterator[InvalidConfig]:
        """Targets that cannot be used: a secret or a command is missing. Sends nothing."""
        for name, target in rules.to.items():
            path = ("alerts", "to", name)
            if target.command is not None and _program(target.command) is None:
                reason = f"the command {quoted(target.command[0])} is not found"
                yield origin.invalid(reason, *path, "command")
            if target.webhook is not None:
                try:
                    self._secrets(target.webhook)
                except NotSent as problem:
                    yield origin.invalid(str(problem), *path, "webhook")


def signature(key: Secret, body: bytes, at: int) -> str:
    """The value of the header `anaphora-signature`."""
    digest = hmac.digest(key.reveal().encode(), b"%d." % at + body, "sha256").hex()
    return f"t={at},v1={digest}"


async def _post(url: Secret, key: Secret, body: bytes, seconds: float) -> None:
    from anaphora.client.transport.over_aiohttp import AiohttpTransport

    headers = {"content-type": "application/json", "user-agent": "anaphora"}
    headers[SIGNATURE] = signature(key, body, int(time.time()))
    request = HttpRequest(
        method="POST",
        url=url.reveal(),
        headers=SecretHeaders(headers),
        body=body,
        timeouts=Timeouts(connect=seconds, first_byte=seconds, idle=seconds, total=seconds),
        max_response_bytes=_MOST_BYTES,
    )
    transport = AiohttpTransport()
    try:
        async with asyncio.timeout(seconds):
            answer = await transport.send(request)
            await answer.close()
    except TimeoutError:
        raise NotSent(f"no answer within {seconds:g} s") from None
    except Transport as problem:  # its text may name the host
        raise NotSent(f"the connection failed ({problem.phase})") from None
    except AnaphoraError as problem:
        raise NotSent(type(problem).__name__) from None
    finally:
        await transport.close()
    if not 200 <= answer.status < 300:
        raise NotSent(f"status {answer.status}")


def _environment() -> dict[str, str]:
    found = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {"PATH": os.defpath, **found}


def _program(command: tuple[str, ...]) -> str | None:
    return shutil.which(command[0], path=_environment()["PATH"])


async def _run(command: tuple[str, ...], body: bytes, seconds: float) -> None:
    """Runs a command without a shell. Kills it, and what it has started, after `seconds`."""
    logs = _log.isEnabledFor(logging.DEBUG)
    with tempfile.TemporaryFile() as output:
        prints = output if logs else asyncio.subprocess.DEVNULL  # else it could fill the disk
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=prints,
                stderr=prints,
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as problem:
            raise NotSent(f"the command cannot be run: {problem.strerror}") from None
        try:
            async with asyncio.timeout(seconds):
                await _feed(process, body)
                code = await process.wait()
        except TimeoutError:
            raise NotSent(f"the command did not end within {seconds:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if logs:
            output.seek(0)
            text = output.read(_MOST_OUTPUT).decode(errors="replace")
            _log.debug("the command of an alert printed: %s", text)
    if code:
        raise NotSent(f"the command ended with code {code}")


async def _feed(process: asyncio.subprocess.Process, body: bytes) -> None:
    """It may end without reading its input."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(body)
        await process.stdin.drain()
    process.stdin.close()


def register_test(admin: Admin, home: Home, grants: Callable[[], Grants], node: str) -> None:
    """Adds the method that sends a test alert to each target, once, and returns which got it."""

    async def sent(name: str, target: AlertTarget, facts: AlertFacts) -> dict[str, Any]:
        try:
            await AlertSender(home).send(target, facts)
        except NotSent as problem:
            return {"target": name, "sent": False, "reason": str(problem)}
        return {"target": name, "sent": True, "reason": ""}

    async def test(_: NoParams) -> dict[str, Any]:
        rules, at = grants().alerts, utc(time.time())
        if rules is None:
            raise InvalidRequest("extensions.yaml has no `alerts`")
        text = "a test of the alerts of Anaphora"
        facts = {"id": f"test at {at}", "at": at, "node": node, "kind": "test", "text": text}
        sends = (sent(name, target, facts) for name, target in rules.to.items())
        return {"targets": await asyncio.gather(*sends)}

    admin.register("admin.alerts.test", NoParams, test)
