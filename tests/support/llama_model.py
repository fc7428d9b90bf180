"""A tiny model for llama.cpp (random weights, 0.3 MB), and the process that serves it.

    python llama_model.py OUT.gguf            writes the model
    python llama_model.py OUT.gguf --serve    and serves it until standard input ends

Its tokens are the 256 bytes and a few special ones, so a reply is read back as the tokens that were
generated, and the engine's prefix cache holds replies too. The words are random and depend on the
whole prompt; their form is fixed. `_FOLLOWS` lists the tokens that may follow a token; it is stored
in embedding dimensions that no layer writes to:

    a reply       a capital, six lowercase letters in alphabetical order, a full stop, the end
    <|act|>       one tool call; under any grammar a string ends after one such word, and no white
                  space is generated
    <|ponder|>    reasoning first, in two digits
    <|accent|>    `é` first, a character of two tokens

The chat template (llama_template.jinja) inserts these cues.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

TEMPLATE = Path(__file__).with_name("llama_template.jinja")
CONTEXT = 16384

_WIDTH, _LAYERS, _HEADS, _KEY_HEADS, _INNER = 64, 1, 2, 1, 128
_HEAD = _WIDTH // _HEADS

#: Control tokens first, then those that the engine must show in a reply's text.
_CONTROL = ("<|pad|>", "<|turn|>", "<|end|>", "<|act|>", "<|ponder|>", "<|accent|>")
_SHOWN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_SPECIAL = (*_CONTROL, *_SHOWN)

_STAGES = ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcd", "efgh", "ijkl", "mnop", "qrst", "uvwxyz", ".")

#: Tokens of one kind, and the tokens that follow: first choices, and second choices for where a
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
#: After any other token a word begins, or JSON under a grammar.
_OTHERWISE = (tuple(_STAGES[0]), ("{",))

_KINDS = len(_FOLLOWS) + 1
_LOUD = 4
_FIRST, _SECOND, _PLAIN, _BLANK, _NEVER = 200.0, 100.0, 0.0, -100.0, -200.0


def write(path: Path, template: str | None = None) -> None:
    """Write the model file, with its own chat template or another; the bytes are always equal."""
    writer = gguf.GGUFWriter(path, "llama")
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
    _vocabulary(writer)
    writer.add_chat_template(template or TEMPLATE.read_text(encoding="utf-8"))
    for name, tensor in _weights().items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _vocabulary(writer: gguf.GGUFWriter) -> None:
    names = _byte_names()
    # An empty list of merges is rejected. This one never applies: no text holds a raw zero byte.
    merged = names[0] + names[0]
    tokens = [*_SPECIAL, *names, merged]
    kind = gguf.TokenType
    types = [kind.CONTROL] * len(_CONTROL) + [kind.USER_DEFINED] * len(_SHOWN)
    types += [kind.NORMAL] * (len(tokens) - len(types))
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{names[0]} {names[0]}"])
    writer.add_add_bos_token(False)
    writer.add_bos_token_id(_token("<|turn|>"))
    writer.add_eos_token_id(_token("<|end|>"))
    writer.add_pad_token_id(_token("<|pad|>"))


def _byte_names() -> list[str]:
    """GPT-2's name for each byte: itself if printable, otherwise a letter from 256 on."""
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
            # Attention outweighs the last token: a word depends on the whole prompt.
            scale = columns**-0.5 * (_LOUD if name.startswith("attn") else 1)
            tensors[f"blk.{layer}.{name}.weight"] = drawn(rows, columns, scale)
            if name in ("attn_output", "ffn_down"):
                tensors[f"blk.{layer}.{name}.weight"][:_KINDS] = 0
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = ones
    tensors["output_norm.weight"] = ones
    tensors["output.weight"] = drawn(count, _WIDTH, 0.3)
    _store_followers(tensors["token_embd.weight"], tensors["output.weight"])
    return tensors


def _store_followers(embedding: Array, output: Array) -> None:
    """The first dimensions hold a token's kind in the embedding, and each token's rank after that
    kind in the output."""
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


def serve(path: Path, slots: int, aside: int) -> None:
    """Print the address that llama.cpp's server listens at, and serve until standard input ends."""
    import xllamacpp  # type: ignore[import-untyped]

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = slots
    # The context is divided among the slots.
    params.n_ctx = CONTEXT * slots
    params.cache_ram_mib = aside
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.use_jinja = True
    params.warmup = False
    # Allows clients to erase a slot.
    params.slot_save_path = f"{path.parent}/"
    params.sampling.temp = 0.0
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    # Shutting the engine down takes longer than ending the process.
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--aside", type=int, default=0, help="MiB for prompts without a slot")
    parser.add_argument("--template", type=Path)
    options = parser.parse_args()
    write(options.model, options.template and options.template.read_text(encoding="utf-8"))
    if options.serve:
        serve(options.model, options.slots, options.aside)


if __name__ == "__main__":
    main()
