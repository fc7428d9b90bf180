"""The pytest plugin: a prompt cache under test, recorded conversations, a local emulator.

    def test_the_agent_keeps_its_cache(cache_contract):
        run_agent()                    # any SDK; fails if a prompt prefix broke

    def test_the_agent_answers(anaphora_replay):
        assert "Paris" in run_agent()  # from recordings; --anaphora-record=once makes them

The fixtures start a proxy on this machine and point the environment variables of the SDKs at it, so
that the tested code needs no change. pytest loads this module in every run: everything else of
Anaphora is imported when a fixture is used.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from anaphora.emulator import Emulator
    from anaphora.replay.player import Mode

    from .contract import CacheContract
    from .redirect import Redirect, ReplayedTest

_MODES = ("none", "once", "new", "all")
_MARKERS = (
    "cache_contract(min_read_share=None, max_cost_usd=None, min_calls=1, allow_breaks=None,"
    " live=False): use the fixture cache_contract with these limits; allow_breaks is the reason why"
    " a prefix may break, live=True sends the calls to the provider",
    "anaphora_replay(folder=None, repeat=None, rules=None): use the fixture"
    " anaphora_replay with these options",
)
_LIMITS = ("min_read_share", "max_cost_usd", "min_calls")
#: The emulator's fixture under a name that projects do not override.
_EMULATOR = "_anaphora_emulator"
#: The attribute of a test's report with the result of its contract, as JSON.
_RESULT = "anaphora_cache_contract"
_REDIRECT: pytest.StashKey[Redirect] = pytest.StashKey()
_RESULTS: pytest.StashKey[list[str]] = pytest.StashKey()
_CONTRACT: pytest.StashKey[CacheContract] = pytest.StashKey()
_REPLAYED: pytest.StashKey[ReplayedTest] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("anaphora", "prompt caches and recorded conversations")
    group.addoption(
        "--anaphora-record",
        choices=_MODES,
        default="none",
        metavar="MODE",
        help="What anaphora_replay does: none (the default) only replays; once records tests that"
        " have no recordings; new also records requests without one; all records everything again.",
    )
    group.addoption(
        "--anaphora-report",
        metavar="FILE",
        help="Write a Markdown summary of all cache contracts, for a pull request.",
    )
    parser.addini(
        "anaphora_recordings", "Folder of recordings, beside each test file.", default="recordings"
    )
    parser.addini(
        "anaphora_redirect",
        "Set the SDKs' environment variables before conftest files and tests are imported, for"
        " applications that create their client at import.",
        type="bool",
        default=False,
    )
    parser.addini("anaphora_min_read_share", "Least share of input read from the cache, 0 to 1.")
    parser.addini("anaphora_max_cost_usd", "Most that the calls of one test may cost, in dollars.")
    parser.addini("anaphora_min_calls", "Fewest calls of a test with a contract; 1 by default.")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    if early_config.getini("anaphora_redirect"):
        try:
            _redirect(early_config).set_environment()
        except pytest.fail.Exception as failure:
            raise pytest.UsageError(str(failure)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """The processes of pytest-xdist inherit the environment, and redirect it to their own
    proxies."""
    if _REDIRECT in config.stash:
        config.stash[_REDIRECT].restore_environment()


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[_RESULTS] = []
    config.pluginmanager.register(_ResultCollector(config.stash[_RESULTS]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A marker without its fixture would check nothing, so it requests the fixture."""
    for item in items:
        names = getattr(item, "fixturenames", None)
        for name in ("cache_contract", "anaphora_replay"):
            if names is not None and name not in names and item.get_closest_marker(name):
                names = [name, *names]
                item.fixturenames = names  # type: ignore[attr-defined]


