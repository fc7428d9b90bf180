"""A program of docs/frameworks.md, as written; then the turns that were judged, as JSON.

python observed_framework.py FRAMEWORK
"""

from __future__ import annotations

import json
import sys
from typing import Any

from support.framework_pages import program_of

names: dict[str, Any] = {"__name__": "page"}
exec(compile(program_of(sys.argv[1]), "frameworks.md", "exec"), names)
print(json.dumps([[call.turn, call.usage is not None] for call in names["seen"].calls]))
