"""What a call asks for besides text: models, limits, tools, media, stored objects, unknown fields.

    call = codec.parse(body, path)
    facts = read_facts("anthropic", read_content("anthropic", call), members, path, headers)

Grants are checked against these facts, and the bound of a call's cost is computed from them. The
messages are read from the parsed call, the other fields from the body's members.
"""
