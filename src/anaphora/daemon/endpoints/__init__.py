"""Provider-compatible endpoints: the paths, requests and responses of five wires, served to apps.

    path ─faces─▶ body (one strict parser) ─references─▶ AppCall ─▶ its steps
                                                  AppReply, CallStream ─writing─▶ the app

What is checked and what is sent come from the same bytes. Only headers and query fields of the
lists in `headers` go to a provider, and only those come back.
"""
