"""Handles: created where they pay, extended while they do, deleted when they no longer fit."""

from __future__ import annotations

from decimal import Decimal

from anaphora import catalog, wire
from anaphora.cache.plan import AppMemory, Planner
from anaphora.prompt import Call, Params, PromptBlock, PromptIR, ToolChoice
from anaphora.rendered import CacheHandle, CreateHandle, DeleteHandle, ExtendHandle, Plan, Rendered
from anaphora.rendered.held import held_digest
from anaphora.values import Conversation, Message, Tool
from anaphora.wire import gemini

#: The older one caches nothing by itself.
OLD, NEW = "gemini-2.0-flash", "gemini-2.5-pro"
LONG = "word " * 20_000


def rendered(conversation: Conversation, choice: str = "auto", model: str = OLD) -> Rendered:
    ir = PromptIR.chat(conversation, system=(PromptBlock("identity", LONG),))
    params = Params(max_tokens=9, tool_choice=ToolChoice(choice))  # type: ignore[arg-type]
    call = Call(ir=ir, model=model, tools=(Tool("look"),), params=params)
    return wire.get("gemini").render(call, catalog.profile("google", model))


def replayed(
    pause: float, calls: int, price: str | None = "1.25", model: str = OLD
) -> tuple[Planner, Plan, Rendered]:
    """Plays `calls` calls with this pause; gives the plan of the next."""
    rules = catalog.rules("google", model, "gemini")
    planner = Planner(AppMemory(rules), None if price is None else Decimal(price))
    conversation, at = Conversation(), 0.0
    for number in range(calls):
        conversation = conversation.append(Message.user(f"question {number}"))
        now = rendered(conversation, model=model)
        planner.sent(now, planner.plan(now, at=at), at=at)
        conversation = conversation.append(Message.assistant("ok"))
        at += pause
    conversation = conversation.append(Message.user("and?"))
    last = rendered(conversation, model=model)
    return planner, planner.plan(last, at=at), last


def test_a_prefix_in_constant_use_gets_a_handle() -> None:
    _, plan, last = replayed(pause=20.0, calls=6)
    assert [type(prelude) for prelude in plan.preludes] == [CreateHandle]
    create = plan.preludes[0]
    assert isinstance(create, CreateHandle)
    assert create.chunks < len(last)
    request = gemini.prelude(last, create)
    assert request.path.endswith("/cachedContents")


def test_no_handle_where_the_provider_caches_by_itself() -> None:
    assert replayed(pause=20.0, calls=6, model=NEW)[1].preludes == ()


def test_no_handle_without_a_price() -> None:
    assert replayed(pause=20.0, calls=6, price=None)[1].preludes == ()


def test_no_handle_for_a_rarely_used_prefix() -> None:
    assert replayed(pause=9 * 3600.0, calls=6)[1].preludes == ()


def test_a_handle_is_used_extended_and_deleted() -> None:
    planner, plan, last = replayed(pause=20.0, calls=6)
    (create,) = plan.preludes
    assert isinstance(create, CreateHandle)
    handle = CacheHandle("cachedContents/a", create.chunks, held_digest(last, create.chunks))
    at = 6 * 20.0
    planner.handles.hold(handle, at + 400)
    assert planner.plan(last, at=at).held == handle
    late = planner.plan(last, at=at + 390)
    assert late.held == handle
    assert [type(prelude) for prelude in late.preludes] == [ExtendHandle]
    conversation = Conversation([Message.user("and?")])
    changed = planner.plan(rendered(conversation, "none"), at=at + 10)
    assert changed.held is None
    assert changed.preludes == (DeleteHandle("cachedContents/a"),)
    assert [notice.code for notice in changed.notices] == ["held_settings_changed"]


def test_an_expired_handle_is_forgotten() -> None:
    planner, _, last = replayed(pause=20.0, calls=3)
    planner.handles.hold(CacheHandle("cachedContents/a", 1, "x-y"), 100.0)
    assert planner.plan(last, at=5000.0).held is None
