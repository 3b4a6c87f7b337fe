#!/bin/sh
# Installs the system packages that pip can't bring: libibverbs1 (Mooncake is linked to it), iproute2 (the rig's namespaces),
# curl (what `make pair` prints).
set -e
PATH="$PATH:/usr/sbin:/sbin" # where ldconfig and tc are, for a user too
missing=
ldconfig -p | grep -q libibverbs.so.1 || missing="$missing libibverbs1"
command -v ip >/dev/null && command -v tc >/dev/null || missing="$missing iproute2"
command -v curl >/dev/null || missing="$missing curl"
[ -z "$missing" ] && exit 0
install="apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" != 0 ]; then
    echo "System packages are missing. Run this, then start again:" >&2
    echo "    sudo sh -c '$install'" >&2
    exit 1
fi
sh -c "$install"
