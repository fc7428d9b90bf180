#!/bin/sh
# Makes .venv, or $VENV, ready: a virtual environment, the pinned requirements, this package (editable).
# Does nothing when the requirements, the project file, the interpreter and the folder are
# what they were.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

say() { echo "setup: $*"; }
fail() { say "$*" >&2; exit 1; }

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
version_of() { "$1" -c 'import platform; print(platform.python_version())'; }
# The same for an interpreter and for a virtual environment made from it.
origin_of() { "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3 python}; do
        if is_recent "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

explain_no_python() {
    if [ -n "${PYTHON:-}" ]; then
        fail "PYTHON=$PYTHON is not a Python 3.11 or newer"
    fi
    older=$(python3 --version 2>/dev/null) || older="no Python 3 at all"
    fail "Python 3.11 or newer is needed, found $older." \
        "Install one (Debian 12: apt-get install python3 python3-venv)" \
        "or name it: make setup PYTHON=/path/to/python3.11"
}

# Debian ships ensurepip, without which there is no venv, in a package of its own.
ensure_venv_module() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    advice="$1 cannot make virtual environments: its venv module is incomplete."
    advice="$advice Install the package $package (apt-get install $package) and run make again"
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || fail "$advice"
    say "installing the system package $package with apt-get, since this is root:" \
        "Python's venv module is incomplete without it"
    apt-get -qq update </dev/null || fail "apt-get update failed. $advice"
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$package" \
        </dev/null >/dev/null || fail "$advice"
    "$1" -c 'import ensurepip, venv' 2>/dev/null || fail "$advice"
}

# In a third of pip's time. uv does not read pip's settings: an index that is set there is pip's.
install_with_uv() {
    ! $pip config list | grep -q "\.index-url=" &&
        $pip install --require-hashes -r requirements/uv.txt &&
        "$venv/bin/uv" pip install --quiet --no-config --compile-bytecode --python "$venv/bin/python" \
            --require-hashes -r requirements/dev.txt
}

state() { cat requirements/dev.txt pyproject.toml src/anaphora/version.py scripts/setup.sh | cksum; }

# A .venv that was moved or copied here would still run the scripts of the other folder.
venv_fits() {
    is_recent $venv/bin/python || return 1
    grep -qF " $(pwd -P)/$venv" "$venv/pyvenv.cfg" || return 1
    [ -z "${PYTHON:-}" ] || [ "$(origin_of "$PYTHON")" = "$(origin_of $venv/bin/python)" ]
}

if venv_fits && [ "$(cat $venv/.stamp 2>/dev/null)" = "$(state)" ]; then
    say "$venv is up to date"
    exit 0
fi

# Without pip it is what an interrupted run left behind.
if ! venv_fits || ! $venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || explain_no_python
    ensure_venv_module "$python"
    say "creating $venv with Python $(version_of "$python")"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

pip="$venv/bin/python -m pip --quiet --disable-pip-version-check --no-input"
rm -f $venv/.stamp
say "installing requirements/dev.txt (hashes checked); this takes a few minutes"
install_with_uv 2>/dev/null || $pip install --require-hashes -r requirements/dev.txt
say "installing anaphora itself, editable"
$pip install --no-deps --no-build-isolation -e .
state >$venv/.stamp
say "done, $venv is ready"
