"""The style and the script of the pages. Their names contain a hash of the content, so browsers
keep them for good and still get new ones after an update."""

from __future__ import annotations

import functools
import hashlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from anaphora.serving.exchange import CompleteResponse

#: The folder of the files, in this package and below the root of a site.
STATIC = "static"
_TYPES = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
}
#: Of every file: opened by itself, it loads nothing.
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


def static_content(name: str) -> bytes:
    """A file of the package, such as `dashboard.css`."""
    content = pkgutil.get_data(__package__, f"{STATIC}/{name}")
    assert content is not None, name
    return content


def static_url(root: str, name: str) -> str:
    """The address of a file below the root of a site."""
    return f"{root}/{STATIC}/{_hashed_names()[name]}"


def static_file(name: str) -> CompleteResponse:
    """The file with that name, which contains the hash."""
    for plain, hashed in _hashed_names().items():
        if name == hashed:
            headers = {
                **_HEADERS,
                "content-type": _TYPES[plain],
                "cache-control": "public, max-age=31536000, immutable",
            }
            return CompleteResponse(200, headers, static_content(plain))
    headers = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
    return CompleteResponse(404, {**_HEADERS, **headers}, b"not found\n")


@functools.cache
def _hashed_names() -> Mapping[str, str]:
    """The name of each file with the hash of its content: `dashboard.0f1e2d3c4b5a.css`."""
    names = {}
    for name in _TYPES:
        stem, _, ending = name.rpartition(".")
        digest = hashlib.sha256(static_content(name)).hexdigest()[:12]
        names[name] = f"{stem}.{digest}.{ending}"
    return MappingProxyType(names)
