"""Runs a command in this terminal, as if the shell had started it.

The command stays in this process's group, so pipes, scripts and job control work as usual: the
terminal sends Ctrl-C, Ctrl-Z and size changes to both. Signals sent only to this process are
forwarded; those that the terminal has already sent to the command are not, so each arrives once.
When the command ends or is killed, the terminal gets its attributes back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from anaphora.errors import InvalidRequest
from anaphora.wording import visible

#: Signals that are forwarded to the command.
_FORWARDED = ("SIGINT", "SIGQUIT", "SIGTSTP", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH")
#: Sent to a background group if one of its processes reads the terminal; never this one.
_NOT_FORWARDED = ("SIGTTIN",)
#: Seconds in which a command that was stopped together with this process is continued with it.
_STOP_SECONDS = 0.05
#: Seconds that processes may take to end after the command.
_END_SECONDS = 0.3
_PR_SET_CHILD_SUBREAPER = 36


def find(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The file of a command. Raises `InvalidRequest` if it cannot be run."""
    if not command:
        raise InvalidRequest("no command: write it after --")
    name = command[0]
    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    if found is not None:
        return found
    if os.path.dirname(name):
        reason = "is a folder" if os.path.isdir(name) else "cannot be executed"
        if not os.path.lexists(name):
            reason = "no such file"
        raise InvalidRequest(f"cannot run {name}: {reason}")
    hint = "; quote each word of the command by itself" if " " in name else ""
    raise InvalidRequest(f"cannot run {name}: command not found in PATH{hint}")


def run(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    report: Callable[[str], None] | None = None,
) -> int:
    """Runs the command until it ends; returns its exit code, or 128+n if signal n ended it.
    `report` gets a sentence if processes that it started are still running then; without `report`
    it is printed to standard error."""
    file = find(command, environ)
    with _Terminal() as terminal, _Forwarding(terminal) as forwarding, _Descendants() as started:
        try:
            child = subprocess.Popen(list(command), executable=file, env=dict(environ))
        except OSError as problem:
            reason = problem.strerror or problem
            raise InvalidRequest(f"cannot run {command[0]}: {reason}") from None
        forwarding.start(child)
        code = child.wait() if sys.platform == "win32" else _wait(child, terminal)
        terminal.restore(child.pid)
        if running := started.running():
            _report_running(running, report)
    return code if code >= 0 else 128 - code


def _report_running(running: list[str], report: Callable[[str], None] | None) -> None:
    text = (
        f"still running: {', '.join(running)}; calls that they make from now on fail, since the"
        " proxy ends with the command"
    )
    if report is not None:
        report(text)
    elif sys.stderr is not None:
        sys.stderr.write(f"anaphora: {visible(text)}\n")


# ── Stopping and continuing ──────────────────────────────────────────────────────────────────────


def _wait(child: subprocess.Popen[bytes], terminal: _Terminal) -> int:
    """Waits for the end of the child. When the child stops, this process stops as well, so that the
    shell sees it; not earlier, or the shell and the child would read the terminal together."""
    while True:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        while os.WIFSTOPPED(status):
            # A SIGSTOP to the group has stopped both; after `fg` both run again.
            changed = _changed(child)
            if changed is None:
                group = terminal.take(child.pid)
                os.kill(os.getpid(), signal.SIGSTOP)
                terminal.give(group)
                changed = _changed(child)
            if changed is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGCONT)
                break
            status = changed
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode


def _changed(child: subprocess.Popen[bytes]) -> int | None:
    """The status of a stopped child once it is continued together with this process, has ended, or
    was continued and stopped again; None if it stays stopped."""
    deadline = time.monotonic() + _STOP_SECONDS
    while True:
        changed, status = os.waitpid(child.pid, os.WNOHANG | os.WCONTINUED | os.WUNTRACED)
        if changed:
            return status
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


