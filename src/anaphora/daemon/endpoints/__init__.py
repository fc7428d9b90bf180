"""Provider-compatible endpoints: the paths, requests and responses of five wires, served to apps.

    path ─faces─▶ body (one strict parser) ─references─▶ AppCall ─▶ its steps
                                                  AppReply, CallStream ─writing─▶ the app

The bytes that are checked are the bytes that are sent. Only the headers and query fields listed in
`headers` pass to a provider and back.
"""
