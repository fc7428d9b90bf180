"""What the calls in a fleet's logs cost, and how much of it was a lost cache.

report = usage_of_logs(["s3://logs/2026-11-18/*.jsonl"], on="ray", out="rows.parquet")
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from anaphora.usage.report import Grouping, UsageReport

from .sources import slices_of
from .sums import FleetJob, FleetProgress, FleetSums

__all__ = ["FleetProgress", "usage_of_logs"]

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
    from .running import check_output, run_here, run_on_ray, submit_to_ray

    job = FleetJob(
        by=by,
        since=since,
        until=until,
        now=time.time() if now is None else now,
        rows=out is not None,
    )
    kind, _, address = on.partition("=")
    check_output(out, kind)
    if kind == "ray" and address.startswith(("http://", "https://")):
        return submit_to_ray(address, list(urls), job, out)
    parts = slices_of(urls)
    size = sum(part.size for part in parts)
    # A process takes as long to start as the judge for some megabytes.
    workers = processes or max(1, min(len(os.sched_getaffinity(0)), size // _WORKER_BYTES))
    buckets = min(_MOST_BUCKETS, max(workers, size // _BUCKET_BYTES))
    sums = FleetSums.of(job)
    if kind == "ray":
        run_on_ray(parts, buckets, sums, out, address, progress)
    else:
        run_here(parts, buckets, sums, out, workers, progress)
    return sums.report(files=len({part.url for part in parts}))
