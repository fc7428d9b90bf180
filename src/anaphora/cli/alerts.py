"""`anaphora alerts`"""

from __future__ import annotations

from pathlib import Path

import click

from .common import FOUND, CommandGroup, stop
from .daemon_connection import call_admin, home_option, json_option, open_home
from .terminal import print_report


@click.group(cls=CommandGroup)
def command() -> None:
    """Send a test alert to each target of extensions.yaml.

    The section `alerts` lists the events to report, and the webhooks, commands and logs that they
    are sent to.
    """


@command.command()
@home_option
@json_option
def test(home: Path, as_json: bool) -> None:
    """Send a test alert to each target, once.

    A running daemon sends it, with its environment and its network; otherwise this command does.
    Exit code 1 when a target did not get it.
    """
    result = call_admin(open_home(home), "admin.alerts.test", {})
    targets = result["targets"]
    lines = [f"{one['target']}: {_state(one['sent'], one['reason'])}" for one in targets]
    print_report(result, lines, as_json=as_json)
    if not all(one["sent"] for one in targets):
        stop(FOUND)


def _state(sent: bool, reason: str) -> str:
    return "sent" if sent else f"not sent: {reason}"
