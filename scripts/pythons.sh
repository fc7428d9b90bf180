#!/bin/sh
# Lists the other interpreters on this machine that the package is for: "3.12 /path/to/python3.12",
# one line for each version, without that of .venv. Looks at PATH and at pyenv's and uv's folders.
set -eu
cd "$(dirname "$0")/.."

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

seen=$(version_of "${VENV:-.venv}/bin/python") || seen=
for version in $(sed -n 's/.*Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml); do
    [ "$version" != "$seen" ] || continue
    for python in "python$version" \
        "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python \
        "${UV_PYTHON_INSTALL_DIR:-$HOME/.local/share/uv/python}/cpython-$version".*/bin/python; do
        if [ "$(version_of "$python")" = "$version" ]; then
            echo "$version $(command -v "$python")"
            break
        fi
    done
done
