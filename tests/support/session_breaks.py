"""A conversation of a session in which its history is broken in several ways.

for step, lifetimes, cause in STEPS:
    step(chat)      and so many lifetimes of the cache pass
    await chat.send(…)
"""

from __future__ import annotations

from collections.abc import Callable

from anaphora.client.session import Session
from anaphora.prompt import PromptBlock, PromptIR
from anaphora.values import Conversation, Message

from .emulated_client import LONG

MOMENT = 30.0
"""Between two calls, besides the lifetimes."""
STORY = "A line of a long story that goes on and on, with many turns. " * 30

Step = Callable[[Session], None]


def go_on(_: Session) -> None:
    """Nothing changes."""


def edit(chat: Session) -> None:
    _, *others = chat.messages
    chat.conversation = Conversation((Message.user("Another question. " * 40), *others))


def drop(chat: Session) -> None:
    first, second, _, _, *others = chat.messages
    chat.conversation = Conversation((first, second, *others))


def compact(chat: Session) -> None:
    kept = chat.messages[-4:]
    summary = Message.user("Earlier: a story was told, and a picture was described.")
    chat.conversation = Conversation((summary, *kept))


def summarise(chat: Session) -> None:
    """The last reply replaces everything, as where the program has asked for a summary."""
    chat.conversation = Conversation((Message.user(f"Summary:\n{chat.messages[-1].text}"),))


def instruct(chat: Session) -> None:
    """Another system prompt, which differs in its middle."""
    middle = len(LONG) // 2
    system = f"{LONG[:middle]}!{LONG[middle + 1 :]}"
    chat.prompt = PromptIR.chat((), system=[PromptBlock.cached_long("other", system)])


#: What is done before each call, the pause before it in lifetimes of the cache, and the cause.
STEPS: list[tuple[Step, float, str | None]] = [
    (go_on, 0.0, None),
    (go_on, 0.0, None),
    (go_on, 0.0, None),
    (edit, 0.0, "history_edited"),
    (go_on, 0.8, None),
    (go_on, 1.1, "expired"),
    (go_on, 0.0, None),
    (drop, 0.0, "history_edited"),
    (go_on, 0.0, None),
    (compact, 0.0, "compaction"),
    (go_on, 0.0, None),
    (instruct, 0.0, "system_changed"),
    (go_on, 0.0, None),
    (summarise, 0.0, "compaction"),
    (go_on, 0.0, None),
]
