"""A command in a real terminal: signals, stopping and continuing, attributes, exit codes.

`Terminal` is a pseudo-terminal with an interactive bash, into which the tests type.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import PATIENCE, wait_until

import anaphora
from anaphora.errors import InvalidRequest
from anaphora.proxy import launch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")

#: Without what the package itself imports, which takes most of a start.
_RUN = (
    "import os, sys, types; package = sys.modules['anaphora'] = types.ModuleType('anaphora');"
    f" package.__path__ = {list(anaphora.__path__)!r}; from anaphora.proxy import launch;"
    " sys.exit(launch.run(sys.argv[1:], os.environ))"
)
#: Takes its terminal, as a login shell does, and becomes bash.
_SHELL = (
    "import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])"
)


@pytest.fixture(autouse=True)
def ignored_signals() -> Iterator[None]:
    """Of nohup and shells without job control: children would ignore them as well."""
    numbers = [
        number
        for number in (signal.SIGHUP, signal.SIGQUIT)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


class Terminal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.main, self.side = pty.openpty()
        environ = {**os.environ, "PS1": "READY> ", "TERM": "dumb", "HISTFILE": ""}
        self.shell = subprocess.Popen(
            [sys.executable, "-c", _SHELL],
            stdin=self.side,
            stdout=self.side,
            stderr=self.side,
            start_new_session=True,
            env=environ,
        )
        self.shown = ""
        self.until("READY> ")

    def until(self, pattern: str) -> str:
        """What was shown up to and including the pattern; the rest is kept."""
        end = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.shown)) is None:
            ready, _, _ = select.select([self.main], [], [], max(0, end - time.monotonic()))
            assert ready, f"{pattern!r} does not come; shown: {self.shown!r}"
            self.shown += os.read(self.main, 65536).decode(errors="replace")
        text, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return text

    def type(self, text: str) -> None:
        os.write(self.main, text.encode())

    def start(self, *command: str) -> None:
        """Runs it with `launch.run`, from the shell."""
        self.type(f"{self.words(*command)}\n")
        self.until("\r\n")  # what was typed is shown

    def words(self, *command: str) -> str:
        """Programs are in files: what is typed is shown, and must not look like output."""
        (self.folder / "run.py").write_text(_RUN)
        words = [sys.executable, "-S", str(self.folder / "run.py"), *command]
        if command[:2] == (sys.executable, "-c"):
            (self.folder / "program.py").write_text(command[2])
            words[4:] = [str(self.folder / "program.py")]
        return shlex.join(words)

    def code(self) -> int:
        """The exit code of what has ended."""
        self.until("READY> ")
        self.type("echo code=$?\n")
        text = self.until(r"code=\d+\r\n")
        self.until("READY> ")
        return int(text.rpartition("=")[2])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(made.shell.pid, signal.SIGKILL)
        made.shell.wait()
        with contextlib.suppress(OSError):
            os.close(made.main)
            os.close(made.side)


def python(text: str) -> tuple[str, str, str]:
    return sys.executable, "-c", text


def counting(read: str) -> str:
    """A program that prints each signal that it gets, while a thread reads its input. Signals wait
    for it: a handler that is due just before a read begins would run after it."""
    return f"""
import os, signal, sys, threading
names = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGWINCH", "SIGUSR1")
signals = [getattr(signal, name) for name in names]
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
def read():
    {read}
print("<up>", flush=True)
threading.Thread(target=read).start()
while True:
    print("<got", signal.Signals(signal.sigwait(signals)).name + ">", flush=True)
