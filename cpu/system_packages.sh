#!/bin/sh
# Installs the system packages that pip can't bring: libibverbs1 (Mooncake is linked to it), iproute2 (the rig's namespaces),
# curl (what `make pair` prints), and Python's venv, which Debian ships apart from Python. PYTHON: the one to be used.
set -e
PATH="$PATH:/usr/sbin:/sbin" # where ldconfig and tc are, for a user too
PYTHON=${PYTHON:-python3.11}
if ! command -v "$PYTHON" >/dev/null; then
    echo "$PYTHON is not there. Install Python 3.11 (Debian 12 has it), or name it: make PYTHON=/path/to/python3.11 ..." >&2
    exit 1
fi
missing=
"$PYTHON" -c "import ensurepip" 2>/dev/null || missing="$missing python3.11-venv"
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
