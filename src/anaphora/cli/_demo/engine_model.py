"""A model file for llama.cpp: random weights, 0.5 MB, written in a moment.

    python -m anaphora.cli._demo.engine_model OUT.gguf

Its tokens are the 256 bytes and a few special ones, so what it said is read back as the tokens that
it said, and the engine's prefix cache holds answers, too. Which word it says is random and depends
on everything before it; the form is not. What may follow a token is a table (`_FOLLOWS`), laid into
dimensions of their own that no layer writes to:

    an answer     a capital, six small letters in alphabetical order, a full stop, the end
    <|act|>       makes it call one tool; whatever grammar the engine holds it to, a string ends
                  after one such word and no white space is said
    <|ponder|>    makes it think first, in two digits
    <|accent|>    makes it say `é` first, a character of two tokens

The chat template places these cues (engine_template.jinja).
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

TEMPLATE = Path(__file__).with_name("engine_template.jinja")
CONTEXT = 16384

_WIDTH, _LAYERS, _HEADS, _KEY_HEADS, _INNER = 64, 2, 2, 1, 128
_HEAD = _WIDTH // _HEADS

#: Control tokens first, then those that the engine must show in an answer's text.
_CONTROL = ("<|pad|>", "<|turn|>", "<|end|>", "<|act|>", "<|ponder|>", "<|accent|>")
_SHOWN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_SPECIAL = (*_CONTROL, *_SHOWN)

_STAGES = ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcd", "efgh", "ijkl", "mnop", "qrst", "uvwxyz", ".")

#: Tokens of one kind, and what is said after one: the first choice, and the second for where a
#: grammar forbids the first. Bytes are given as text, special tokens by name.
_FOLLOWS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    *((tuple(stage), tuple(then), ('"',)) for stage, then in pairwise(_STAGES)),
    ((".",), ("<|end|>",), ('"',)),
    (("<|act|>",), ("<tool_call>",), ()),
    (("}",), ("}", "</tool_call>"), (",", "]")),
    (("</tool_call>",), ("<|end|>",), ()),
    (("<|ponder|>",), ("<think>",), ()),
    (("<think>",), tuple("01234"), ()),
    (tuple("01234"), tuple("56789"), ("}", ",", "]")),
    (tuple("56789"), ("</think>",), ("}", ",", "]")),
    (("<|accent|>",), ("\xc3",), ()),
    (("\xc3",), ("\xa9",), ()),
)
#: After everything else a word begins; or JSON does, where that is asked for.
_OTHERWISE = (tuple(_STAGES[0]), ("{",))

_KINDS = len(_FOLLOWS) + 1
_LOUD = 4
_FIRST, _SECOND, _PLAIN, _BLANK, _NEVER = 200.0, 100.0, 0.0, -100.0, -200.0


def write(path: Path, template: str | None = None) -> None:
    """The model file, with its own chat template or another. Equal bytes each time."""
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer)
    _vocabulary(writer)
    writer.add_chat_template(template or TEMPLATE.read_text(encoding="utf-8"))
    for name, tensor in _weights().items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KEY_HEADS)
    writer.add_rope_dimension_count(_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _vocabulary(writer: gguf.GGUFWriter) -> None:
    said = _byte_names()
    # An empty list of merges is not read. This one never applies: no text holds a raw zero byte.
    merged = said[0] + said[0]
    tokens = [*_SPECIAL, *said, merged]
    kind = gguf.TokenType
    types = [kind.CONTROL] * len(_CONTROL) + [kind.USER_DEFINED] * len(_SHOWN)
    types += [kind.NORMAL] * (len(tokens) - len(types))
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{said[0]} {said[0]}"])
    writer.add_add_bos_token(False)
    writer.add_bos_token_id(_token("<|turn|>"))
    writer.add_eos_token_id(_token("<|end|>"))
    writer.add_pad_token_id(_token("<|pad|>"))


def _byte_names() -> list[str]:
    """What GPT-2's tokenizer calls each byte: printable ones by themselves, the others by letters
    from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    names, others = [], 0
    for byte in range(256):
        names.append(chr(byte) if byte in printable else chr(256 + others))
        others += byte not in printable
    return names


def _token(name: str) -> int:
    return _SPECIAL.index(name) if name in _SPECIAL else len(_SPECIAL) + ord(name)


def _weights() -> dict[str, Array]:
    random = np.random.default_rng(20261114)

    def drawn(rows: int, columns: int, scale: float) -> Array:
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    count = len(_SPECIAL) + 257
    tensors = {"token_embd.weight": drawn(count, _WIDTH, 1.0)}
    ones = np.ones(_WIDTH, dtype=np.float32)
    for layer in range(_LAYERS):
        for name, rows, columns in (
            ("attn_q", _WIDTH, _WIDTH),
            ("attn_k", _KEY_HEADS * _HEAD, _WIDTH),
            ("attn_v", _KEY_HEADS * _HEAD, _WIDTH),
            ("attn_output", _WIDTH, _WIDTH),
            ("ffn_gate", _INNER, _WIDTH),
            ("ffn_up", _INNER, _WIDTH),
            ("ffn_down", _WIDTH, _INNER),
        ):
            # Attention speaks louder than the last token: a word is about all that was said.
            scale = columns**-0.5 * (_LOUD if name.startswith("attn") else 1)
            tensors[f"blk.{layer}.{name}.weight"] = drawn(rows, columns, scale)
        for name in ("attn_output", "ffn_down"):
            tensors[f"blk.{layer}.{name}.weight"][:_KINDS] = 0
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = ones
    tensors["output_norm.weight"] = ones
    tensors["output.weight"] = drawn(count, _WIDTH, 0.3)
    _lay_down_what_follows(tensors["token_embd.weight"], tensors["output.weight"])
    return tensors


def _lay_down_what_follows(embedding: Array, output: Array) -> None:
    """The first dimensions tell a token's kind going in, and each token's rank after that kind
    going out."""
    embedding[:, :_KINDS] = 0
    output[:, :_KINDS] = _NEVER
    for byte in range(0x21, 0x7F):
        output[_token(chr(byte)), :_KINDS] = _PLAIN
    output[[_token(" "), _token("<")], :_KINDS] = _BLANK
    plain = _KINDS - 1
    embedding[:, plain] = 8
    for kind, (tokens, first, second) in enumerate((*_FOLLOWS, ((), *_OTHERWISE))):
        for name in tokens:
            embedding[_token(name), plain] = 0
            embedding[_token(name), kind] = 8
        output[[_token(name) for name in second], kind] = _SECOND
        output[[_token(name) for name in first], kind] = _FIRST


if __name__ == "__main__":
    write(Path(sys.argv[1]))