"""


#: Ends with 7 at the line `end` of its input.
COUNTS = counting(
    """for line in sys.stdin:
        print("<line>", flush=True)
        if line == "end\\n":
            os._exit(7)"""
)


def test_exit_code_and_output_are_the_commands(terminal: Terminal) -> None:
    terminal.start("sh", "-c", "echo o''ut; exit 7")
    terminal.until("out\r\n")
    assert terminal.code() == 7


@pytest.mark.parametrize("key, name", [("\x03", "SIGINT"), ("\x1c", "SIGQUIT")])
def test_keys_reach_the_command_once(terminal: Terminal, key: str, name: str) -> None:
    terminal.start(*python(COUNTS))
    terminal.until("<up>\r?\n")
    terminal.type(key)
    terminal.until(f"<got {name}>")
    terminal.type("end\n")
    assert terminal.until("<line>").count("<got") == 0
    assert terminal.code() == 7


def test_interrupted_command_gives_130(terminal: Terminal) -> None:
    terminal.start("sh", "-c", "echo '<up>'; exec sleep 60")
    terminal.until("<up>\r?\n")
    terminal.type("\x03")
    assert terminal.code() == 130


def test_change_of_size_reaches_the_command_once(terminal: Terminal) -> None:
    terminal.start(*python(COUNTS))
    terminal.until("<up>\r?\n")
    termios.tcsetwinsize(terminal.main, (33, 111))
    terminal.until("<got SIGWINCH>")
    terminal.type("end\n")
    assert terminal.until("<line>").count("<got") == 0
    assert terminal.code() == 7


def test_signals_to_us_are_passed_on(terminal: Terminal) -> None:
    terminal.start(*python(f"import os; print('<us', os.getppid(), '>', flush=True){COUNTS}"))
    us = int(terminal.until(r"<us \d+ >").split()[-2])
    terminal.until("<up>\r?\n")
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1"):
        os.kill(us, getattr(signal, name))
        terminal.until(f"<got {name}>")
    terminal.type("end\n")
    assert terminal.code() == 7


def test_interrupt_to_us_is_passed_on_in_raw_mode(terminal: Terminal) -> None:
    """The terminal sends none then: keys are bytes."""
    raw = "import os, tty; tty.setraw(0); print('<us', os.getppid(), '>', flush=True)"
    terminal.start(*python(raw + counting("os.read(0, 1); os._exit(9)")))
    us = int(terminal.until(r"<us \d+ >").split()[-2])
    terminal.until("<up>\r?\n")
    os.kill(us, signal.SIGINT)
    terminal.until("<got SIGINT>")
    terminal.type("x")
    assert terminal.code() == 9


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(3)"])
def test_attributes_are_restored(terminal: Terminal, end: str) -> None:
    """bash would restore them by itself for a command that it started and a signal ended."""
    raw = f"import os, tty; tty.setraw(0); {end}"
    terminal.type(f"( {terminal.words(*python(raw))}; stty -a; echo '<'done'>' )\n")
    shown = terminal.until("<done>")
    assert re.search(r"\sisig icanon .* echo ", shown), shown


def test_stopping_and_continuing_with_the_keyboard(terminal: Terminal) -> None:
    terminal.start(*python(COUNTS))
    terminal.until("<up>\r?\n")
    for _ in range(3):
        terminal.type("\x1a")
        terminal.until("Stopped")
        terminal.until("READY> ")
        terminal.type("fg\n")
        terminal.until("fg\r\n")
        terminal.type("again\n")
        terminal.until("<line>")
    terminal.type("end\n")
    assert terminal.code() == 7


def test_command_that_is_stopped_as_soon_as_it_is_continued(terminal: Terminal) -> None:
    """By a key that is pressed twice, say: this process may run only after the second time."""
    stop = "os.kill(os.getpid(), signal.SIGSTOP)"
    handler = (
        f"signal.signal(signal.SIGCONT, lambda *_: (signal.signal(signal.SIGCONT, 0), {stop}))"
    )
    terminal.start(*python(f"import os, signal; {handler}; {stop}; os._exit(7)"))
    for _ in range(2):
        terminal.until("Stopped")
        terminal.until("READY> ")
        terminal.type("fg\n")
        terminal.until("fg\r\n")
    assert terminal.code() == 7


def test_command_in_the_background_that_reads_the_terminal(terminal: Terminal) -> None:
    terminal.type(f"{terminal.words(*python(COUNTS))} &\n")
    terminal.until("<up>\r?\n")
    terminal.type("wait -f 2> /dev/null; fg\n")
    terminal.until("fg\r\n")
    terminal.type("end\n")
    terminal.until("<line>")
    assert terminal.code() == 7


@pytest.mark.parametrize("whom", ["os.getpid()", "0"], ids=["itself", "its group"])
def test_command_that_stops_itself(terminal: Terminal, whom: str) -> None:
    """As programs in raw mode do when they read Ctrl-Z."""
    stop = f"import os, signal; print('<up>', flush=True); os.kill({whom}, signal.SIGSTOP)"
    terminal.start(*python(f"{stop}; print('<on>', flush=True); raise SystemExit(5)"))
    terminal.until("<up>\r?\n")
    terminal.until("Stopped")
    terminal.until("READY> ")
    terminal.type("fg\n")
    terminal.until("<on>")
    assert terminal.code() == 5


def test_command_with_a_group_of_its_own(terminal: Terminal) -> None:
    """An interactive shell makes itself the foreground group; killed, it cannot give that back."""
    terminal.start("bash", "--norc", "--noprofile", "-i")
    terminal.until("READY> ")
    terminal.type("echo in''ner; kill -9 $$\n")
    terminal.until("inner\r\n")
    assert terminal.code() == 137
    terminal.type("echo still'' here\n")
    terminal.until("still here\r\n")


def test_pipelines_work(terminal: Terminal) -> None:
    words = terminal.words("sh", "-c", "echo one; echo two")
    terminal.type(f'{words} | (read line; echo "<$line>"; cat < /dev/tty)\n')
    terminal.until("<one>")
    terminal.type("typed\n\x04")
    assert terminal.until(r"typed\r\ntyped\r\n")
    assert terminal.code() == 0


def test_terminal_that_hangs_up_ends_the_command(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "hung_up"
    text = f"import signal, sys, time; signal.signal(signal.SIGHUP, lambda *_: (open({str(file)!r}, 'w').close(), sys.exit())); print('<up>', flush=True); time.sleep(60)"
    terminal.start(*python(text))
    terminal.until("<up>\r?\n")
    os.close(terminal.side)
    os.close(terminal.main)
    wait_until(file.exists, "the command ends")


# ── Without a terminal ───────────────────────────────────────────────────────────────────────────


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", _RUN, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_signals_are_passed_on_without_a_terminal() -> None:
    with start(*python(COUNTS)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "<up>\n"
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGWINCH"):
            process.send_signal(getattr(signal, name))
            assert process.stdout.readline() == f"<got {name}>\n"
        assert process.communicate("end\n") == ("<line>\n", "")
        assert process.returncode == 7


@pytest.mark.parametrize(
    "command, code",
    [
        ("exit 0", 0),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
    ],
)
def test_exit_codes(command: str, code: int) -> None:
    assert launch.run(["sh", "-c", command], os.environ) == code


def test_ignored_signals_stay_ignored() -> None:
    """nohup"""
    text = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    words = [sys.executable, "-c", f"import signal; signal.signal(1, signal.SIG_IGN); {_RUN}"]
    done = subprocess.run([*words, *python(text)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    launch.run(["true"], os.environ)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_processes_that_outlive_the_command_are_reported() -> None:
    reported: list[str] = []
    script = "sleep 30 & echo $! > /dev/null; setsid sleep 31 & exit 4"
    assert launch.run(["sh", "-c", script], os.environ, report=reported.append) == 4
    (text,) = reported
    pids = [int(pid) for pid in re.findall(r"(\d+) \(sleep\)", text)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(pids) == 2
    assert text.startswith("still running: ")


def test_processes_that_end_in_time_are_not_reported() -> None:
    reported: list[str] = []
    launch.run(["sh", "-c", "(sleep 0.05 &) ; exit 0"], os.environ, report=reported.append)
    assert reported == []


def test_commands_that_cannot_run(tmp_path: Path) -> None:
    plain, folder, broken = tmp_path / "plain", tmp_path / "folder", tmp_path / "broken"
    plain.write_text("echo hi")
    folder.mkdir()
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    cases = {
        "nosuchcommand": "command not found in PATH",
        "echo hello": "command not found in PATH; quote each word of the command by itself",
        str(plain): "cannot be executed",
        str(folder): "is a folder",
        str(tmp_path / "missing"): "no such file",
        str(broken): "No such file or directory",
    }
    for name, reason in cases.items():
        with pytest.raises(InvalidRequest, match=re.escape(f"cannot run {name}: {reason}")):
            launch.run([name], os.environ)
    with pytest.raises(InvalidRequest, match="no command: write it after --"):
        launch.run([], os.environ)


def test_command_is_looked_up_in_the_path_of_its_environment(tmp_path: Path) -> None:
    script = tmp_path / "mine"
    script.write_text("#!/bin/sh\nexit 6\n")
    script.chmod(0o755)
    assert launch.run(["mine"], {"PATH": f"{tmp_path}:/bin:/usr/bin"}) == 6
