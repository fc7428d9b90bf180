"""What the calls in a fleet's logs cost, and how much of it was a lost cache.

report = usage_of_logs(["s3://logs/2026-11-18/*.jsonl"], on="ray", out="rows.parquet")
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from anaphora.usage.processes import processors
from anaphora.usage.report import Grouping, UsageReport

from .sources import slices_of
from .sums import FleetJob, FleetProgress, FleetSums

__all__ = ["usage_of_logs"]

#: Bytes of logs for each partition's bucket, and the most buckets.
_BUCKET_BYTES, _MOST_BUCKETS = 32 * 1024 * 1024, 512
_WORKER_BYTES = 16 * 1024 * 1024


def usage_of_logs(
    urls: Sequence[str],
    *,
    by: Grouping = "daily",
    on: str = "",
    out: str | None = None,
    since: float | None = None,
    until: float | None = None,
    processes: int | None = None,
    progress: Callable[[FleetProgress], None] = lambda _: None,
    now: float | None = None,
) -> UsageReport:
    """Judges the request logs and sums the audit rows at these paths, globs and URLs.

    `on` is empty for processes on this machine, `ray` for a cluster that this machine belongs to
    (or a local one), `ray=ADDRESS` for another: an `http://` address gets a job, with URLs that
    the cluster can read. `out` is a Parquet file or URL for a row per call. Raises
    `InvalidRequest`, `Io` and `MissingExtra`.
    """
    now = time.time() if now is None else now
    job = FleetJob(by=(by,), since=since, until=until, now=now, rows=out is not None)
    (report,) = reports_of_logs(urls, job, on=on, out=out, processes=processes, progress=progress)
    return report


def reports_of_logs(
    urls: Sequence[str],
    job: FleetJob,
    *,
    on: str = "",
    out: str | None = None,
    processes: int | None = None,
    progress: Callable[[FleetProgress], None] = lambda _: None,
) -> list[UsageReport]:
    """`usage_of_logs` with a report for each grouping of the job, in one run."""
    from .running import check_output, run_here, run_on_ray, submit_to_ray

    kind, _, address = on.partition("=")
    check_output(out, kind)
    if kind == "ray" and address.startswith(("http://", "https://")):
        return submit_to_ray(address, list(urls), job, out)
    parts = slices_of(urls)
    size = sum(part.size for part in parts)
    # A process takes as long to start as the judge for some megabytes.
    workers = processes or max(1, min(processors(), size // _WORKER_BYTES))
    buckets = min(_MOST_BUCKETS, max(workers, size // _BUCKET_BYTES))
    sums = FleetSums.of(job)
    if kind == "ray":
        run_on_ray(parts, buckets, sums, out, address, progress)
    else:
        run_here(parts, buckets, sums, out, workers, progress)
    return sums.reports(files=len({part.url for part in parts}))
