"""The JSON log: one object a line, nothing of exceptions, and never in the way."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import pytest

from anaphora.client.failures import log as log_failure
from anaphora.daemon import monitoring
from anaphora.daemon.monitoring import REQUEST_ID, JsonLog, logging_to


def lines(file: Path) -> list[dict[str, str]]:
    return [msgspec.json.decode(line) for line in file.read_text().splitlines()]


def test_messages_of_the_package_have_the_request_id(tmp_path: Path) -> None:
    log = JsonLog(tmp_path / "log")
    token = REQUEST_ID.set("req_1")
    with logging_to(log):
        logging.getLogger("anaphora.any").warning("a\nb %s", 7)
        try:
            raise ValueError("cana" + "ry")
        except ValueError as problem:
            log_failure(logging.ERROR, "failed", problem)
    logging.getLogger("anaphora.any").warning("after")
    REQUEST_ID.reset(token)
    log.close()
    first, second = lines(tmp_path / "log")
    assert first["message"] == "a"
    assert (first["trace"], first["level"], first["request_id"]) == ("b 7", "warning", "req_1")
    assert "canary" not in str(second)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_lines_above_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "_MOST_WAITING", 3)
    log = JsonLog(tmp_path / "log")
    for number in range(10):
        log.line("info", str(number))
    log.close()
    *kept, last = lines(tmp_path / "log")
    left_out = 10 - len(kept)
    assert last["message"].startswith(f"{left_out} log lines were left out")


def test_reader_that_is_gone_does_not_end_the_daemon() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        log = JsonLog(Path(f"/proc/self/fd/{pipe.fileno()}"))
        log.line("info", "lost")
        log.close()
