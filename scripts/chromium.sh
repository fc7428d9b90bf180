#!/bin/sh
# Installs Debian's Chromium for tests/emulator/test_page.py when running as root, with
# apt-get, in CI or when asked to (INSTALL_CHROMIUM=1). Never fails; without it the tests are skipped.
set -u

say() { echo "chromium: $*"; }

for name in ${CHROMIUM:-chromium chromium-browser google-chrome google-chrome-stable}; do
    command -v "$name" >/dev/null && exit 0
done
how="the page's tests are skipped (INSTALL_CHROMIUM=1 installs it, as root)"
if [ -z "${CI:-}${INSTALL_CHROMIUM:-}" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null
then
    say "not there; $how"
    exit 0
fi
say "installing the system package chromium with apt-get, since this is root: a page is tested in it"
export DEBIAN_FRONTEND=noninteractive
timeout 120 apt-get -qq update </dev/null >/dev/null 2>&1
timeout 300 apt-get -qq install -y --no-install-recommends chromium </dev/null >/dev/null 2>&1 ||
    say "could not be installed; the page's tests are skipped"
exit 0
