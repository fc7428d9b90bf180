"""Images, documents and sounds from files: what they are is found out, and a wrong one is named."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.emulated_client import WIRES, connected
from support.tables import each_row

from anaphora import Document, Image, Text, wire
from anaphora.client import arguments
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from anaphora.values import Audio, Bytes, Url

PNG = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15\xc4\x89"
    b"\0\0\0\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\0\5\0\1\xff\x89\x99=\x1d\0\0\0\0IEND\xaeB`\x82"
)
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\n%%EOF\n"
WEBP = b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\0\0\0\x10\x07\x10\x11\x11\x88\x88\xfe\x07\0"
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0"

#: The file's name and content, the class, and the media type.
KINDS: dict[str, tuple[str, bytes, Any, str]] = {
    "png": ("a.png", PNG, Image, "image/png"),
    "png with another name": ("a.jpg", PNG, Image, "image/png"),
    "png without an ending": ("a", PNG, Image, "image/png"),
    "jpeg": ("a.jpg", b"\xff\xd8\xff\xe0\0\x10JFIF", Image, "image/jpeg"),
    "jpeg by its name": ("a.JPEG", b"\xff\xd8\x00\x81", Image, "image/jpeg"),
    "gif": ("a.gif", b"GIF89a\1\0\1\0", Image, "image/gif"),
    "webp": ("a.webp", WEBP, Image, "image/webp"),
    "heic": ("a.heic", b"\0\0\0\x18ftypheic\0\0\0\0", Image, "image/heic"),
    "pdf": ("a.pdf", PDF, Document, "application/pdf"),
    "pdf without an ending": ("a", PDF, Document, "application/pdf"),
    "text": ("a.txt", b"Hello", Document, "text/plain"),
    "markdown": ("README.md", "# Größe\n".encode(), Document, "text/plain"),
    "code": ("a.py", b"print()", Document, "text/plain"),
    "wav": ("a.wav", WAV, Audio, "audio/wav"),
    "mp3": ("a.mp3", b"ID3\4\0\0", Audio, "audio/mpeg"),
}


@each_row("case", KINDS)
def test_media_type_is_found_out(tmp_path: Path, case: str) -> None:
    name, data, part, media_type = KINDS[case]
    (tmp_path / name).write_bytes(data)
    for path in (tmp_path / name, str(tmp_path / name)):
        made = part.from_file(path)
        assert made.source == Bytes(data, media_type)
    if part is Document:
        assert made.title == name
        assert part.from_file(path, title="T", context="C").title == "T"
    if case != "jpeg by its name":
        assert part.from_bytes(data).source == Bytes(data, media_type)


def test_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfHello")
    assert Document.from_file(tmp_path / "a.txt").source == Bytes(b"Hello", "text/plain")


WRONG: dict[str, tuple[str, bytes, Any, str]] = {
    "a PDF as an image": ("a.pdf", PDF, Image, "is application/pdf; use Document.from_file"),
    "an image as a document": ("a.png", PNG, Document, "is image/png; use Image.from_file"),
    "a sound as an image": ("a.png", WAV, Image, "is audio/wav; use Audio.from_file"),
    "text as an image": (
        "a.png",
        b"<html>404",
        Image,
        "is text; use Document.from_file (Image takes PNG",
    ),
    "an Office file": (
        "a.docx",
        b"PK\3\4\0\0",
        Document,
        "is a ZIP or Office file; save it as PDF",
    ),
    "a BMP": ("a.bmp", b"BM\0\0\xff", Image, "is a BMP image; save it as PNG"),
    "UTF-16": (
        "a.txt",
        "Hallo ä".encode("utf-16"),
        Document,
        "is text in UTF-16; save it as UTF-8",
    ),
    "RTF": ("a.rtf", b"{\\rtf1 Hello}", Document, "is an RTF file; save it as PDF"),
    "noise": ("a.bin", b"\0\1\2\xff", Document, "Document takes PDF or text in UTF-8"),
    "an empty file": ("a.png", b"", Image, "is empty"),
}


@each_row("case", WRONG)
def test_wrong_file_is_named(tmp_path: Path, case: str) -> None:
    name, data, part, reason = WRONG[case]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidRequest) as caught:
        part.from_file(tmp_path / name)
    assert caught.value.path == str(tmp_path / name)
    assert reason in caught.value.reason


def test_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(arguments, "MAX_FILE_BYTES", 4)
    (tmp_path / "large.png").write_bytes(PNG)
    cases = {
        "missing.png": "there is no such file",
        "": "is not a file",
        "pipe": "is not a file",
        "large.png": "is larger than 0 MB",
        "a\0b": "",
    }
    for name, reason in cases.items():
        path = str(tmp_path / name)
        with pytest.raises(InvalidRequest) as caught:
            Image.from_file(path)
        assert caught.value.path == path
        assert reason in caught.value.reason


def test_urls_and_bytes_are_checked() -> None:
    assert Image.from_url("https://e.com/a", detail="low") == Image(Url("https://e.com/a"), "low")
    assert Document.from_url("https://e.com/a.pdf").source == Url("https://e.com/a.pdf")
    assert Image.from_url("data:image/png;base64,iVBORw0KGgo=").source == Bytes(
        PNG[:8], "image/png"
    )
    wrong: list[tuple[Any, Any, str]] = [
        (Image.from_url, "cat.png", "url: 'cat.png' is not a URL; Image.from_file reads a file"),
        (Image.from_url, "data:image/png,xyz", "url: not a data URL"),
        (Image.from_url, b"https://e.com", "url: must be a text, not bytes"),
        (Image.from_bytes, "cat.png", "data: must be bytes, not str; Image.from_file"),
        (Image.from_bytes, b"", "data: must not be empty"),
        (Image.from_bytes, PDF, "data: is application/pdf; use Document.from_file"),
        (Image.from_file, PNG, "path: must be a path, not bytes"),
    ]
    for make, value, message in wrong:
        with pytest.raises(InvalidRequest) as caught:
            make(value)
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", WIRES)
def test_files_reach_every_provider(emu: Emulator, tmp_path: Path, name: str) -> None:
    """What a wire can hold is in the request as it was in the file."""
    for file, data in {"a.png": PNG, "a.pdf": PDF, "a.txt": b"Hello"}.items():
        (tmp_path / file).write_bytes(data)
    image = Image.from_file(tmp_path / "a.png")
    documents = [Document.from_file(tmp_path / file) for file in ("a.pdf", "a.txt")]

    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            response = await emulated.client.complete(["Look", image, *documents], name)
            assert response.text
            body = emulated.transport.bodies[-1]
            parts = wire.get(name).parse(json.dumps(json.loads(body)).encode()).ir.body_chat()[-1]
            sources = [getattr(part, "source", None) for part in parts.parts]
            assert image.source in sources
            for document in documents:
                if name == "openai_chat" and document.title == "a.txt":  # takes PDF files only
                    assert Text("a.txt\n\nHello") in parts.parts
                    assert "document_as_text" in {notice.code for notice in response.notices}
                    continue
                assert document.source in sources, document.title

    asyncio.run(main())
