"""Methods that fail, and the page that describes them all."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from anaphora.daemon.access.checks import CallSlots
from anaphora.daemon.admin import AdminMethod
from anaphora.daemon.rpc import protocol
from anaphora.daemon.rpc.methods import METHODS, EmptyParams
from anaphora.daemon.rpc.protocol import RpcRequest, read_message
from anaphora.daemon.rpc.service import RpcCaller, RpcService


def test_d3_an_internal_error_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """D3: -32603. The log names the place, and not the text, which may quote a prompt."""

    async def fail(_: Any) -> Any:
        raise RuntimeError("-".join(("secret", "text")))

    async def notify(_: bytes) -> None:
        raise AssertionError("nothing is streamed")

    method = AdminMethod("admin.fail", EmptyParams, fail)
    delegation: Any = None  # not needed by methods of administrators
    tokens: Any = None
    service = RpcService(delegation, {"admin.fail": method}, CallSlots(1), tokens)
    message = read_message(b'{"jsonrpc":"2.0","id":1,"method":"admin.fail"}')
    admin = RpcCaller(app=None, is_admin=True, notify=notify, notices=[])
    with caplog.at_level(logging.ERROR):
        answer = asyncio.run(service.answer(message, admin, "req_1"))
    assert answer is not None
    error = json.loads(answer)["error"]
    assert (error["code"], error["data"]) == (-32603, {"kind": "internal", "retryable": False})
    assert b"secret-text" not in answer
    assert "admin.fail: RuntimeError" in caplog.text
    assert "secret-text" not in caplog.text


def test_the_page_names_every_method_and_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "json-rpc.md").read_text()
    assert [name for name in METHODS if f"`{name}`" not in page] == []
    constants = [value for value in vars(protocol).values() if isinstance(value, int)]
    numbers = [value for value in constants if value < 0]
    assert [number for number in numbers if f"| {number} |" not in page] == []
    example, *_ = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    message = read_message(example.encode())
    assert isinstance(message, RpcRequest)
    assert message.params is not None
    assert METHODS[message.method].read_params(message.params).max_tokens == 512
