#!/bin/sh
# Makes this host a machine of a Corral site, repairs or upgrades its agent, or takes it off.
#
#   sh install.sh --url https://corral.example.com --token-file FILE [--ca-file FILE]
#   sh install.sh --uninstall
#
# This text is the same for everybody: nothing from a URL, a header or a label is ever pasted into it.
# All of it stands inside braces, so that a download cut at any byte runs nothing.
{
set -eu
umask 077

usage() {
    cat <<'TEXT'
usage: install.sh --url URL --token-file FILE [options]
  --url URL          the site's address, e.g. https://corral.example.com
  --token-file FILE  file that holds the join token; it is moved away and removed when it was used
  --ca-file FILE     CA certificates (PEM) to trust for the site, and no others
  --proxy URL        HTTP proxy through which the site is reached
  --artefact DIR     take corral-agent.pyz and SHA256SUMS from this folder instead of the site
  --prefix DIR       where the agent goes (/opt/corral-agent)
  --state-dir DIR    where it keeps its identity and data (/var/lib/corral-agent)
  --driver NAME      podman (default), or sim: no containers, for trials
  --uninstall        take the agent off; its identity and data stay
Run it again to repair or to upgrade.
TEXT
}

say() { printf 'corral: %s\n' "$*"; }
warn() { printf 'corral: warning: %s\n' "$*" >&2; }
fail() {
    printf 'corral: %s\n' "$1" >&2
    printf 'corral: next step: %s\n' "$2" >&2
    exit 1
}

# --- arguments

url='' token_file='' ca_file='' proxy='' artefact='' driver=podman uninstall='' our_policy='' work=''
prefix=/opt/corral-agent state=/var/lib/corral-agent
unit=/etc/systemd/system/corral-agent.service

read_arguments() {
    while [ $# -gt 0 ]; do
        case $1 in
        --uninstall)
            uninstall=yes
            shift
            continue
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        --url | --token-file | --ca-file | --proxy | --artefact | --prefix | --state-dir | --driver) ;;
        *) fail "unknown argument: $1" "see: sh install.sh --help" ;;
        esac
        [ $# -ge 2 ] || fail "$1 needs a value" "see: sh install.sh --help"
        case $1 in
        --url) url=${2%/} ;;
        --token-file) token_file=$2 ;;
        --ca-file) ca_file=$2 ;;
        --proxy) proxy=$2 ;;
        --artefact) artefact=$2 ;;
        --prefix) prefix=$2 ;;
        --state-dir) state=$2 ;;
        --driver) driver=$2 ;;
        esac
        shift 2
    done
    check_folder "$prefix" --prefix
    check_folder "$state" --state-dir
    case $driver in
    podman | sim) ;;
    *) fail "unknown driver: $driver" "use --driver podman" ;;
    esac
    # It is written into a file that the service reads; one line, no quotes.
    case $proxy in
    *[!A-Za-z0-9._~:/@%[\]-]*) fail "--proxy is not a URL" "give it as http://proxy.example.com:3128" ;;
    esac
}