class _Terminal:
    """The controlling terminal, if there is one: its attributes and its foreground group."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._attributes: list[Any] | None = None
        self._was_foreground = False

    def __enter__(self) -> _Terminal:
        if sys.platform == "win32":
            return self
        import termios

        with contextlib.suppress(OSError, termios.error):
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            self._was_foreground = os.tcgetpgrp(self._fd) == os.getpgrp()
            self._attributes = termios.tcgetattr(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def sends(self, number: int) -> bool:
        """Whether the terminal sends this signal to the command itself."""
        if self._fd is None or sys.platform == "win32":
            return False
        import termios

        try:
            if os.tcgetpgrp(self._fd) != os.getpgrp():
                return False
            if number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
                # In raw mode the command reads the keys, and they send no signals.
                return bool(termios.tcgetattr(self._fd)[3] & termios.ISIG)
        except (OSError, termios.error):
            return False
        return number == signal.SIGWINCH

    def restore(self, child: int) -> None:
        """Restores the attributes that the command changed, unless the terminal has passed to
        another job."""
        if self._fd is None or sys.platform == "win32":
            return
        import termios

        self.take(child)
        with contextlib.suppress(OSError, termios.error), _background_writes():
            if not self._was_foreground or os.tcgetpgrp(self._fd) != os.getpgrp():
                return
            if self._attributes is not None and termios.tcgetattr(self._fd) != self._attributes:
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._attributes)

    def take(self, child: int) -> int | None:
        """Makes this process's group the foreground group instead of the child's; returns the
        previous group."""
        if self._fd is None or not self._was_foreground or sys.platform == "win32":
            return None
        with contextlib.suppress(OSError), _background_writes():
            group = os.tcgetpgrp(self._fd)
            if group != os.getpgrp() and (group == child or not _is_alive(group)):
                os.tcsetpgrp(self._fd, os.getpgrp())
                return group
        return None

    def give(self, group: int | None) -> None:
        """Undoes `take`, if this process is in the foreground."""
        if self._fd is None or group is None or sys.platform == "win32":
            return
        with contextlib.suppress(OSError), _background_writes():
            if os.tcgetpgrp(self._fd) == os.getpgrp():
                os.tcsetpgrp(self._fd, group)


if sys.platform != "win32":

    @contextlib.contextmanager
    def _background_writes() -> Iterator[None]:
        """A background group that changes the terminal is stopped unless it blocks this signal."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _is_alive(group: int) -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass
        return True


# ── Signals ──────────────────────────────────────────────────────────────────────────────────────


class _Forwarding:
    """Forwards signals to the child, from the main thread, which alone may handle them."""

    def __init__(self, terminal: _Terminal) -> None:
        self._terminal = terminal
        self._child: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> _Forwarding:
        if threading.current_thread() is threading.main_thread():
            for name in (*_FORWARDED, *_NOT_FORWARDED):
                number = getattr(signal, name, None)
                # An ignored signal stays ignored, by the command as well: nohup.
                if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def start(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        for number in self._waiting:
            self._forward(number)

    def _received(self, number: int, _: FrameType | None) -> None:
        if signal.Signals(number).name in _NOT_FORWARDED:
            return
        if self._child is None:
            self._waiting.append(number)
        elif not self._terminal.sends(number):
            self._forward(number)

    def _forward(self, number: int) -> None:
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(OSError):
                os.kill(self._child.pid, number)


# ── Processes that the command leaves ────────────────────────────────────────────────────────────


class _Descendants:
    """The processes that a command started and left running. On Linux they become children of this
    process when their own parent ends."""

    def __init__(self) -> None:
        self._before: set[int] = set()

    def __enter__(self) -> _Descendants:
        self._set_reaper(1)
        self._before = {process.pid for process in _children()}
        return self

    def __exit__(self, *_: object) -> None:
        self._set_reaper(0)

    def running(self) -> list[str]:
        """`1234 (name)` of each, after a moment in which they may end."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            left = [one for one in _children() if one.pid not in self._before]
            for one in left:
                if one.ended:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(one.pid, os.WNOHANG)
            found = [f"{one.pid} ({one.name})" for one in left if not one.ended]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    @staticmethod
    def _set_reaper(on: int) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, on, 0, 0, 0)


class _ChildProcess(NamedTuple):
    pid: int
    name: str
    ended: bool


def _children() -> Iterator[_ChildProcess]:
    """The children of this process; empty if the system does not report them."""
    own = str(os.getpid())
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            # pid (name) state parent …; the name may hold blanks and parentheses.
            before, _, after = file.read_text(errors="replace").rpartition(")")
        except OSError:
            continue
        state, parent, *_ = after.split()
        if parent == own:
            pid, _, name = before.partition(" (")
            yield _ChildProcess(int(pid), name, state == "Z")
