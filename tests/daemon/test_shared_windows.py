"""Minute windows that processes share: they decide as those of one process do, and hold after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.audit_logs import with_tests
from support.waiting import wait_until

from anaphora.daemon.shared_state.shared_counts import SharedCounts
from anaphora.daemon.shared_state.shared_windows import SharedWindows
from anaphora.daemon.shared_state.windows import MinuteLimit, MinuteWindows, Taken


@pytest.fixture
def counts() -> Iterator[SharedCounts]:
    with closing(SharedCounts.create(3)) as created:
        yield created


_limits = st.builds(
    MinuteLimit,
    requests=st.none() | st.integers(1, 6),
    tokens=st.none() | st.integers(10, 500),
    running=st.none() | st.integers(1, 3),
)
_steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "correct", "release"]),
        st.sampled_from(["app a", "app b"]),
        st.sampled_from([0.0, 0.01, 0.2, 0.25, 1.0, 7.3, 59.9, 60.0, 61.0, 500.0]),
        st.integers(0, 300),
    ),
    max_size=60,
)


@given(limits=st.tuples(_limits, _limits), steps=_steps, begin=st.integers(0, 1_000_000))
def test_decisions_are_those_of_one_process(
    limits: tuple[MinuteLimit, MinuteLimit], steps: list[tuple[str, str, float, int]], begin: int
) -> None:
    with closing(SharedCounts.create(3)) as created:
        others = [
            SharedWindows(created),
            SharedWindows(SharedCounts(os.dup(created.descriptor), 3, 1)),
        ]
        one, now = MinuteWindows(), float(begin)
        calls: list[tuple[Taken, Taken]] = []
        for number, (step, name, pause, tokens) in enumerate(steps):
            now += pause
            shared = others[number % 2]
            if step == "take":
                limit = limits[name == "app b"]
                pair = one.take(name, limit, tokens, now), shared.take(name, limit, tokens, now)
                assert _seen(pair[0]) == pytest.approx(_seen(pair[1]))
                if not pair[0].wait:
                    calls.append(pair)
            elif calls:
                own, theirs = calls[tokens % len(calls)]
                if step == "correct":
                    one.correct(own, tokens)
                    shared.correct(theirs, tokens)
                else:
                    one.release(own)
                    shared.release(theirs)
            assert one.requests(name, now) == shared.requests(name, now)
        others[1]._counts.close()


def _seen(taken: Taken) -> tuple[object, ...]:
    return taken.slot, taken.tokens, taken.wait, taken.by or "", taken.runs


def test_many_names_replace_those_without_a_call_for_longest(counts: SharedCounts) -> None:
    windows, limit = SharedWindows(counts), MinuteLimit(requests=1)
    for number in range(20_000):
        assert not windows.take(f"app {number}", limit, 1, 100.0 + number).wait
    assert windows.take("app 19999", limit, 1, 20_100.0).by == "requests"
    assert not windows.take("app 1", limit, 1, 20_100.0).wait


def test_huge_numbers_of_tokens_are_refused_like_others(counts: SharedCounts) -> None:
    limit = MinuteLimit(tokens=10)
    assert not SharedWindows(counts).take("app", limit, 2**70, 100.0).wait
    assert SharedWindows(counts).take("app", limit, 1, 100.0).by == "tokens"


_TAKING = """
import sys, time
from anaphora.daemon.shared_state.shared_counts import SharedCounts
from anaphora.daemon.shared_state.shared_windows import SharedWindows
from anaphora.daemon.shared_state.windows import MinuteLimit

counts = SharedCounts(int(sys.argv[1]), 3, int(sys.argv[2]))
limit = MinuteLimit(requests=float(sys.argv[3]), running=10**9)
print("begun", flush=True)
taken = 0
while not SharedWindows(counts).take("app", limit, 1, 100.0).wait:
    taken += 1
print(taken)
"""


def _taking(counts: SharedCounts, process: int, most: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", _TAKING, str(counts.descriptor), str(process), str(most)]
    return subprocess.Popen(
        words, pass_fds=(counts.descriptor,), stdout=subprocess.PIPE, env=with_tests()
    )


def test_limit_is_exact_over_processes(counts: SharedCounts) -> None:
    processes = [_taking(counts, number, 3_000) for number in (1, 2)]
    taken = [int(process.communicate()[0].split()[1]) for process in processes]
    assert sum(taken) == 3_000


def test_killed_process_holds_no_lock_and_no_running_call(counts: SharedCounts) -> None:
    for _ in range(3):
        process = _taking(counts, 1, 10**12)
        with process:
            assert process.stdout is not None
            process.stdout.readline()
            wait_until(lambda: counts.of("running app") > 100, "it has taken some")
            process.send_signal(signal.SIGKILL)
        counts.clear(1)
        assert counts.of("running app") == 0
    before = SharedWindows(counts).requests("app", 100.0)
    assert before > 300
    assert not SharedWindows(counts).take("app", MinuteLimit(requests=before + 1), 1, 100.0).wait
    assert SharedWindows(counts).take("app", MinuteLimit(requests=before + 1), 1, 100.0).wait


_LOCKING = """
import sys
from anaphora.daemon.shared_state.shared_counts import SharedCounts

counts = SharedCounts(int(sys.argv[1]), 3, 1)
for _ in sys.stdin:
    with counts.log_lock():
        print("holds", flush=True)
        counts.add("calls", 1)
    print("added", flush=True)
"""


def test_locks_of_two_threads_are_no_deadlock(counts: SharedCounts) -> None:
    """The other process writes to the log and waits for the counts; here it is the other way around."""

    def log() -> None:
        with counts.log_lock():
            logged.append(True)

    logged: list[bool] = []
    rounds = 20
    with subprocess.Popen(
        [sys.executable, "-c", _LOCKING, str(counts.descriptor)],
        pass_fds=(counts.descriptor,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=with_tests(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(rounds):
            thread = threading.Thread(target=log)
            with counts.locked:
                process.stdin.write(b"\n")
                process.stdin.flush()
                assert process.stdout.readline() == b"holds\n"
                thread.start()
                wait_until(lambda: "->" in Path("/proc/locks").read_text(), "one of them waits")
            assert process.stdout.readline() == b"added\n"
            thread.join()
        process.stdin.close()
    assert (counts.of("calls"), len(logged)) == (rounds, rounds)
