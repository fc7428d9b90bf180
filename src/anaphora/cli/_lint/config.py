"""`.anaphora-lint.toml`: suppressions with reasons, and what every run would say anyhow."""

from __future__ import annotations

from pathlib import Path

import msgspec

from anaphora.analysis.lint import RULES, SEVERITIES, Config
from anaphora.errors import InvalidRequest

NAME = ".anaphora-lint.toml"


def load(asked: Path | None) -> Config:
    """The configuration that was named, or the one in the current folder, or none."""
    file = asked or Path(NAME)
    if asked is None and not file.is_file():
        return Config()
    try:
        config = msgspec.toml.decode(file.read_bytes(), type=Config)
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise InvalidRequest(str(problem), path=str(file)) from None
    if config.severity is not None and config.severity not in SEVERITIES:
        raise InvalidRequest(f"is one of {', '.join(SEVERITIES)}", path=f"{file}: severity")
    for index, ignore in enumerate(config.ignore):
        place = f"{file}: ignore[{index}]"
        if not ignore.reason.strip():
            raise InvalidRequest("a suppression needs a reason", path=f"{place}.reason")
        if "*" not in ignore.rule and ignore.rule not in RULES:
            raise InvalidRequest(f"there is no rule {ignore.rule!r}", path=f"{place}.rule")
    return config
