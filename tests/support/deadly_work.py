"""Work on session files that ends its process; apart from `killed_tasks`, which loads faster."""

from __future__ import annotations

import os

from anaphora.usage.tasks import Done, ReadTask, Task, work


def work_or_die(tasks: list[Task]) -> list[Done]:
    """A process that reads deadly.jsonl ends."""
    if any(isinstance(task, ReadTask) and task.path.endswith("deadly.jsonl") for task in tasks):
        os._exit(9)
    return work(tasks)
