"""Find what will break a cached prefix, before it does.

lint_text(text, "system.md")                   volatile content of a prompt or template
lint_request(rendered, "call.json", costs)     the same in a request's tools and system prompt,
                                               and markers that cache nothing
lint_samples([("a", one), ("b", two)])         differences where there should be none
"""
