"""Sources of a client configuration."""

from __future__ import annotations

from typing import Any

import pytest

from anaphora import AsyncClient
from anaphora.errors import InvalidConfig


@pytest.mark.parametrize("source", [None, 3, ["llm.yaml"]])
def test_invalid_configuration_is_named(source: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"the path of llm\.yaml, or its content, not"):
        AsyncClient.from_config(source)
