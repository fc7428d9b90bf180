"""`--processes`, by which `make test` runs: every outcome is reported, and nothing is lost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.waiting import PATIENCE

CONFTEST = """
import os
import pytest
from support import file_processes
from support.file_processes import FileProcesses

file_processes.SHARED_MODULES.clear()

def pytest_addoption(parser):
    parser.addoption("--processes", type=int)

def pytest_configure(config):
    config.pluginmanager.register(FileProcesses(config, lambda file: file.name))

@pytest.fixture(scope="session")
def shared():
    with open("shared", "a") as file:
        file.write(f"{os.getpid()}\\n")
    yield
    with open("ended", "a") as file:
        file.write("ended\\n")
"""
FILES = {
    "test_a.py": "def test_one(shared): print('canary-4711'); assert 1 == 2\n"
    "def test_two(shared, tmp_path): tmp_path.joinpath('x').touch()\n",
    "test_b.py": "def test_three(shared): pass\n",
    "test_c.py": "import pytest\n@pytest.mark.skip\ndef test_four(): pass\n"
    "def test_five(shared): raise NotImplementedError\n",
    "test_d.py": "import no_such_module_4711\n",
    "test_e.py": "import pytest\n@pytest.fixture\ndef broken():\n    yield\n    assert 3 == 4\n"
    "def test_six(broken): pass\n",
    "test_z.py": "import os\ndef test_last(): os._exit(9)\n",
}


def run(folder: Path, *arguments: str, code: int = 1) -> str:
    plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder, env={"PYTHONPATH": str(Path(__file__).parent), **plain},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_outcomes_of_all_processes_are_reported(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    printed = run(tmp_path, "--processes", "2", "--durations=3")
    for text in ("assert 1 == 2", "canary-4711", "no_such_module_4711", "assert 3 == 4"):
        assert text in printed
    assert "a process ended with 9: it was in test_z.py::test_last" in printed
    # Two passed, and the one whose fixture fails afterwards.
    assert "3 failed, 3 passed, 1 skipped, 2 errors" in printed
    assert "slowest files" in printed


def test_fixtures_of_the_session_live_as_long_as_a_process(tmp_path: Path) -> None:
    """Also those of a conftest.py that is in a folder."""
    (tmp_path / "below" / "deep").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "below" / "conftest.py").write_text(CONFTEST)
    for name in ("test_a.py", "test_b.py", "deep/test_c.py"):
        (tmp_path / "below" / name).write_text("def test_one(shared): pass\n")
    assert "3 passed" in run(tmp_path, "below", "--processes", "1", code=0)
    started = (tmp_path / "shared").read_text().split()
    ended = (tmp_path / "ended").read_text().split()
    assert len(started) == len(ended) == 1


def test_the_run_ends_at_the_first_failure_if_asked_to(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text("def test_one(): assert 1 == 2\n")
    (tmp_path / "test_b.py").write_text("import time\ndef test_two(): time.sleep(600)\n")
    printed = run(tmp_path, "--processes", "2", "-x")
    assert re.search(r"\n1 failed in ", printed)
