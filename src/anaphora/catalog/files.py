"""Which files speak of whom. A file is read once, when its provider is first asked about."""

from __future__ import annotations

import functools

from anaphora.errors import InvalidCatalog

from .rows import Row, decode_careful, decode_rows

#: What holds of every provider until a row of its own says otherwise.
CAREFUL = "careful.toml"

#: Provider to files, lowest layer first, so that nobody has to open the others to find out. Hosts
#: with little to say of their caches share one.
FILES = {
    "anthropic": ("anthropic.toml",),
    "openai": ("openai.toml", "openai_models.toml"),
    "google": ("google.toml",),
    "ollama": ("ollama.toml",),
    "azure": ("azure.toml",),
    "bedrock": ("bedrock.toml",),
    "minimax": ("minimax.toml",),
    "deepseek": ("deepseek.toml",),
    "xai": ("xai.toml",),
    "mistral": ("mistral.toml",),
    "moonshot": ("moonshot.toml",),
    "alibaba": ("alibaba.toml",),
    "zai": ("zai.toml",),
    "groq": ("groq.toml",),
    "cerebras": ("cerebras.toml",),
    "openrouter": ("openrouter.toml",),
    "vllm": ("vllm.toml",),
    "llamacpp": ("llamacpp.toml",),
    "huggingface": ("hosts.toml",),
    "snowflake": ("hosts.toml",),
    "crusoe": ("hosts.toml",),
    "together": ("hosts.toml",),
}


def read(file: str) -> str:
    """The text of a file that comes with the package."""
    return read_bytes(file).decode()


def read_bytes(file: str) -> bytes:
    """A file that comes with the package."""
    import pkgutil

    try:
        data = pkgutil.get_data(__package__, file)
    except OSError:
        data = None
    if data is None:
        raise InvalidCatalog("the package was installed without it", file=file)
    return data


@functools.cache
def careful() -> tuple[Row, ...]:
    """The rows that are laid first, whoever the provider is."""
    return decode_careful(read(CAREFUL), file=CAREFUL)


@functools.cache
def rows_of(provider: str) -> tuple[Row, ...]:
    """The rows of a provider that has files here."""
    rows = (row for file in FILES[provider] for row in _rows_in(file))
    return tuple(row for row in rows if row.provider == provider)


@functools.cache
def _rows_in(file: str) -> tuple[Row, ...]:
    return decode_rows(read(file), file=file)
