"""llama.cpp's own server with a tiny model, as a child of this process.

    with running(folder) as address: ...

An engine nobody here wrote, with a real prefix cache. It comes with the wheel `xllamacpp`; the
model is written here, for which `gguf` is needed. Both are what we develop with: no extra has them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

#: The only model there is.
MODEL = "tiny"
#: It takes a tenth of a second; a machine that is busy may need more.
START_SECONDS = 60


def why_not() -> str | None:
    """Why it cannot run here; None where it can."""
    for name in ("xllamacpp", "gguf"):
        if find_spec(name) is None:
            return f"{name} is not installed"
    return None


@contextmanager
def running(
    folder: Path, *, slots: int = 1, aside: int = 0, template: str | None = None
) -> Iterator[str]:
    """The server's address, until the block ends. It ends with this process, too, whatever happens
    to it: its standard input does. The model and `llama.log` are in the folder.

    Each of the `slots` keeps the last prompt it computed, `aside` is how many MiB there are for
    prompts that were pushed out, and `template` takes the place of the model's chat template.
    """
    log = folder / "llama.log"
    command = [sys.executable, "-m", f"{__package__}.engine_child", str(folder / "tiny.gguf")]
    command += ["--slots", str(slots), "--aside", str(aside)]
    if template is not None:
        (folder / "template.jinja").write_text(template, encoding="utf-8")
        command += ["--template", str(folder / "template.jinja")]
    with log.open("wb") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    assert child.stdin is not None
    assert child.stdout is not None
    # A child that hangs instead of starting is ended, and then its output ends as well.
    patience = threading.Timer(START_SECONDS, child.kill)
    patience.start()
    try:
        address = child.stdout.readline().decode().strip()
        patience.cancel()
        if not address:
            raise RuntimeError(f"llama.cpp did not start; its log:\n{tail(log)}")
        yield address
    finally:
        patience.cancel()
        patience.join()
        child.stdin.close()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


def tail(log: Path, lines: int = 40) -> str:
    """The end of its log, for error messages."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
