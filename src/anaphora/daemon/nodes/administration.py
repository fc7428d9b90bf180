"""Administrator's methods for several nodes, behind `anaphora nodes`, `anaphora grants apply` and
others. They write to the store, which every node reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.daemon.admin import Admin, AdminParams, NoParams
from anaphora.daemon.home.extensions import Grants
from anaphora.errors import InvalidConfig, InvalidRequest
from anaphora.postgres.lane import Lane

from . import directory, generations
from .membership import check_token_key

if TYPE_CHECKING:
    from anaphora.client.config import ClientConfig
    from anaphora.daemon.access.identity import Directory
    from anaphora.daemon.home import Home
    from anaphora.postgres.address import PostgresAddress


class ApplyParams(AdminParams, frozen=True):
    text: str
    """As in extensions.yaml."""
    file: str = "<text>"
    """Its name, for messages."""
    by: str = "an administrator"


class ShowParams(AdminParams, frozen=True):
    generation: int | None = None
    """By default the latest."""


class DrainParams(AdminParams, frozen=True):
    node: str
    undo: bool = False


class NodeAdmin:
    def __init__(self, address: PostgresAddress, *, config: Callable[[], ClientConfig]) -> None:
        self._address = address
        self._config = config
        self._lane = Lane(address, "admin")

    async def prepare(self, home: Home, file: Grants) -> Grants:
        """For a command: loads the grants of the store, or of this home's file if there are none.
        Raises `InvalidConfig` if this home has another key of token hashes."""
        await check_token_key(self._lane, home)
        found = await generations.latest(self._lane)
        if found is None:
            return file
        return Grants.from_text(found.text, found.name).known_to(self._config())[0]

    def register(self, admin: Admin, tokens: Directory) -> None:
        self._tokens = tokens
        admin.register("admin.grants.apply", ApplyParams, self.apply_grants)
        admin.register("admin.grants.show", ShowParams, self.show_grants)
        admin.register("admin.nodes.list", NoParams, self.list_nodes)
        admin.register("admin.nodes.drain", DrainParams, self.drain)

    async def close(self) -> None:
        await self._lane.close()

    async def apply_grants(self, params: ApplyParams) -> dict[str, Any]:
        try:
            grants = Grants.from_text(params.text, params.file, self._config())
        except InvalidConfig as problem:
            raise InvalidRequest(str(problem)) from None
        found, is_new = await generations.apply(self._lane, params.text, by=params.by)
        return {
            **_generation(found),
            "new": is_new,
            "apps": sorted(grants.apps),
            "warnings": list(grants.warnings(self._tokens.token_apps())),
        }

    async def show_grants(self, params: ShowParams) -> dict[str, Any]:
        if params.generation is None:
            found = await generations.latest(self._lane)
        else:
            found = await generations.find(self._lane, params.generation)
        if found is None:
            which = (
                "no grants" if params.generation is None else f"no generation {params.generation}"
            )
            raise InvalidRequest(f"the store holds {which}; `anaphora grants apply FILE` adds them")
        return {**_generation(found), "text": found.text}

    async def list_nodes(self, _params: NoParams) -> dict[str, Any]:
        latest = await generations.latest(self._lane)
        rows = await directory.nodes(self._lane)
        return {
            "store": str(self._address),
            "generation": 0 if latest is None else latest.number,
            "nodes": [msgspec.to_builtins(row) for row in rows],
        }

    async def drain(self, params: DrainParams) -> dict[str, Any]:
        changed = await directory.set_drained(self._lane, params.node, not params.undo)
        return {"node": params.node, "drained": not params.undo, "changed": changed}


def _generation(one: generations.GrantGeneration) -> dict[str, Any]:
    return {
        "generation": one.number,
        "digest": one.digest,
        "applied_at": one.applied_at,
        "applied_by": one.applied_by,
    }
