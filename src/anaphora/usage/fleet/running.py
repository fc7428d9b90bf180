"""Runs the two steps of `shuffle`: in this process, in processes, on Ray."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from anaphora.errors import AnaphoraError, InvalidRequest, Io
from anaphora.usage.processes import WorkProcesses
from anaphora.usage.report import UsageReport
from anaphora.version import __version__

from .shuffle import (
    BucketResult,
    SlicedRecords,
    Spill,
    encoded,
    judge_runs,
    judge_spilled,
    records_of,
    runs_of,
    spill_slice,
)
from .sources import LogSlice, is_remote, missing
from .sums import FleetJob, FleetProgress, FleetSums

#: How often Ray does a task again whose worker was lost: some tasks end any worker.
_RAY_TRIES = 10
#: Begins the line of a job's log that has the report.
REPORT = "anaphora-usage-report "


def check_output(out: str | None, kind: str) -> None:
    """Raises before any work is done."""
    if kind not in ("", "ray"):
        raise InvalidRequest(f"expected ray or ray=ADDRESS, got {kind!r}", path="on")
    if out is not None:
        try:
            import pyarrow  # noqa: F401
        except ModuleNotFoundError:
            raise missing("Parquet needs pyarrow") from None
        if not is_remote(out) and not Path(out).absolute().parent.is_dir():
            raise InvalidRequest("no such folder", path=str(Path(out).parent))


class _Collector:
    """Adds results as they come, each once."""

    def __init__(
        self, parts: int, buckets: int, sums: FleetSums, report: Callable[[FleetProgress], None]
    ) -> None:
        self._sums, self._report = sums, report
        self._state = FleetProgress(slices=parts, buckets=buckets)
        self.runs: dict[int, list[Any]] = {}

    def add_slice(self, found: SlicedRecords) -> None:
        for bucket, runs in found.runs.items():
            self.runs.setdefault(bucket, []).extend(runs)
        for problem in found.problems:
            self._sums.set_aside(problem)
        self._sums.set_aside_others(*found.others)
        self._state.read += 1
        self._state.records += found.records
        self._report(self._state)

    def add_bucket(self, found: BucketResult, writer: Callable[[bytes], None]) -> None:
        self._sums.merge(found.sums)
        if found.table:
            writer(found.table)
        self._state.judged += 1
        self._state.usd = float(self._sums.tallies[0].total.usd)
        self._report(self._state)


def run_here(
    parts: list[LogSlice],
    buckets: int,
    sums: FleetSums,
    out: str | None,
    workers: int,
    progress: Callable[[FleetProgress], None],
) -> None:
    collector = _Collector(len(parts), buckets, sums, progress)
    with (
        Spill() as spill,
        _output(out) as writer,
        WorkProcesses(workers if workers > 1 else 0) as processes,
    ):
        folder = str(spill.folder)
        for found in processes.each(spill_slice, [(part, buckets, folder) for part in parts]):
            collector.add_slice(found)
        tasks = [(sums.job, runs) for _, runs in sorted(collector.runs.items())]
        for result in processes.each(judge_spilled, tasks):
            collector.add_bucket(result, writer)


@contextmanager
def _output(out: str | None) -> Iterator[Callable[[bytes], None]]:
    """Appends tables to one Parquet file."""
    if out is None:
        yield lambda _: None
        return
    import pyarrow.parquet as pq

    if is_remote(out):
        import fsspec

        opened: Any = fsspec.open(out, "wb")
    else:
        opened = open(out, "wb")  # noqa: SIM115
    writers: list[Any] = []

    with opened as file:

        def write(table: bytes) -> None:
            source = pq.ParquetFile(io.BytesIO(table))
            if not writers:
                writers.append(pq.ParquetWriter(file, source.schema_arrow, compression="zstd"))
            for batch in source.iter_batches():
                writers[0].write_batch(batch)

        try:
            yield write
        finally:
            for writer in writers:
                writer.close()


# ── Ray ──────────────────────────────────────────────────────────────────────────────────────────


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise missing("--on ray needs Ray") from None
    return ray


def _failed(what: str, problem: Exception) -> Io:
    """With the first line: Ray's explanations are long."""
    return Io(f"{what}: {str(problem).strip().partition(chr(10))[0][:500]}")


