"""Prompts that OpenAI keeps for the operator, which requests of Responses name: `prompt: {id, …}`.

Such a prompt has a model, a size, instructions and tools that the daemon does not see. A grant must
allow it (`allow: [stored_prompts]`), and may have no limit in dollars: no bound could be held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anaphora.client.pool import ProviderPool, TargetChooser
from anaphora.client.target import Target
from anaphora.daemon.values import GrantedModel, WireRequest
from anaphora.errors import InvalidRequest, NotGranted, RequestRejected
from anaphora.redaction import quoted
from anaphora.wire.reading import known_text

from .checks import is_granted
from .granted_models import refused_model
from .grants import LlmGrant

if TYPE_CHECKING:
    from anaphora.daemon.calls.call import AppCall

FIELD = "prompt"
_WIRE = "openai_responses"


def names_stored_prompt(request: WireRequest | None) -> bool:
    if request is None or request.wire != _WIRE or FIELD not in request.members:
        return False
    return bytes(request.members[FIELD]) != b"null"


def hides_model(request: WireRequest | None) -> bool:
    """Whether a stored prompt decides the model."""
    if request is None or not names_stored_prompt(request):
        return False
    return not known_text(request.members, "model")


def check_stored_prompt(grant: LlmGrant) -> None:
    """Raises `NotGranted` where a grant does not allow stored prompts, and `RequestRejected` where
    it limits what no bound is known for."""
    if "stored_prompts" not in grant.permissions:
        reason = "a stored prompt is not in allow (stored_prompts) of the grant"
        raise NotGranted(reason, param=FIELD)
    if grant.approved_prompt is not None:
        reason = "a stored prompt holds instructions, but the grant approves one prompt"
        raise NotGranted(reason, param=FIELD)
    if grant.has_spend_limit:
        reason = (
            "a stored prompt hides its model and size, so that what the call costs has no bound,"
            " and the grant limits spend"
        )
        raise RequestRejected(reason, status=400, code="no_bound", param=FIELD)


def prompt_targets(
    call: AppCall, pool: ProviderPool, chooser: TargetChooser, models: tuple[GrantedModel, ...]
) -> tuple[Target, ...]:
    """The target of a request that names a stored prompt: a granted provider of Responses. `models`
    are those that are granted. Without a model in the request, the prompt's own answers."""
    grant, app = call.app.grant.llm, call.app.id
    check_stored_prompt(grant)
    named = call.provider or call.stored_at
    if named is not None and named not in grant.providers:
        raise NotGranted(f"the provider {quoted(named)} is not granted to {app}", param="provider")
    for name in [named] if named is not None else grant.providers:
        resolved = pool.providers.get(name)
        if (
            resolved is None
            or (resolved.wire if resolved.dialect is None else resolved.dialect.wire) != _WIRE
        ):
            continue
        model = call.model or _stand_in(name, resolved.provider.model, models)
        if not is_granted(model, grant.models):
            raise refused_model(call.app, model, pool, models)
        return chooser.targets(name, model)[0]
    reason = "only a granted provider of OpenAI's Responses has stored prompts"
    raise InvalidRequest(reason, path=FIELD)


def _stand_in(provider: str, default: str | None, models: tuple[GrantedModel, ...]) -> str:
    """A granted model of a provider, for its limits of rate: which one answers is not known."""
    names = [one.model for one in models if one.provider == provider]
    if not names:
        raise NotGranted(f"no model of {quoted(provider)} is granted", param="model")
    return default if default in names and default is not None else names[0]
