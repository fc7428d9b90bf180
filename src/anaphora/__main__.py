"""`python -m anaphora` is the `anaphora` command."""

from __future__ import annotations

import sys

from anaphora.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
