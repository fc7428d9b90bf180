"""What a method may do wrong."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from anaphora.daemon.admin import AdminMethod
from anaphora.daemon.rpc.methods import EmptyParams
from anaphora.daemon.rpc.protocol import read_message
from anaphora.daemon.rpc.service import RpcCaller, RpcService
from anaphora.daemon.slots import CallSlots


def test_d3_an_internal_error_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """D3: -32603. The log names the place, and not the text, which may quote a prompt."""

    async def fail(_: Any) -> Any:
        raise RuntimeError("-".join(("secret", "text")))

    async def notify(_: bytes) -> None:
        raise AssertionError("nothing is streamed")

    method = AdminMethod("admin.fail", EmptyParams, fail)
    delegation: Any = None  # not needed by methods of administrators
    service = RpcService(delegation, {"admin.fail": method}, CallSlots(1))
    message = read_message(b'{"jsonrpc":"2.0","id":1,"method":"admin.fail"}')
    admin = RpcCaller(app=None, is_admin=True)
    with caplog.at_level(logging.ERROR):
        answer = asyncio.run(service.answer(message, admin, "req_1", notify, []))
    assert answer is not None
    error = json.loads(answer)["error"]
    assert (error["code"], error["data"]) == (-32603, {"kind": "internal", "retryable": False})
    assert b"secret-text" not in answer
    assert "admin.fail: RuntimeError" in caplog.text
    assert "secret-text" not in caplog.text
