#!/bin/sh
# Makes the environment with the frameworks whose adapters are tested, and runs their tests there:
#     sh scripts/integrations.sh newest [pytest's arguments]      .integrations/newest
#     sh scripts/integrations.sh lowest [pytest's arguments]      .integrations/lowest
# Without arguments for pytest: all tests in tests/integrations/frameworks. MAKE_ONLY=1 runs none.
# Nothing is installed when the requirements and the interpreter are what they were.
set -eu
cd "$(dirname "$0")/.."

say() { echo "integrations: $*"; }

case ${1:-} in
newest) list=requirements/integrations.txt ;;
lowest) list=requirements/integrations-lowest.txt ;;
*) say "usage: sh scripts/integrations.sh newest|lowest [pytest's arguments]" >&2; exit 2 ;;
esac
home=.integrations/$1
shift
python=$home/bin/python

state() { .venv/bin/python -c 'import sys; print(sys.base_prefix, sys.version)'; pwd -P; cat "$list" scripts/integrations.sh | cksum; }

if ! { [ -x "$python" ] && [ "$(cat "$home/stamp" 2>/dev/null)" = "$(state)" ]; }; then
    [ -x .venv/bin/python ] || { say "no .venv yet: make setup" >&2; exit 1; }
    say "installing $list into $home (hashes checked)"
    .venv/bin/python -m venv --clear "$home"
    # uv installs it in a quarter of pip's time.
    "$python" -m pip --quiet --disable-pip-version-check --no-input install --require-hashes -r requirements/uv.txt
    "$home/bin/uv" pip install --quiet --no-config --python "$python" --require-hashes -r "$list"
    "$python" -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "anaphora.pth").write_text(str(pathlib.Path("src").resolve()))'
    state >"$home/stamp"
fi
[ -z "${MAKE_ONLY:-}" ] || exit 0
[ "$#" -gt 0 ] || set -- tests/integrations/frameworks
say "pytest in $home"
# Frameworks phone home unless they are told not to, and read prices from the network.
export LANGSMITH_TRACING=false LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONPATH=
exec "$python" -m pytest -q -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function --benchmark-disable "$@"
