"""Environments of their own for programs that we did not write, below .soak: one for each list in
requirements/, made with pip, or with npm where the list's name begins with that.

    python soak/strangers/environment.py langchain

Makes it, unless it is there and has what its list says, and prints the folder of its programs. Where
it cannot be made (there is no package registry, or no npm), the reason goes to stderr and the status
is 1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOAK = HERE.parent.parent / ".soak"
#: How much of an installer's last words a reason holds.
_SHOWN = 300


class Unavailable(Exception):
    """An environment cannot be made; the message says why."""


def programs(family: str, *, install: bool = True) -> Path:
    """The folder of an environment's programs. An environment that is missing or out of date is
    made first, or without `install` reported as unavailable."""
    list_file, folder = HERE / "requirements" / f"{family}.txt", SOAK / family
    pins, stamp = list_file.read_text(), folder / "stamp"
    found = folder / "node_modules" / ".bin" if _is_npm(family) else folder / "bin"
    if stamp.exists() and stamp.read_text() == pins:
        return found
    if not install:
        raise Unavailable(f"the environment {family} is not installed, or out of date")
    if _is_npm(family):
        _install_npm(folder, _names(pins))
    else:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(found / "python"), "-m", "pip"]
        _run([*pip, "install", "-q", "--no-input", "-r", str(list_file)])
    if family == "sdks":
        _unpack_tests(found / "python", folder, [name for name in _names(pins) if "[aio" in name])
    stamp.write_text(pins)
    return found


def version(family: str, package: str) -> str:
    """The pinned version of a package."""
    pins = _names((HERE / "requirements" / f"{family}.txt").read_text())
    separator = "@" if _is_npm(family) else "=="
    versions = dict(pin.rsplit(separator, 1) for pin in pins)
    return next(versions[name] for name in versions if name.partition("[")[0] == package)


def _is_npm(family: str) -> bool:
    return family.startswith("npm")


def _install_npm(folder: Path, packages: list[str]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = ["--no-package-lock", "--no-save", "--no-audit", "--no-fund", "--prefix", str(folder)]
    _run([npm, "install", *options, *packages])


def _unpack_tests(python: Path, folder: Path, packages: list[str]) -> None:
    """The tests of the SDKs, which only their source distributions hold."""
    names = [name.replace("[aiohttp]", "") for name in packages]
    # Only theirs: what builds them comes as it is.
    sources = ",".join(name.partition("==")[0] for name in names)
    options = ["-q", "--no-deps", "--no-binary", sources, "-d", str(folder / "sources")]
    _run([str(python), "-m", "pip", "download", "--no-input", *options, *names])
    for archive in (folder / "sources").glob("*.tar.gz"):
        with tarfile.open(archive) as opened:
            inside = [
                member
                for member in opened.getmembers()
                # Not the sources: the installed package is tested.
                if Path(member.name).parts[1:2] in (("tests",), ("pyproject.toml",))
            ]
            opened.extractall(folder / "sources", members=inside, filter="data")


def _run(command: list[str]) -> None:
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[1:4]} took longer than 20 minutes") from None
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if not line.startswith("WARNING")]
        reason = "\n".join(lines)[-_SHOWN:] or run.stdout[-_SHOWN:]
        raise Unavailable(f"cannot be installed (is there a package registry?): {reason}")


def _names(pins: str) -> list[str]:
    return [line for line in pins.splitlines() if line and not line.startswith("#")]


if __name__ == "__main__":
    families = sorted(file.stem for file in (HERE / "requirements").glob("*.txt"))
    if len(sys.argv) != 2 or sys.argv[1] not in families:
        raise SystemExit(f"usage: python {sys.argv[0]} {'|'.join(families)}")
    try:
        print(programs(sys.argv[1]))
    except Unavailable as problem:
        raise SystemExit(f"{sys.argv[1]}: {problem}") from None
