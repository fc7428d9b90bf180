"""The recordings of a test: replayed, or made where the command line says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from anaphora.errors import AnaphoraError
from anaphora.proxy.recording import RecordedUpstream
from anaphora.proxy.routes import ResponseSource
from anaphora.replay.player import Match, Mode, Player, Repeat, ReplayReport

#: The options of the marker `anaphora_replay`.
_OPTIONS = ("folder", "repeat", "match", "rules")
_RECORD = "record the test with --anaphora-record=once"


class ReplayedTest:
    """The recordings of one test. `check` is called when the test has passed."""

    title = "recordings"

    def __init__(
        self,
        folder: Path,
        mode: Mode,
        options: dict[str, Any],
        live: ResponseSource,
        settle: Callable[[], bool],
    ) -> None:
        self.folder = folder
        self.mode = mode
        self._settle = settle
        if mode == "none" and not folder.is_dir():
            pytest.fail(f"no recordings in {folder}: {_RECORD}", pytrace=False)
        try:
            self._player = Player(folder, mode, **options)
        except AnaphoraError as problem:
            pytest.fail(str(problem), pytrace=False)
        self.upstream: ResponseSource = RecordedUpstream(self._player, live)

    @property
    def report(self) -> ReplayReport:
        """How many calls were replayed and recorded, and what was not found."""
        self._settle()
        return self._player.report

    def problems(self) -> list[str]:
        """What is wrong, a paragraph each."""
        report = self.report
        found = []
        if report.misses:
            lines = (f"  {miss}" for miss in report.misses)
            found.append("\n".join([f"Not recorded in {self.folder}:", *lines, "", self._advice()]))
        if report.failures:
            found.append("\n  ".join(["Could not be recorded:", *report.failures]))
        return found

    def problems_so_far(self) -> list[str]:
        """What is wrong where the test itself failed."""
        return self.problems()

    def _advice(self) -> str:
        return (
            "--anaphora-record=new records these requests, --anaphora-record=all the whole test"
            " again. For texts that differ in every run, such as dates and directories, there are"
            " match rules: docs/guides/replay-offline.md."
        )

    def check(self) -> None:
        """Fails the test where a request had no recording, or could not be recorded."""
        if problems := self.problems():
            pytest.fail("\n\n".join(problems), pytrace=False)

    def close(self) -> None:
        """Waits until all is written."""
        try:
            self._player.close()
        except AnaphoraError as problem:
            pytest.fail(str(problem), pytrace=False)


def replay_options(options: dict[str, Any], test_file: Path) -> dict[str, Any]:
    """The options of a test's marker. Raises `pytest.UsageError` for one that is invalid."""
    for name in options:
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise pytest.UsageError(f"anaphora_replay has no {name!r}; it takes {known}")
    chosen = {name: value for name, value in options.items() if value is not None}
    chosen.pop("folder", None)
    for name, kind in (("repeat", Repeat), ("match", Match)):
        if name in chosen and chosen[name] not in get_args(kind):
            known = ", ".join(get_args(kind))
            raise pytest.UsageError(f"{name} is one of {known}, got {chosen[name]!r}")
    if "rules" in chosen:
        chosen["rules"] = test_file.parent / chosen["rules"]
    return chosen


def mode_of(option: object) -> Mode:
    return cast(Mode, option)
