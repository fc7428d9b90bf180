"""The job that `--on ray=ADDRESS` submits: `python -m anaphora.usage.fleet.job` on the cluster."""

from __future__ import annotations

import json
import os
import sys

import msgspec

from anaphora.errors import AnaphoraError, MissingExtra
from anaphora.version import __version__

from . import reports_of_logs
from .running import REPORT
from .sums import FleetJob


def main() -> None:
    wanted = json.loads(os.environ["ANAPHORA_FLEET"])
    if wanted["version"] != __version__:
        versions = f"anaphora {__version__}, and {wanted['version']} sent the job"
        sys.exit(f"the cluster has {versions}: install the same on both")
    job = msgspec.convert(wanted["job"], FleetJob)
    try:
        reports = reports_of_logs(wanted["urls"], job, on="ray", out=wanted["out"])
    except (AnaphoraError, MissingExtra) as problem:
        sys.exit(str(problem))
    sys.stdout.write(f"{REPORT}{msgspec.json.encode(reports).decode()}\n")


if __name__ == "__main__":
    main()
