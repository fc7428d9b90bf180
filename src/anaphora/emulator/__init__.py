"""A local server that speaks every wire, keeps a prompt cache by the provider's rules, bills like
it, refuses like it, and misbehaves on request.

    with anaphora.emulator.running() as emu:
        client = anthropic.Anthropic(base_url=emu.url, api_key="any")

`core` is pure: it does no I/O, and time is an argument. `server` is Starlette and Granian, which
come with the extra `anaphora[emulator]`.
"""

from __future__ import annotations
