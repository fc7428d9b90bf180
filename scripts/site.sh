#!/bin/sh
# Makes the environment .docs and builds the site there:
#     sh scripts/site.sh             with Zensical, into site/
#     sh scripts/site.sh mkdocs      with mkdocs-material, into site/
# OUTPUT=FOLDER builds into another folder. Nothing is installed when the requirements and the
# interpreter are what they were.
set -eu
cd "$(dirname "$0")/.."

say() { echo "docs: $*"; }

list=requirements/docs.txt
python=.docs/bin/python

state() { .venv/bin/python -c 'import sys; print(sys.base_prefix, sys.version)'; pwd -P; cat "$list" scripts/site.sh | cksum; }

if ! { [ -x "$python" ] && [ "$(cat .docs/stamp 2>/dev/null)" = "$(state)" ]; }; then
    [ -x .venv/bin/python ] || { say "no .venv yet: make setup" >&2; exit 1; }
    say "installing $list into .docs (hashes checked)"
    .venv/bin/python -m venv --clear .docs
    "$python" -m pip --quiet --disable-pip-version-check --no-input install --require-hashes -r "$list"
    state >.docs/stamp
fi
exec "$python" scripts/site.py "${1:-zensical}" --output "${OUTPUT:-site}"
