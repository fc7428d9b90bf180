"""One tab for all tests of the dashboard: a new one takes more than a second. The fixture of a server
leaves its page before the server ends: the page would connect again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.browser import Chromium, Tab


@pytest.fixture(scope="session")
def tab(chromium: Chromium) -> Iterator[Tab]:
    with chromium.kept("about:blank") as tab:
        yield tab
