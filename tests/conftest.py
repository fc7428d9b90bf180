"""What holds in every test: a conversation that is rendered again keeps its beginning.

The check is automatic. A test that breaks a prefix on purpose says why:

    @pytest.mark.breaks_prefix(reason="the clock in the system prompt is the point")
"""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings, strategies
from support.missing import skip_without
from support.temporary import memory_place
from support.waiting import PATIENCE

from anaphora import emulator
from anaphora.catalog import Profile
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.server import Emulator
from anaphora.prompt import Call
from anaphora.rendered import Rendered
from anaphora.values import SegmentRole
from anaphora.wire import anthropic, gemini, openai_chat, openai_responses

if TYPE_CHECKING:
    from support.browser import Chromium
    from support.ledgers import PostgresPlace, StorePlace
    from support.servers import PostgresServer

HERE = Path(__file__).parent

settings.register_profile(
    "suite",
    max_examples=12,
    deadline=None,  # machines are noisy: no test asserts a time
    derandomize=True,  # the suite says the same each time; `make soak` looks for what is new
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
for name, examples in (("more", 200), ("long", 2000)):
    settings.register_profile(
        name, settings.get_profile("suite"), max_examples=examples, derandomize=False
    )
settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started by a shell in the background: tests of Ctrl-C, and the programs they start, need it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    if place := memory_place():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", place)
    # Each client of an SDK reads what it trusts: of the system's, that takes a tenth of a second.
    authority = HERE / "support" / "authority.pem"
    os.environ["SSL_CERT_FILE"] = str(authority)
    # Of requests that name no timeout.
    for part in ("connect", "read", "write", "pool"):
        setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, PATIENCE)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """The collector leaves out what collecting the tests made, which stays: a million objects."""
    spread(session.config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def spread(config: pytest.Config) -> None:
    """Each process of xdist starts with other folders: pytest rewrites the assertions of a file once
    and keeps that, and processes that start with the same file all do it."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    number = int(worker["workerid"].removeprefix("gw")) % worker["workercount"]
    folders = [
        str(path) for path in sorted(HERE.iterdir()) if path.is_dir() or path.match("test_*.py")
    ]
    start = len(folders) * number // worker["workercount"]
    config.args = folders[start:] + folders[:start]
    if number == 0:
        strategies.characters(
            categories=["Lu"]
        ).validate()  # its table of characters is kept as well


#: Files with tests in a browser: one process has them all, and starts it once.
BROWSER_FILES = """
    dashboard/browser/test_daemon dashboard/browser/test_watch_and_emulator
    dashboard/browser/test_script emulator/test_page proxy/test_watch_page
""".split()

#: Files that take longest. xdist would start with those of most tests, and leave long ones of few
#: tests to the end.
LONG_FILES = """
    programs/test_agent_programs analysis/trace/test_bench daemon/test_crash_points
    proxy/test_forward daemon/nodes/test_readiness client/test_conversations
    daemon/test_mutated_requests laws/test_matrix spec/test_d_streaming cli/test_session_programs
    test_bare_install cli/test_demo analysis/trace/test_verdicts cli/test_watch
    client/test_secrets daemon/nodes/test_ledger_processes test_docs daemon/test_ledger_kills
    cli/test_exit_codes catalog/test_price_table cli/test_widths wire/test_laws
    client/test_late_verdicts client/test_fan_out_batches daemon/test_guides cli/test_ask
    client/test_shared daemon/nodes/test_cluster daemon/test_generated_requests client/test_mcp
    emulator/test_strict laws/test_across_wires emulator/test_server cli/test_simulate
    daemon/test_large_bodies daemon/nodes/test_nodes client/test_faults wire/test_sdk
    daemon/test_store_damage replay/test_guide daemon/test_store_postgres cli/test_demo_tour
    cli/test_record daemon/test_calls_read_on emulator/test_schema_value
    postgres/test_connection cli/test_map daemon/test_cache_keys pytest_plugin/test_outcomes
    dashboard/test_pages cases/test_token_caches daemon/test_endpoint_sdks daemon/test_bound_law
    daemon/test_ledger client/test_every_wire daemon/test_endpoint_handles client/test_fan_out
    daemon/test_charges daemon/nodes/test_hung_postgres audit/test_kills client/test_call_gate
""".split()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order in which xdist starts the files, with its option --no-loadscope-reorder."""
    if not hasattr(config, "workerinput"):
        return
    names = (*BROWSER_FILES, *LONG_FILES)
    first = {HERE / f"{name}.py": place for place, name in enumerate(names)}
    if missing := [str(path) for path in first if not path.exists()]:
        raise pytest.UsageError(f"tests/conftest.py names files that are gone: {missing}")
    tests = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[int, int, Path]:
        return first.get(item.path, len(first)), -tests[item.path], item.path

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    browser = {f"tests/{name}.py" for name in BROWSER_FILES}
    engines = "tests/engines/"  # these tests share servers that start once in a process

    class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            """What one process runs."""
            file = super()._split_scope(nodeid)
            if file.startswith(engines):
                return "engines"
            return "browser" if file in browser else file

    return FileScheduling(config, log)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A process of xdist reports a test that passes once, and not its setup and teardown as well:
    sending and reading a report takes as long as many tests do."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.passed:
            report.keywords = {}
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def running_emulator() -> Iterator[Emulator]:
    options = EmulatorOptions(latency=Latency(first=0.0), any_model=True)
    with emulator.running(options) as running:
        yield running


@pytest.fixture
def emu(running_emulator: Emulator) -> Emulator:
    """One emulator for all tests of a process, emptied before each."""
    running_emulator.reset()
    return running_emulator


@pytest.fixture
def more_faults() -> Iterator[None]:
    """Faults of support/more_faults.py, beside those of the emulator."""
    from support.more_faults import more_faults

    with more_faults():
        yield


@pytest.fixture(scope="module")
def new_objects_only() -> Iterator[None]:
    """For tests that look at all objects: those that earlier tests left, which may be a million,
    are left out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """One browser for all tests of a process; a test that asks for it runs in its thread."""
    from support.browser import CHROMIUM, HOW, Chromium

    if CHROMIUM is None:
        pytest.fail(HOW)
    browser = Chromium()
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of a process; a test that stops it starts it again."""
    from support.servers import PostgresServer, ServerMissing

    try:
        server = PostgresServer()
    except ServerMissing as missing:
        skip_without(missing)
    with server:
        yield server


@pytest.fixture
def database_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database of the test's own."""
    if not postgres_server.running:
        postgres_server.start()
    url = postgres_server.create_database()
    yield url
    postgres_server.resume()
    if not postgres_server.running:
        postgres_server.start()
    postgres_server.drop_database(url)


@pytest.fixture
def postgres_place(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[PostgresPlace]:
    """A database with the tables of a store."""
    from support.ledgers import PostgresPlace, with_tables

    if not postgres_server.running:
        postgres_server.start()
    url = postgres_server.create_database(with_tables)
    yield PostgresPlace(url, tmp_path)
    postgres_server.resume()
    if not postgres_server.running:
        postgres_server.start()
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    """Where a store is: the test runs on both kinds."""
    if request.param == "sqlite":
        return tmp_path / "store.sqlite"
    found: StorePlace = request.getfixturevalue("postgres_place")
    return found


@pytest.fixture(scope="session")
def nginx() -> None:
    """For tests that start nginx by themselves: skips where it is not installed."""
    from support.servers import NginxServer, ServerMissing, find_program

    try:
        find_program(NginxServer.names, NginxServer.folders)
    except ServerMissing as missing:
        skip_without(missing)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    browser: Any = pyfuncitem.funcargs.get("chromium")
    if browser is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    browser.run(lambda: pyfuncitem.obj(**arguments))
    return True


#: The wires whose every rendering is watched.
GUARDED: tuple[Any, ...] = (anthropic, openai_chat, openai_responses, gemini)


class PrefixGuard:
    """Stands in for `render`: what comes out must be what a cold render gives, and must begin with
    what the conversation's last rendering could reuse."""

    def __init__(self, render: Any, exempt: bool) -> None:
        self.render = render
        self.exempt = exempt
        self.broken = 0
        self._last: dict[int, tuple[Any, Rendered]] = {}

    def __call__(
        self, call: Call, profile: Profile, previous: Rendered | None = None, **more: Any
    ) -> Rendered:
        rendered: Rendered = self.render(call, profile, previous, **more)
        if previous is not None:
            cold: Rendered = self.render(call, profile, **more)
            assert rendered.data() == cold.data(), "a warm render must equal a cold one"
            assert paths(rendered) == paths(cold)
            assert (rendered.envelope.head, rendered.envelope.tail) == (
                cold.envelope.head,
                cold.envelope.tail,
            )
        if profile.as_sent:
            return rendered  # a request of another program, which may edit its messages
        for earlier in self._earlier(call, previous):
            if not rendered.cacheable_data().startswith(earlier.cacheable_data()):
                self.broken += 1
                assert self.exempt, (
                    "this rendering does not begin with the last one's cacheable bytes; if the"
                    " test means to do that, mark it breaks_prefix(reason=...)"
                )
        items = self._items(call)
        if items is not None:
            self._last[id(items)] = (items, rendered)
        return rendered

    def _earlier(self, call: Call, previous: Rendered | None) -> list[Rendered]:
        """The rendering named by the caller, and the last one of the same conversation."""
        found = [previous] if previous is not None and previous.model == call.model else []
        last = self._last.get(id(self._items(call)))
        if last is not None and last[1] is not previous and last[1].model == call.model:
            run = next(r for r in last[1].runs if r.role is SegmentRole.CONVERSATION)
            if len(run.source) <= len(call.ir.run(SegmentRole.CONVERSATION)):
                found.append(last[1])
        return found

    def _items(self, call: Call) -> Any:
        conversation = call.ir.run(SegmentRole.CONVERSATION)
        return conversation._items if len(conversation) else None


def paths(rendered: Rendered) -> list[str]:
    """Where each chunk is in the body."""
    return [run.path(chunk) for run in rendered.runs for chunk in range(run.count)]


RENDERS = {codec: codec.render for codec in GUARDED}


# Hooks, because a fixture of every test would cost more than many tests do.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("breaks_prefix")
    if marker is not None and not str(marker.kwargs.get("reason", "")).strip():
        pytest.fail("breaks_prefix needs a reason: breaks_prefix(reason='…')")
    for codec, render in RENDERS.items():
        codec.render = PrefixGuard(render, exempt=marker is not None)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    if fixturedef.scope == "function":
        return (yield)
    guards = [codec.render for codec in GUARDED]
    unguard()  # what several tests share is no test's own
    try:
        return (yield)
    finally:
        for codec, guard in zip(GUARDED, guards, strict=True):
            codec.render = guard


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    guards = [codec.render for codec in GUARDED]
    yield
    if item.get_closest_marker("breaks_prefix") and not any(guard.broken for guard in guards):
        pytest.fail("marked breaks_prefix, but no prefix broke: take the mark away")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    unguard()


def unguard() -> None:
    for codec, render in RENDERS.items():
        codec.render = render
