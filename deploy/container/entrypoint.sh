#!/bin/sh
# Fills the home from what is mounted, and runs the command.
#
#   /etc/anaphora/config     llm.yaml, extensions.yaml
#   /etc/anaphora/secrets    tokens.key, and NAME.txt for each {secret: NAME}
#
# The daemon uses secrets that belong to its user and that no other may read, and follows no links.
# Mounted files are neither, so they are copied. Files that are not mounted are made once, as by
# `anaphora init`.
set -eu
config=${ANAPHORA_CONFIG_FOLDER:-/etc/anaphora/config}
secrets=${ANAPHORA_SECRETS_FOLDER:-/etc/anaphora/secrets}
: "${ANAPHORA_HOME:?names the folder of this node}"

umask 077
mkdir -p "$ANAPHORA_HOME/secrets"
chmod 700 "$ANAPHORA_HOME" "$ANAPHORA_HOME/secrets"

# By rename: a command that runs beside the daemon sees the old file or the new one.
copy() {
    cp "$1" "$2.new"
    mv "$2.new" "$2"
}

for name in llm.yaml extensions.yaml; do
    if [ -f "$config/$name" ]; then copy "$config/$name" "$ANAPHORA_HOME/$name"; fi
done
for file in "$secrets"/*; do
    case $file in
    */tokens.key) copy "$file" "$ANAPHORA_HOME/tokens.key" ;;
    *.txt) copy "$file" "$ANAPHORA_HOME/secrets/${file##*/}" ;;
    esac
done
[ -f "$ANAPHORA_HOME/tokens.key" ] || anaphora init "$ANAPHORA_HOME" >/dev/null
exec "$@"