# ── Fixtures ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(name=_EMULATOR)
def _emulator(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    redirect = _redirect(pytestconfig)
    with _plain_errors():
        running = redirect.emulator()
    running.reset()
    _set(monkeypatch, redirect, keys=True)
    with redirect.to(redirect.emulated(running)):
        yield running


@pytest.fixture
def emulator(_anaphora_emulator: Emulator) -> Emulator:
    """A local server that answers, caches and bills like every provider. SDKs that read their base
    URL from the environment reach it without a key; its URL is `emulator.url`."""
    return _anaphora_emulator


@pytest.fixture
def anaphora_replay(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ReplayedTest]:
    """Answers the calls of the test from its recordings; --anaphora-record creates them."""
    from .redirect import ReplayedTest, replay_options

    redirect = _redirect(pytestconfig)
    mode = cast("Mode", pytestconfig.getoption("--anaphora-record"))
    with _plain_errors():
        marker = _marker(request, "anaphora_replay")
        options = replay_options(marker, request.node.path)
    live, emulated = redirect.network, _EMULATOR in request.fixturenames
    if emulated:
        live = redirect.emulated(request.getfixturevalue(_EMULATOR))
    folder = _recordings(request, pytestconfig, marker.get("folder"))
    replayed = ReplayedTest(folder, mode, options, live, redirect.settle)
    request.node.stash[_REPLAYED] = replayed
    _set(monkeypatch, redirect, keys=mode == "none" or emulated)
    try:
        with redirect.to(replayed.upstream):
            yield replayed
    finally:
        replayed.close()


@pytest.fixture
def cache_contract(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CacheContract]:
    """Fails the test if a prompt prefix broke, or a limit is exceeded. The calls go to the
    recordings of `anaphora_replay` if the test uses it, else to the emulator."""
    from anaphora.traffic.judging import Judge

    from .contract import CacheContract, limits_of

    ini = {name: pytestconfig.getini(f"anaphora_{name}") for name in _LIMITS}
    with _plain_errors():
        limits = limits_of(_marker(request, "cache_contract"), ini)
    redirect = _redirect(pytestconfig)
    upstream = None
    if limits.live:
        upstream = redirect.network
    elif "anaphora_replay" in request.fixturenames:
        request.getfixturevalue("anaphora_replay")
    else:
        request.getfixturevalue(_EMULATOR)
    _set(monkeypatch, redirect, keys=not limits.live)
    judge = Judge()
    contract = CacheContract(judge, limits, redirect.settle)
    request.node.stash[_CONTRACT] = contract
    with redirect.to(upstream, judge):
        yield contract


# ── Outcomes ─────────────────────────────────────────────────────────────────────────────────────


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Checks recordings and contract if the test itself has passed; if it failed, adds their
    problems to its report."""
    found = (item.stash.get(_REPLAYED, None), item.stash.get(_CONTRACT, None))
    checks = [check for check in found if check is not None]
    try:
        result = yield
    except (Exception, pytest.fail.Exception):
        _add_sections(item, checks)
        raise
    if getattr(item, "_excinfo", None):  # where pytest keeps the failure of a unittest.TestCase
        _add_sections(item, checks)
        return result
    for check in checks:
        check.check()
    return result


def _add_sections(item: pytest.Item, checks: Sequence[ReplayedTest | CacheContract]) -> None:
    for check in checks:
        if problems := check.problems_so_far():
            item.add_report_section("call", check.title, "\n\n".join(problems))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown" or "cache_contract" not in getattr(item, "fixturenames", ()):
        return report
    if call.when == "call" or not report.passed:
        import msgspec

        from .contract import result_of

        contract = item.stash.get(_CONTRACT, None)
        result = result_of(item.nodeid, contract, report.outcome)
        # A string, which pytest-xdist passes on to the process that writes the report.
        setattr(report, _RESULT, msgspec.json.encode(result).decode())
    return report


class _ResultCollector:
    """Collects the results of this run; with pytest-xdist, those of all its processes."""

    def __init__(self, results: list[str]) -> None:
        self._results = results

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        result = getattr(report, _RESULT, None)
        if result is not None:
            self._results.append(result)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    file = config.getoption("--anaphora-report")
    if not file:
        return
    import msgspec

    from .contract import ContractResult, markdown

    results = [msgspec.json.decode(each, type=ContractResult) for each in config.stash[_RESULTS]]
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(markdown(results), encoding="utf-8", errors="replace")
    except OSError as problem:
        raise pytest.UsageError(
            f"--anaphora-report={file}: cannot be written: {problem.strerror or problem}"
        ) from None
    terminalreporter.write_line(f"anaphora: {len(results)} cache contracts, report in {file}")


# ── The parts of a fixture ───────────────────────────────────────────────────────────────────────


def _redirect(config: pytest.Config) -> Redirect:
    """The proxy of this test run, started on first use."""
    if _REDIRECT not in config.stash:
        with _plain_errors():
            from anaphora.serving.server import require_extra

            require_extra("pytest", "granian")
            from .redirect import Redirect

            config.stash[_REDIRECT] = Redirect()
        config.add_cleanup(config.stash[_REDIRECT].close)
    return config.stash[_REDIRECT]


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors of the configuration as one sentence, without a traceback of this plugin."""
    from anaphora.errors import AnaphoraError

    try:
        yield
    except (AnaphoraError, pytest.UsageError) as problem:
        raise pytest.fail.Exception(str(problem), pytrace=False) from None


def _set(monkeypatch: pytest.MonkeyPatch, redirect: Redirect, *, keys: bool) -> None:
    for name, value in redirect.variables(keys=keys).items():
        monkeypatch.setenv(name, value)


def _marker(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """The options of a test's marker; the closest marker counts."""
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(name))):
        if marker.args:
            raise pytest.UsageError(f"the options of {name} are keyword arguments")
        options |= marker.kwargs
    return options


def _recordings(request: pytest.FixtureRequest, config: pytest.Config, folder: str | None) -> Path:
    """The folder of a test's recordings: beside its file, by module, class and name; or the one
    given in its marker."""
    path: Path = request.node.path
    if folder is not None:
        return path.parent / folder
    steps = map(_file_name, request.node.nodeid.split("::")[1:])
    return Path(path.parent, config.getini("anaphora_recordings"), path.stem, *steps)


def _file_name(name: str) -> str:
    """A file name for the name of a test, whose parameters may hold any character."""
    safe = re.sub(r"[^A-Za-z0-9_.\-]+", "-", name)[:100].strip("-.")
    return safe if safe == name else f"{safe}-{zlib.crc32(name.encode()):08x}"
