"""Builds the package, checks it and tries it as users install it. Nothing is uploaded.

    python scripts/release.py              what `make release` runs: dist/ and a summary
    python scripts/release.py --dist DIR   into another folder

The sdist is built from this tree, the wheel from the sdist. The library alone is tried from the
wheel, all extras from the sdist, each in an empty environment with the pinned versions. Both leave
their environments in .release; that needs the network, or a cache of uv.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from support.installed import CALLS, COMMANDS, build, wheel_problems  # noqa: E402
from support.usage_home import write_example_home  # noqa: E402

from anaphora.cli.common import COMMANDS as COMMAND_NAMES  # noqa: E402
from anaphora.version import __version__  # noqa: E402

HOME = ROOT / ".release"
PINS = ROOT / "requirements"
#: Of the sdist; the rest of the repository is not part of it.
_SDIST_TOPS = frozenset(
    "src examples tests docs scripts pyproject.toml README.md CHANGELOG.md CONTRIBUTING.md LICENSE"
    " SECURITY.md PKG-INFO .gitignore".split()
)


class ReleaseFailed(Exception):
    pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    dist = parser.parse_args().dist.resolve()
    done: list[tuple[str, str, float]] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="anaphora-release-") as scratch:
        release = Release(dist, Path(scratch))
        for name, step in release.steps().items():
            print(f"release: {name} …", flush=True)
            started = time.monotonic()
            try:
                done.append((name, step(), time.monotonic() - started))
            except (ReleaseFailed, subprocess.CalledProcessError) as problem:
                print(f"release: {name} failed: {problem}", file=sys.stderr)
                print(getattr(problem, "stderr", None) or "", file=sys.stderr)
                return 1
    print(f"\nanaphora {__version__}, {time.monotonic() - began:.0f} s; nothing was uploaded")
    for name, shown, seconds in done:
        print(f"  {name:<28} {seconds:5.1f} s   {shown}")
    for file in sorted(dist.iterdir()):
        print(f"  {file.relative_to(dist.parent)}  {file.stat().st_size:,} bytes")
    return 0


class Release:
    def __init__(self, dist: Path, scratch: Path) -> None:
        self.dist = dist
        self._scratch = scratch
        self._tools = HOME / "tools"
        self._sdist = self._wheel = Path()

    def steps(self) -> dict[str, Callable[[], str]]:
        return {
            "tools": self.install_tools,
            "build": self.build,
            "twine check": self.check_metadata,
            "check-wheel-contents": self.check_contents,
            "bill of materials": self.list_materials,
            "the library alone": self.try_library,
            "all extras": self.try_everything,
            "uvx anaphora usage": self.try_uvx,
        }

    def install_tools(self) -> str:
        """The tools of requirements/release.txt, and uv, with hashes."""
        pinned = PINS / "release.txt"
        stamp = self._tools / "stamp"
        wanted = f"{ROOT} {sys.version} {pinned.read_text()}{(PINS / 'uv.txt').read_text()}"
        if not stamp.is_file() or stamp.read_text() != wanted:
            _run(sys.executable, "-m", "venv", "--clear", str(self._tools))
            python = str(self._tools / "bin" / "python")
            pip = (python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r")
            _run(*pip, str(PINS / "uv.txt"))
            _run(
                *self._uv("pip", "install"),
                "--python",
                python,
                "--require-hashes",
                "-r",
                str(pinned),
            )
            stamp.write_text(wanted)
        return "pinned by hash in requirements/release.txt"

    def build(self) -> str:
        """The sdist of this tree, and the wheel of what the sdist holds."""
        shutil.rmtree(self.dist, ignore_errors=True)
        self.dist.mkdir(parents=True)
        self._sdist = build(ROOT, "sdist", self.dist)
        with tarfile.open(self._sdist) as packed:
            packed.extractall(self._scratch, filter="data")
        (source,) = self._scratch.glob("anaphora-*")
        _fail_for(
            f"{one.name}: not expected in the sdist"
            for one in source.iterdir()
            if one.name not in _SDIST_TOPS
        )
        self._wheel = build(source, "wheel", self.dist)
        expected = {f"anaphora-{__version__}.tar.gz", f"anaphora-{__version__}-py3-none-any.whl"}
        _fail_for(
            f"{file.name}: not expected"
            for file in self.dist.iterdir()
            if file.name not in expected
        )
        return f"{self._sdist.name}, {self._wheel.name}"

    def check_metadata(self) -> str:
        self._tool("twine", "check", "--strict", str(self._sdist), str(self._wheel))
        # Without a renderer for Markdown, twine passes every README.
        with zipfile.ZipFile(self._wheel) as packed:
            (name,) = (each for each in packed.namelist() if each.endswith("/METADATA"))
            _, _, readme = packed.read(name).decode().partition("\n\n")
        (self._scratch / "README.md").write_text(readme, encoding="utf-8")
        page = self._tool("python", "-m", "readme_renderer", str(self._scratch / "README.md"))
        missing = [tag for tag in ("<h1", "<pre", "<table", "<li>") if tag not in page]
        _fail_for(f"README: rendered without {tag}" for tag in missing)
        return "the metadata of both, and the README as an index renders it"

    def check_contents(self) -> str:
        self._tool(
            "check-wheel-contents", "--config", str(ROOT / "pyproject.toml"), str(self._wheel)
        )
        _fail_for(wheel_problems(self._wheel))
        return "only the package, with py.typed; no relative link"

    def list_materials(self) -> str:
        """The base dependencies, their versions and hashes, as CycloneDX."""
        base, file = self._scratch / "base.txt", self.dist / f"anaphora-{__version__}.cdx.json"
        compile_ = self._uv(
            "pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes"
        )
        places = ("--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-annotate")
        pins = ("-c", str(PINS / "dev.txt"), "-o", str(base))
        _run(*compile_, *places, *pins, str(ROOT / "pyproject.toml"))
        options = ("--mc-type", "library", "--output-reproducible", "-o", str(file))
        project = ("--pyproject", str(ROOT / "pyproject.toml"))
        self._tool("cyclonedx-py", "requirements", *project, *options, str(base))
        listed: dict[str, Any] = json.loads(file.read_text())
        listed["metadata"]["component"]["version"] = __version__  # a dynamic one is not read
        file.write_text(json.dumps(listed, indent=2) + "\n")
        parts = listed["components"]
        _fail_for(
            f"{part['name']}: no version or hash"
            for part in parts
            if not part.get("version") or not _hashes(part)
        )
        return f"{len(parts)} packages, each with version and hashes"

    def try_library(self) -> str:
        """The wheel without extras: imported, and called against an emulator that runs in the other
        environment."""
        python = self._environment("library", str(self._wheel))
        found = _run(
            python, "-c", "import anaphora; print(anaphora.__version__, anaphora.__file__)"
        )
        version, file = found.split()
        if version != __version__ or not file.startswith(str(HOME)):
            raise ReleaseFailed(f"imported {version} from {file}")
        everything = self._environment("everything", f"anaphora[all] @ {self._sdist.as_uri()}")
        with _emulator(everything) as url:
            costs = _run(python, "-c", CALLS, url).split()
        if len(costs) != 7 or not all(float(cost) > 0 for cost in costs):
            raise ReleaseFailed(f"costs of the calls: {costs}")
        return f"{len(costs)} calls of the wheel, each with its cost"

    def try_everything(self) -> str:
        """The sdist with `[all]`: the demo, and the help of every command."""
        python = str(HOME / "everything" / "bin" / "python")
        started = os.times()
        shown = _run(str(Path(python).with_name("anaphora")), "demo")
        ended = os.times()
        if "Miss: none of" not in shown or "Try next" not in shown:
            raise ReleaseFailed(f"anaphora demo printed:\n{shown}")
        lines = [[name, "--help"] for name in COMMAND_NAMES]
        results = json.loads(_run(python, "-c", COMMANDS, json.dumps(lines)))
        _fail_for(
            f"anaphora {line[0]} --help: exit code {code}: {errors}"
            for line, (code, _, errors) in zip(lines, results, strict=True)
            if code != 0
        )
        seconds = sum(ended[2:4]) - sum(started[2:4])
        return f"the demo in {seconds:.1f} s of CPU time, --help of {len(lines)} commands"

    def try_uvx(self) -> str:
        """As `uvx anaphora usage` runs it, in a home with sessions."""
        home = write_example_home(self._scratch / "home")
        words = (*self._uv("tool", "run"), "--isolated", "--python", sys.executable)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CLAUDE_", "CODEX_", "XDG_"))
        }
        cache = {"UV_CACHE_DIR": _run(self._uv()[0], "cache", "dir").strip()}
        shown = _run(
            *words, "--from", str(self._wheel), "anaphora", "usage",
            environment=kept | cache | {"HOME": str(home)},
        )  # fmt: skip
        if not re.match(r"\$\d+\.\d\d at API prices", shown):
            raise ReleaseFailed(f"anaphora usage printed:\n{shown}")
        return shown.splitlines()[0]

    def _environment(self, name: str, requirement: str) -> str:
        """The Python of an environment with that alone."""
        folder = HOME / name
        _run(*self._uv("venv", "--clear"), "--python", sys.executable, str(folder))
        python = str(folder / "bin" / "python")
        pinned = ("--constraint", str(PINS / "dev.txt"), "--reinstall-package", "anaphora")
        _run(*self._uv("pip", "install"), "--python", python, *pinned, requirement)
        return python

    def _uv(self, *words: str) -> tuple[str, ...]:
        return (str(self._tools / "bin" / "uv"), "--quiet", *words)

    def _tool(self, name: str, *words: str) -> str:
        return _run(str(self._tools / "bin" / name), *words)


@contextlib.contextmanager
def _emulator(python: str) -> Iterator[str]:
    """The URL of an emulator in another environment."""
    words = [python, "-m", "anaphora", "emulate", "--port", "0"]
    with subprocess.Popen(words, cwd=HOME, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            found = re.search(r"http://\S+:\d+", line)
            if found is None:
                raise ReleaseFailed(f"anaphora emulate printed: {line!r}")
            yield found[0]
        finally:
            server.terminate()


def _run(*words: str, environment: dict[str, str] | None = None) -> str:
    """The output of a program. It sees neither this tree nor this environment."""
    given = dict(os.environ) if environment is None else environment
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    kept = {name: value for name, value in given.items() if name not in hidden}
    HOME.mkdir(exist_ok=True)
    done = subprocess.run(
        words, cwd=HOME, env=kept, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode != 0:
        shown = " ".join(word if len(word) < 200 else "…" for word in words)
        raise ReleaseFailed(f"{shown}\n{done.stdout}{done.stderr}")
    return done.stdout


def _fail_for(problems: Iterator[str] | list[str]) -> None:
    if found := list(problems):
        raise ReleaseFailed("; ".join(found))


def _hashes(part: dict[str, Any]) -> list[Any]:
    """Hashes of the files that may be installed, beside the places where they are."""
    places = part.get("externalReferences", [])
    return [*part.get("hashes", []), *(each for one in places for each in one.get("hashes", []))]


if __name__ == "__main__":
    sys.exit(main())
