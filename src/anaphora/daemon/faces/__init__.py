"""The faces of all wires: paths, headers, the forms of errors, replies, lists and counts, and what
requests to their providers need.

    face_of("anthropic").request_id_header        "request-id"

A new wire needs a module with its `Face` here, beside its codec in `anaphora.wire`.
"""

from __future__ import annotations

from .anthropic import AnthropicFace
from .face import Face
from .gemini import GeminiFace
from .ollama import OllamaFace
from .openai import OpenAIChatFace, OpenAIResponsesFace

#: The face whose errors are written at paths that belong to none.
DEFAULT = OpenAIChatFace()
#: Their order decides at paths and headers that could be those of several.
FACES: dict[str, Face] = {
    face.wire: face
    for face in (AnthropicFace(), DEFAULT, OpenAIResponsesFace(), GeminiFace(), OllamaFace())
}


def face_of(wire: str) -> Face:
    """The face of a wire, a name of `wire.WIRES`."""
    return FACES[wire]
