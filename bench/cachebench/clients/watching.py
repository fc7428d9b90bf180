"""`anaphora watch --fix` by the emulator's clock.

    python watching.py CLOCK PORT URL

Its lines go to standard error; it runs until it is terminated.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The folder `bench`.
sys.path.append(str(Path(__file__).resolve().parents[2]))

if __name__ == "__main__":
    clock, port, url = sys.argv[1:]
    from cachebench.clients import virtual_clock

    virtual_clock.install(Path(clock))
    from anaphora.cli.main import main

    upstreams = [f"{name}={url}" for name in ("anthropic", "openai", "google", "bedrock")]
    upstreams.append(f"deepseek={url}/deepseek")
    sys.argv = ["anaphora", "watch", "--fix", "--port", port]
    for each in upstreams:
        sys.argv += ["--upstream", each]
    main()