def ray_runs(part: LogSlice, buckets: int) -> Any:
    """The runs of a slice by bucket, and what else came of it; or the error."""
    try:
        found = runs_of(part, buckets, lambda encoded: encoded)
    except AnaphoraError as problem:
        return [str(problem), *[b""] * buckets]
    rest = found._replace(runs={})
    runs = [b"".join(found.runs.get(bucket, ())) for bucket in range(buckets)]
    if any(len(each) > 1 for each in found.runs.values()):  # runs of a large file
        runs = [encoded(sorted(records_of(io.BytesIO(run)))) for run in runs]
    return [rest, *runs]


def ray_judge(job: FleetJob, *runs: bytes) -> BucketResult:
    return judge_runs(job, [records_of(io.BytesIO(run)) for run in runs])


def run_on_ray(
    parts: list[LogSlice],
    buckets: int,
    sums: FleetSums,
    out: str | None,
    address: str,
    progress: Callable[[FleetProgress], None],
) -> None:
    ray = _ray()
    if not ray.is_initialized():
        try:
            ray.init(address=address or None, log_to_driver=False, include_dashboard=False)
        except Exception as problem:  # Ray raises bare exceptions
            raise _failed("Ray did not start", problem) from None
    collector = _Collector(len(parts), buckets, sums, progress)
    # Ray does a task again whose worker was lost, and the tasks whose results were lost with it.
    read = ray.remote(ray_runs).options(num_returns=buckets + 1, max_retries=_RAY_TRIES)
    judge = ray.remote(ray_judge).options(max_retries=_RAY_TRIES)

    def result(task: Any) -> Any:
        try:
            return ray.get(task)
        except ray.exceptions.RayError as problem:
            raise _failed("a task on Ray failed", problem) from None

    with _output(out) as writer:
        found = [read.remote(part, buckets) for part in parts]
        for each in found:
            rest = result(each[0])
            if isinstance(rest, str):
                raise Io(rest)
            collector.add_slice(rest)
        left = [judge.remote(sums.job, *[each[b] for each in found]) for b in range(1, buckets + 1)]
        del found, each
        while left:
            collector.add_bucket(result(left.pop(0)), writer)


def submit_to_ray(
    address: str, urls: list[str], job: FleetJob, out: str | None
) -> list[UsageReport]:
    """Runs this package on the cluster as a job, and reads the reports in the job's log."""
    _ray()
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as problem:
        raise missing(f"Ray's jobs need more packages ({problem})") from None
    wanted = {"version": __version__, "urls": urls, "job": msgspec.to_builtins(job), "out": out}
    try:
        client = JobSubmissionClient(address)
        id = client.submit_job(
            entrypoint="python -m anaphora.usage.fleet.job",
            runtime_env={"env_vars": {"ANAPHORA_FLEET": json.dumps(wanted)}},
        )
        status = _ended(client, id)
        log = client.get_job_logs(id)
    except Exception as problem:  # Ray raises bare exceptions
        raise _failed(address, problem) from None
    for line in reversed(log.splitlines()):
        if line.startswith(REPORT):
            return msgspec.json.decode(line.removeprefix(REPORT), type=list[UsageReport])
    lines = [line for line in log.splitlines() if line.strip()]
    raise Io(f"the job {id} at {address} ended as {status}: {lines[-1] if lines else 'no log'}")


def _ended(client: Any, id: str) -> str:
    while not (status := client.get_job_status(id)).is_terminal():
        time.sleep(0.5)
    return str(status)
