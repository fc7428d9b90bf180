#!/bin/sh
# Installs the agent programs that tests run (requirements/programs.txt) with npm, into .programs.
# In CI or when asked to (INSTALL_SERVERS=1): they are 750 MB. Never fails: tests whose program is
# missing are skipped, and fail in CI.
set -u
cd "$(dirname "$0")/.." || exit 0

say() { echo "programs: $*"; }

list=requirements/programs.txt
[ -n "${CI:-}${INSTALL_SERVERS:-}" ] || exit 0
[ "$(cat .programs/stamp 2>/dev/null)" = "$(cat "$list")" ] && exit 0
command -v npm >/dev/null || { say "no npm: the tests of agent programs cannot run"; exit 0; }
say "installing $(grep -v '^#' "$list" | tr '\n' ' ')with npm into .programs"
rm -rf .programs && mkdir .programs || exit 0
if timeout 600 npm install --silent --no-package-lock --no-save --no-audit --no-fund --prefix .programs \
    $(grep -v '^#' "$list") >.programs/log 2>&1; then
    cp "$list" .programs/stamp
else
    say "they could not be installed: see .programs/log"
fi
exit 0
