"""`anaphora watch --fix` by the emulator's clock, a new one for each line of stdin.

    python watching.py CLOCK PORT URL

A line is the folder of the next proxy: its HOME, and its output in the file `watch`. The proxy
before it is killed: no proxy knows the conversations of another. Modules are imported once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

# The folder `bench`.
sys.path.append(str(Path(__file__).resolve().parents[2]))
_MODULES = ("cli.main", "cli.watch", "cli.watch_output", "proxy.server",
            "proxy.page", "proxy.launch", "traffic.judging", "traffic.placing")  # fmt: skip


def run(folder: str, port: str, url: str) -> None:
    """The proxy, with the upstreams of the emulator; it ends with the process."""
    os.environ["HOME"] = folder
    output = os.open(Path(folder) / "watch", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    upstreams = [f"{name}={url}" for name in ("anthropic", "openai", "google", "bedrock")]
    upstreams.append(f"deepseek={url}/deepseek")
    sys.argv = ["anaphora", "watch", "--fix", "--port", port]
    for each in upstreams:
        sys.argv += ["--upstream", each]
    import_module("anaphora.cli.main").main()


def main(clock: str, port: str, url: str) -> None:
    import_module("cachebench.clients.virtual_clock").install(Path(clock))
    for name in _MODULES:
        import_module(f"anaphora.{name}")
    child = 0
    with contextlib.suppress(KeyboardInterrupt):
        # Not `sys.stdin`: a child would read on in its buffer.
        while line := os.read(0, 4096):
            if child:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            child = os.fork()
            if not child:
                try:
                    run(line.decode().strip(), port, url)
                finally:
                    os._exit(1)
    if child:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
