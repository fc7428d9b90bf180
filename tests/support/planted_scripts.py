"""What is planted in conversations with the emulator: one script for each cause, and some without."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .planted import PNG, Json, spec
from .planted_runs import PLACES, Conversation, PlantedRun


def growing(talk: Conversation) -> None:
    talk.send()
    for _ in range(5):
        talk.turn()


def tool_loop(talk: Conversation) -> None:
    """Only Anthropic's blocks are written here."""
    talk.send()
    for at in range(4):
        call = {"type": "tool_use", "id": f"toolu_{at}", "name": "read", "input": {"path": "a"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": "Some lines."}
        talk.prompt["messages"][-1:] = [("assistant", [call])]
        talk.prompt["messages"].append(("user", [result]))
        talk.send()


def under_the_ttl(talk: Conversation) -> None:
    talk.send()
    talk.turn(wait=talk.lifetime - 2)
    talk.turn()


def refreshed_by_reads(talk: Conversation) -> None:
    talk.send()
    for _ in range(4):
        talk.turn(wait=talk.lifetime * 0.7)


def marked_for_an_hour(talk: Conversation) -> None:
    talk.prompt["ttl"] = "1h"
    talk.send()
    talk.turn(wait=1800)
    talk.turn(wait=3500)
    talk.turn("expired", wait=3700)


def expired_in_part(talk: Conversation) -> None:
    """The system prompt is cached for an hour, the rest for five minutes."""
    talk.prompt["system_ttl"] = "1h"
    talk.send()
    talk.turn()
    talk.turn("expired", wait=600)
    talk.turn()


def expired(talk: Conversation) -> None:
    talk.send()
    talk.turn()
    talk.turn("expired", wait=talk.lifetime + 60)
    talk.turn()


def resumed(talk: Conversation) -> None:
    """The whole history again, a day later."""
    talk.send()
    talk.turn()
    talk.turn("expired", "resumed", wait=max(86_400.0, talk.lifetime) + 3600)
    talk.turn()


def changed(plant: Callable[[Json], None], *causes: str) -> Callable[[Conversation], None]:
    def script(talk: Conversation) -> None:
        talk.send()
        talk.turn()
        plant(talk.prompt)
        talk.turn(*causes)
        talk.turn()

    return script


def edit_system(prompt: Json) -> None:
    prompt["system"][0] = prompt["system"][0].replace("2026-11-15", "2026-11-16")


def edit_tool(prompt: Json) -> None:
    prompt["tools"][1] = {**prompt["tools"][1], "description": "Looks for something."}


def move_tool(prompt: Json) -> None:
    prompt["tools"].append(prompt["tools"].pop(0))


def add_tool(prompt: Json) -> None:
    prompt["tools"].insert(0, {**prompt["tools"][0], "name": "ask"})


def edit_message(prompt: Json) -> None:
    prompt["messages"][1] = ("assistant", ["It holds nothing at all."])


def drop_messages(prompt: Json) -> None:
    del prompt["messages"][2:4]


def add_image(prompt: Json) -> None:
    prompt["messages"].append(("user", ["Look at this.", {"image": PNG}]))
    prompt["messages"].append(("assistant", ["I see it."]))


def rewind(talk: Conversation) -> None:
    """The last two exchanges are taken back, and something else is asked: all that is sent again is
    read."""
    talk.send()
    talk.turn(text="Tell me all about it. " * 60)
    talk.turn(text="And about the other one. " * 60)
    del talk.prompt["messages"][-5:]
    talk.turn(text="No, something else.")
    talk.losses[-1] = False


def other_model(talk: Conversation) -> None:
    talk.send()
    talk.turn()
    talk.turn("model_changed", model=talk.other_model)


def other_effort(talk: Conversation) -> None:
    params: dict[str, Json] = {
        "anthropic": {"tool_choice": {"type": "any"}},
        "openai_responses": {"reasoning": {"effort": "high"}},
        "openai_chat": {"tool_choice": "required"},
        "deepseek": {"thinking": {"type": "disabled"}},
    }
    talk.send()
    talk.turn()
    talk.prompt["params"] = params[talk.place.wire]
    talk.turn("parameter_changed")


def beyond_the_look_back(talk: Conversation) -> None:
    talk.send()
    talk.prompt["messages"].append(("user", [f"result {at}" for at in range(45)]))
    talk.send("lookback_exceeded")


def short(talk: Conversation) -> None:
    talk.prompt["system"] = ["You are terse."]
    talk.prompt["tools"] = talk.prompt["tools"][:1]
    talk.prompt["messages"] = [("user", ["What is in the file?"])]
    talk.send()
    talk.turn("below_minimum")
    talk.turn("below_minimum")


def unmarked(talk: Conversation) -> None:
    talk.prompt["marked"] = False
    talk.send()
    talk.turn("no_marker")


def compacted(talk: Conversation) -> None:
    """The whole history is replaced by the summary that the call before was asked for."""
    talk.send()
    for at in range(3):
        talk.turn(text=f"Tell me all about {at}. " * 40)
    talk.turn(text="Summarise this conversation, with every file and decision in it.")
    summary = f"This session is continued from another one.\nSummary:\n{talk.reply}"
    talk.prompt["messages"] = []
    talk.turn("compaction", text=summary)
    talk.turn()


def compacted_in_part(talk: Conversation) -> None:
    """A summary replaces the oldest messages, and the newest stay."""
    talk.send()
    for at in range(3):
        talk.turn(text=f"Tell me all about {at}. " * 40)
    talk.prompt["messages"][:6] = [("user", ["Earlier: a file and a picture were looked at."])]
    talk.turn("compaction")
    talk.turn()


def compacted_around_questions(talk: Conversation) -> None:
    """As Codex does: the user's messages stay, and the summary follows them."""
    talk.send()
    for at in range(3):
        talk.turn(text=f"Tell me all about {at}. " * 40)
    talk.turn(text="Write a handover of this conversation for another model.")
    asked = [message for message in talk.prompt["messages"] if message[0] == "user"][:-1]
    talk.prompt["messages"] = asked
    talk.turn("compaction", text=f"Another model wrote this summary:\n{talk.reply}")
    talk.turn()


def oldest_left_out(talk: Conversation) -> None:
    """A window of the newest messages."""
    talk.send()
    for at in range(3):
        talk.turn(text=f"Tell me all about {at}. " * 40)
    del talk.prompt["messages"][:4]
    talk.turn("compaction")
    talk.turn()


def one_message(talk: Conversation) -> None:
    """All that was said is one message, to which the reply and a question are added."""
    said = "This is what was said so far. " * 60
    talk.prompt["messages"] = [("user", [said])]
    talk.send()
    for at in range(3):
        said += f"\nModel: {talk.reply}\nUser: What about {at}?"
        talk.prompt["messages"] = [("user", [said])]
        talk.send("history_edited", "marker_on_volatile")


def quoted(talk: Conversation) -> None:
    """The user quotes the reply; that alone loses nothing, and is no summary."""
    talk.send()
    talk.turn(text="Tell me all about it. " * 60)
    talk.turn(text=f"You wrote:\n{talk.reply}\nAre you sure?")
    edit_message(talk.prompt)
    talk.turn("history_edited", text=f"And here:\n{talk.reply}\nAre you sure?")
    talk.turn()


def reminded(talk: Conversation) -> None:
    """As aider does: a reminder ends the newest message, and is gone at the next turn."""
    talk.send()
    for at in range(3):
        talk.prompt["messages"].append(("user", [f"Question {at}. " * 30, "Reminder: be brief."]))
        talk.send(*(("history_edited", "marker_on_volatile") if at else ()))
        talk.prompt["messages"][-2] = ("user", [f"Question {at}. " * 30])


def pruned(talk: Conversation) -> None:
    """An old result makes room for a note."""
    talk.send()
    talk.turn(text="Here is the file: " + "line after line, " * 300)
    talk.turn()
    place = next(
        at for at, (_, parts) in enumerate(talk.prompt["messages"]) if "Here is" in str(parts[0])
    )
    talk.prompt["messages"][place] = ("user", ["[an old file was here]"])
    talk.turn("history_edited")
    talk.turn()


def two_conversations(talk: Conversation) -> None:
    """In turns, with the same tools and system prompt: neither takes anything from the other."""
    other = {**spec(), "messages": [("user", ["Something quite different, please."])]}
    talk.send()
    for at in range(3):
        talk.send(prompt=other)
        other["messages"] += [("assistant", [f"Yes, {at}."]), ("user", [f"More of {at}?"])]
        talk.turn()


def changed_and_back(talk: Conversation) -> None:
    """Another system prompt for one call: the older entry is read again."""
    talk.send()
    talk.turn()
    before = talk.prompt["system"][0]
    edit_system(talk.prompt)
    talk.turn("system_changed")
    talk.prompt["system"][0] = before
    talk.turn()
    talk.losses[-1] = False  # all that was cached of this prompt is read
    talk.turn()


def expired_and_changed(talk: Conversation) -> None:
    talk.send()
    talk.turn()
    edit_system(talk.prompt)
    talk.turn("system_changed", "expired", wait=talk.lifetime + 60)
    talk.turn()


def beside(talk: Conversation) -> None:
    """A title is asked for with other instructions; the conversation goes on."""
    talk.send()
    talk.turn()
    side = {
        "system": ["Give this a title of five words."],
        "tools": [],
        "messages": [("user", ["What is in the file?"])],
        "params": {},
    }
    talk.send(prompt=side)
    talk.turn()


def another_conversation(talk: Conversation) -> None:
    """With the same tools and system prompt: it reads those, and loses nothing."""
    talk.send()
    talk.turn()
    other = {**spec(), "messages": [("user", ["Something quite different, please."])]}
    talk.send(prompt=other)
    talk.turn()


def lost_by_the_provider(talk: Conversation) -> None:
    talk.send()
    talk.turn()
    talk.lose()
    talk.turn("provider_side")


SCRIPTS: dict[str, Callable[[Conversation], None]] = {
    "a growing conversation": growing,
    "a tool loop": tool_loop,
    "a pause just under the TTL": under_the_ttl,
    "reads that refresh": refreshed_by_reads,
    "markers for an hour": marked_for_an_hour,
    "an expired entry": expired,
    "an entry that expired in part": expired_in_part,
    "a session resumed after a day": resumed,
    "a changed byte in the system prompt": changed(edit_system, "system_changed"),
    "a changed tool": changed(edit_tool, "tools_changed"),
    "tools in another order": changed(move_tool, "tools_changed"),
    "a tool more": changed(add_tool, "tools_changed"),
    "another model": other_model,
    "another parameter": other_effort,
    "beyond the look-back": beyond_the_look_back,
    "below the minimum": short,
    "no marker": unmarked,
    "a compaction": compacted,
    "a compaction that keeps the newest": compacted_in_part,
    "a compaction that keeps the questions": compacted_around_questions,
    "the oldest messages left out": oldest_left_out,
    "all that was said as one message": one_message,
    "a quoted reply": quoted,
    "a reminder in the newest message": reminded,
    "an old result cut": pruned,
    "two conversations in turns": two_conversations,
    "a system prompt changed and back": changed_and_back,
    "a changed byte after the TTL": expired_and_changed,
    "an edited message": changed(edit_message, "history_edited"),
    "dropped messages": changed(drop_messages, "history_edited"),
    "messages taken back": rewind,
    "the first image": changed(add_image, "images_changed"),
    "a side call": beside,
    "another conversation": another_conversation,
    "a loss at the provider": lost_by_the_provider,
}
#: Scripts that only Anthropic's wire has.
_ANTHROPIC = {
    "a tool loop",
    "markers for an hour",
    "an entry that expired in part",
    "beyond the look-back",
    "no marker",
}


def every_script() -> Iterator[tuple[str, str]]:
    """Wires, and the names of scripts."""
    for place in PLACES:
        for name in SCRIPTS:
            if place == "anthropic" or name not in _ANTHROPIC:
                yield place, name


def planted_run(place: str, name: str) -> PlantedRun:
    prompt = spec()
    if name == "the first image":
        prompt["messages"][2] = ("user", ["And in the picture?"])
    talk = Conversation(place, prompt)
    SCRIPTS[name](talk)
    return talk.run(name)
