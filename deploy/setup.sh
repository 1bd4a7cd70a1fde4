#!/bin/sh
# Sets up what Corral needs on a Debian or Ubuntu machine: `deploy/setup.sh demo` or `deploy/setup.sh test`.
# Installs only what is missing, says what it installs, and says the next step where it cannot.
set -eu

purpose=${1:-demo}
here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$here"

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    say "$1"
    say "next step: $2"
    exit 1
}

# A Debian package for each program or file that must be there: "what-to-look-for package".
wanted_for_demo='podman podman
runc runc
conmon conmon
catatonit catatonit
nft nftables
ip iproute2
mkfs.ext4 e2fsprogs
mount mount
ssh openssh-client
ssh-keygen openssh-client
sshd openssh-server
/usr/lib/openssh/sftp-server openssh-sftp-server
patchelf patchelf
rsync rsync
setpriv util-linux
/etc/ssl/certs/ca-certificates.crt ca-certificates'
wanted_for_test='gcc gcc
/usr/include/stdlib.h libc6-dev
busybox busybox-static
curl curl
/usr/lib/postgresql postgresql'

is_there() {
    case $1 in
    /*) [ -e "$1" ] ;;
    *) command -v "$1" >/dev/null 2>&1 || [ -e "/usr/sbin/$1" ] || [ -e "/sbin/$1" ] ;;
    esac
}

missing_packages() {
    printf '%s\n' "$1" | while read -r what package; do
        is_there "$what" || printf '%s\n' "$package"
    done | sort -u
}

install_packages() {
    # shellcheck disable=SC2086 # one word a package
    set -- $1
    [ $# -gt 0 ] || return 0
    say "installing from the distribution: $*"
    command -v apt-get >/dev/null 2>&1 ||
        fail "this system has no apt-get" "install these yourself, then run this again: $*"
    [ "$(id -u)" = 0 ] || fail "installing needs root" "run this again as root, or: sudo apt-get install $*"
    case " $* " in
    *' openssh-server '*) say "openssh-server gives compute clusters their sshd; this host's own is yours to stop: systemctl disable --now ssh" ;;
    esac
    DEBIAN_FRONTEND=noninteractive apt-get update -q >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "$@" >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        fail "apt-get could not install: $*" "see what it said above; check the network and /etc/apt/sources.list"
    }
}

find_python() {
    for candidate in python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
}

pip_install() {
    .venv/bin/python -m pip install -q --disable-pip-version-check "$@" >"$log" 2>&1 && return
    tail -n 5 "$log" >&2
    fail "pip could not install the packages" "check that a Python package index can be reached (pip config list)"
}

make_environment() {
    python=$(find_python)
    [ -n "$python" ] || { install_packages 'python3 python3-venv' && python=$(find_python); }
    [ -n "$python" ] || fail "Python 3.11 or newer is missing" "install it, then run this again"
    "$python" -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    wanted=$(cat requirements.txt pyproject.toml | sha256sum)
    [ "$(cat .venv/.installed 2>/dev/null || true)" = "$wanted" ] && return
    say "installing Python packages into .venv"
    pip_install -r requirements.txt
    pip_install --no-deps -e .
    printf '%s\n' "$wanted" >.venv/.installed
}

[ "$(uname -s)" = Linux ] || fail "Corral runs on Linux" "use a Linux machine"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
wanted=$wanted_for_demo
[ "$purpose" = test ] && wanted="$wanted_for_demo
$wanted_for_test"
install_packages "$(missing_packages "$wanted" | tr '\n' ' ')"
make_environment
