"""An MCP server without the official package, which takes a second to import: for tests of the
process, of what it is given and of its end.

    python plain_mcp_server.py [ANYTHING...]
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

TOOLS = {
    "add": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "end": {},
    "variable": {"name": {"type": "string"}},
}


def listing() -> list[dict[str, Any]]:
    return [
        {"name": name, "inputSchema": {"type": "object", "properties": properties}}
        for name, properties in TOOLS.items()
    ]


def call(name: str, arguments: dict[str, Any]) -> str:
    if name == "end":
        os._exit(3)
    if name == "variable":
        return os.environ.get(arguments["name"], "")
    return str(arguments["a"] + arguments["b"])


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }
        case "tools/list":
            return {"tools": listing()}
        case "tools/call":
            text = call(params["name"], params.get("arguments") or {})
            return {"content": [{"type": "text", "text": text}]}
        case "ping":
            return {}
    return None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        result = result_of(message["method"], message.get("params") or {})
        if result is None:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        else:
            answer["result"] = result
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