check_folder() {
    case $1 in
    /*[!A-Za-z0-9._/-]* | *..*) fail "$2 $1 has characters that are not allowed" "use letters, digits and ._/-" ;;
    /?*) ;;
    *) fail "$2 $1 is not an absolute path" "give the whole path of a folder" ;;
    esac
}

# --- what this host must have

check_host() {
    case $(uname -m) in
    x86_64 | aarch64 | arm64 | ppc64le | riscv64 | s390x) ;;
    *) fail "this host is a $(uname -m): the agent needs a 64-bit system" "use a machine with a 64-bit system" ;;
    esac
    mkdir -p "$state"
    free=$(df -Pk "$state" | awk 'NR == 2 { print $4 }')
    case $free in
    '' | *[!0-9]*) warn "cannot tell how much disk space is free at $state" ;;
    *)
        [ "$free" -ge 262144 ] || fail "only $((free / 1024)) MiB are free at $state" "free at least 256 MiB there"
        [ "$free" -ge 20971520 ] || warn "only $((free / 1024)) MiB are free at $state: room for few containers"
        ;;
    esac
}

is_debian() {
    # os-release may be missing, or have next to nothing in it.
    id='' like=''
    if [ -r /etc/os-release ]; then
        id=$(sed -n 's/^ID=//p' /etc/os-release | tr -d '"'"'")
        like=$(sed -n 's/^ID_LIKE=//p' /etc/os-release | tr -d '"'"'")
    fi
    case " $id $like " in
    *' debian '* | *' ubuntu '*) command -v apt-get >/dev/null 2>&1 ;;
    *) return 1 ;;
    esac
}

# Installs packages of the distribution, or says which are missing.
need_packages() {
    [ -n "$1" ] || return 0
    is_debian || fail "these are missing: $2" "install them with this system's package manager, then run this again"
    say "installing from the distribution: $1"
    log=$state/apt.log
    forbid_daemons
    DEBIAN_FRONTEND=noninteractive apt-get update -q >"$log" 2>&1 </dev/null || warn "apt-get update failed"
    # shellcheck disable=SC2086 # one word a package
    DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $1 >>"$log" 2>&1 </dev/null || {
        tail -n 5 "$log" >&2
        fail "apt-get could not install: $1" "see above (all of it: $log), then run this again"
    }
    allow_daemons
    case " $1 " in
    *' openssh-server '*) if has_systemd; then systemctl disable ssh.service ssh.socket >/dev/null 2>&1 </dev/null || true; fi ;;
    esac
    rm -f "$log"
}

# An installation must not open a port: sshd is wanted for inside containers, not for this host.
policy=/usr/sbin/policy-rc.d
forbid_daemons() {
    [ ! -e "$policy" ] || return 0
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    our_policy=yes
}
allow_daemons() {
    [ -n "$our_policy" ] || return 0
    rm -f "$policy"
    our_policy=''
}

find_python() {
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        found=$(command -v "$candidate" 2>/dev/null) || continue
        if "$found" -c 'import sys, ssl, asyncio; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 </dev/null; then
            printf '%s\n' "$found"
            return 0
        fi
    done
    return 1
}

check_python() {
    python=$(find_python) && return 0
    if is_debian; then
        need_packages python3 python3
        python=$(find_python) && return 0
    fi
    fail "Python 3.10 or newer is missing" "install python3 (3.10 or newer, with ssl), then run this again"
}

is_there() {
    case $1 in
    /*) [ -e "$1" ] ;;
    *) command -v "$1" >/dev/null 2>&1 || [ -e "/usr/sbin/$1" ] || [ -e "/sbin/$1" ] ;;
    esac
}

# Each line: a program or file that containers need here, and the Debian package that brings it.
runtime='podman podman
runc runc
/usr/lib/podman/netavark netavark
/usr/lib/podman/aardvark-dns aardvark-dns
catatonit catatonit
/usr/sbin/sshd openssh-server
ssh-keygen openssh-client
patchelf patchelf
nft nftables
ip iproute2
mkfs.ext4 e2fsprogs'

check_runtime() {
    [ "$driver" = podman ] || return 0
    missing=$(printf '%s\n' "$runtime" | while read -r what package; do
        is_there "$what" || printf '%s %s\n' "$package" "$what"
    done)
    need_packages "$(printf '%s' "$missing" | awk '{ print $1 }' | sort -u | tr '\n' ' ' | sed 's/ $//')" \
        "$(printf '%s' "$missing" | awk '{ print $2 }' | tr '\n' ' ')"
}

# --- the token

# The install line, or whoever made the file, may remove it: from here on the token is in the agent's own folder.
take_token() {
    mkdir -p "$state"
    chmod 700 "$state"
    kept=$state/join-token
    [ -n "$token_file" ] || return 0
    [ "$token_file" != "$kept" ] || return 0
    [ -r "$token_file" ] || fail "the token file $token_file cannot be read" "get a new install command in Corral"
    [ -s "$token_file" ] || fail "the token file $token_file is empty" "get a new install command in Corral"
    cat "$token_file" >"$kept.new"
    mv -f "$kept.new" "$kept"
    rm -f "$token_file"
}

is_joined() { [ -e "$state/machine.json" ]; }

check_intent() {
    [ -n "$url" ] || fail "--url is missing" "give the site's address, e.g. --url https://corral.example.com"
    [ -s "$kept" ] || is_joined || fail "--token-file is missing" "get an install command in Corral: Add machine"
    [ -z "$ca_file" ] || [ -r "$ca_file" ] || fail "the CA file $ca_file cannot be read" "give its right place"
}

# --- the agent

fetcher='
import email.utils, http.client, ssl, sys, time, urllib.request
url, path, ca = sys.argv[1:4]
context = ssl.create_default_context(cafile=ca or None) if url.startswith("https:") else None
try:
    with urllib.request.urlopen(urllib.request.Request(url), timeout=60, context=context) as answer:
        data, length = answer.read(), answer.headers["Content-Length"]
        if length is not None and len(data) != int(length):
            sys.exit("cut short")
        with open(path, "wb") as file:
            file.write(data)
        date = email.utils.parsedate_tz(answer.headers["Date"] or "")
        print(int(time.time() - email.utils.mktime_tz(date)) if date else 0)
except (OSError, ValueError, http.client.HTTPException) as error:
    sys.exit(str(error))
'

# fetch NAME: into the working folder; sets `ahead`, by how many seconds this clock is ahead of the site's.
fetch() {
    if [ -n "$artefact" ]; then
        cp "$artefact/$1" "$work/$1" || fail "$artefact has no $1" "put corral-agent.pyz and SHA256SUMS there"
        ahead=0
        return 0
    fi
    ahead=$("$python" -c "$fetcher" "$url/api/v1/agent/artefact/$1" "$work/$1" "$ca_file" </dev/null) ||
        fail "could not download $1 from $url" "check address, network, proxy and clock; then run this again"
}

check_clock() {
    case $ahead in
    -*) off=${ahead#-} way=behind ;;
    *) off=$ahead way='ahead of' ;;
    esac
    [ "$off" -le 300 ] || warn "this clock is $off s $way the site's: certificates may fail; set up time sync (NTP)"
}

# Exactly one entry of exactly this name, or nothing is installed.
verify() {
    entries=$(awk -v name="$1" 'NF == 2 && $2 == name { print $1 }' "$work/SHA256SUMS")
    case $entries in
    '') fail "SHA256SUMS has no entry for $1" "tell the site's operator; nothing was changed" ;;
    *[!0-9a-f]*) fail "SHA256SUMS has no single good entry for $1" "tell the site's operator; nothing was changed" ;;
    esac
    sum=$(sha256sum "$work/$1" | awk '{ print $1 }')
    [ "$sum" = "$entries" ] || fail "$1 does not match its checksum" "run this again; nothing was changed"
}

download_agent() {
    mkdir -p "$prefix"
    chmod 755 "$prefix"
    work=$(mktemp -d "$prefix/.new.XXXXXX")
    fetch SHA256SUMS
    check_clock
    fetch corral-agent.pyz
    verify corral-agent.pyz
    release=$("$python" "$work/corral-agent.pyz" --version </dev/null) ||
        fail "the downloaded agent does not run with $python" "send the lines above to the site's operator; nothing was changed"
}

put_agent() {
    chmod 644 "$work/corral-agent.pyz"
    mv -f "$work/corral-agent.pyz" "$prefix/corral-agent.pyz"
    # What an update left that did not come to its end.
    rm -rf "$prefix/.corral-agent-update"
    {
        printf '#!/bin/sh\n'
        if [ -n "$proxy" ]; then
            printf "export HTTPS_PROXY='%s' https_proxy='%s'\n" "$proxy" "$proxy"
        fi
        printf 'exec %s %s/corral-agent.pyz "$@"\n' "$python" "$prefix"
    } >"$work/corral-agent"
    chmod 755 "$work/corral-agent"
    [ -z "$proxy" ] || chmod 700 "$work/corral-agent"
    mv -f "$work/corral-agent" "$prefix/corral-agent"
    agent=$prefix/corral-agent
}

join_site() {
    code=0
    "$agent" join --url "$url" --token-file "$kept" --state "$state" ${ca_file:+--ca "$ca_file"} </dev/null || code=$?
    case $code in
    0) rm -f "$kept" ;;
    2)
        rm -f "$kept"
        join_failed "the site refused this machine for good (see above)" "get a new install command in Corral"
        ;;
    *) join_failed "the site has not confirmed the join" "run this again: the token is kept in $kept" ;;
    esac
}

join_failed() {
    if is_joined; then start_agent; fi
    fail "$1" "$2"
}

# --- running it

has_systemd() { [ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1; }

agent_pid() {
    [ -r "$state/agent.pid" ] || return 1
    pid=$(cat "$state/agent.pid")
    case $pid in
    '' | *[!0-9]*) return 1 ;;
    esac
    # The number may be another program's by now.
    { tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF "$prefix/corral-agent.pyz"; } 2>/dev/null
}

pause() { sleep 0.2 2>/dev/null || sleep 1; }

stop_agent() {
    if has_systemd && [ -e "$unit" ]; then
        systemctl stop corral-agent.service </dev/null || warn "systemctl could not stop corral-agent.service"
    fi
    if agent_pid; then
        kill "$pid" 2>/dev/null || true
        tries=0
        while agent_pid; do
            tries=$((tries + 1))
            [ "$tries" -le 150 ] || fail "the agent (process $pid) does not end" "see $state/agent.log; then run this again"
            pause
        done
    fi
    rm -f "$state/agent.pid"
}

start_agent() {
    if has_systemd; then
        start_by_systemd
    else
        start_by_hand
    fi
}

start_by_systemd() {
    cat >"$work/unit" <<TEXT
[Unit]
Description=Corral agent
Documentation=file:$prefix
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=$prefix/corral-agent run --state $state --driver $driver
# It ends by itself, for good, when the machine was removed.
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2
# Containers are not the agent's: it may end, they go on.
KillMode=process
Delegate=yes
LimitNOFILE=1048576
TasksMax=infinity
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
TEXT
    chmod 644 "$work/unit"
    mv -f "$work/unit" "$unit"
    systemctl daemon-reload </dev/null
    systemctl enable corral-agent.service </dev/null >/dev/null 2>&1
    systemctl restart corral-agent.service </dev/null ||
        fail "systemd could not start the agent" "see: journalctl -u corral-agent.service"
}

start_by_hand() {
    say "systemd does not run here: the agent is started in the background and will not come back after a reboot."
    say "after a reboot run: $agent run --state $state --driver $driver"
    setsid nohup "$agent" run --state "$state" --driver "$driver" >"$state/agent.log" 2>&1 </dev/null &
    printf '%s\n' $! >"$state/agent.pid"
}

wait_until_it_runs() {
    tries=0
    until "$agent" status --state "$state" </dev/null 2>/dev/null | grep -qx 'running: True'; do
        tries=$((tries + 1))
        [ "$tries" -le 100 ] || {
            tail -n 5 "$state/agent.log" 2>/dev/null >&2 || true
            fail "the agent joined, but does not keep running" "see journalctl -u corral-agent.service, or $state/agent.log"
        }
        pause
    done
}

take_off() {
    stop_agent
    kept="its identity and data stay in $state; containers that run go on."
    # Of a machine that was removed nothing may run on, also when its agent was stopped before it was done.
    if [ -e "$state/removed.json" ] && [ -x "$prefix/corral-agent" ]; then
        "$prefix/corral-agent" clean --state "$state" </dev/null ||
            fail "what the removed machine ran could not be ended" "see above, then run this again"
        kept="this machine was removed: what it ran is ended, its storage and images are gone. Drive copies stay."
    fi
    if [ -e "$unit" ]; then
        if has_systemd; then systemctl disable corral-agent.service >/dev/null 2>&1 </dev/null || true; fi
        rm -f "$unit"
        if has_systemd; then systemctl daemon-reload </dev/null || true; fi
    fi
    # Only what this script put there: the folder may be somebody's.
    rm -f "$prefix/corral-agent" "$prefix/corral-agent.pyz"
    rm -rf "$prefix/.corral-agent-update"
    rmdir "$prefix" 2>/dev/null || true
    rm -f "$state/join-token" "$state/agent.log"
    say "the agent is off this host; $kept"
    say "if the machine was removed from Corral, you may remove them too: rm -rf $state"
}

# shellcheck disable=SC2317 # the trap calls it
tidy() {
    allow_daemons
    [ -z "$work" ] || rm -rf "$work"
}

main() {
    read_arguments "$@"
    trap tidy EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    [ "$(uname -s)" = Linux ] || fail "this is not Linux" "run this on a Linux machine"
    [ "$(id -u)" = 0 ] || fail "this must run as root" "become root first (sudo -i), then run it again"
    if [ -n "$uninstall" ]; then
        take_off
        return 0
    fi
    take_token
    check_intent
    check_host
    check_python
    if [ -n "$proxy" ]; then export HTTPS_PROXY="$proxy" https_proxy="$proxy"; fi
    check_runtime
    download_agent
    stop_agent
    put_agent
    join_site
    start_agent
    wait_until_it_runs
    say "done: agent $release runs here."
}

main "$@"
exit $?
}
