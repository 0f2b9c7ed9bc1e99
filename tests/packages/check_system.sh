#!/bin/sh
# Installs, upgrades and removes memwatch on a real system with systemd as its first process, and runs a job on the simulated GPU.
#
#   check_system.sh FOLDER
#
# FOLDER has first.deb, second.deb (a later version), first.rpm, second.rpm, and gpusim/.
set -eu
cd "$1"

unit=memwatch-agent.service
export DEBIAN_FRONTEND=noninteractive

fail() {
    echo "FAILED: $*"
    systemctl status "$unit" --no-pager --full || true
    journalctl --unit "$unit" --no-pager --lines 20 || true
    exit 1
}

is() { # WHAT WANTED GOT
    [ "$2" = "$3" ] || fail "$1: '$3' and not '$2'"
    echo "ok: $1: $2"
}

holds() { # WHAT COMMAND...
    what=$1
    shift
    "$@" >/tmp/output 2>&1 || { cat /tmp/output; fail "$what"; }
    echo "ok: $what"
}

# Repeats a command until it succeeds, for a minute or more.
waits() { # WHAT COMMAND...
    what=$1
    shift
    for _ in $(seq 60); do
        if "$@" >/tmp/output 2>&1; then
            echo "ok: $what"
            return
        fi
        sleep 1
    done
    cat /tmp/output
    fail "$what"
}

main_process() { systemctl show --property MainPID --value "$unit"; }
pinned() { find /sys/fs/bpf/memwatch -type f 2>/dev/null | wc -l; }
# The job has held 64 MiB since before any restart, and the agent has traced it from its start.
job_is_known() { memwatch ps --json | tr -d ' \n' | grep -q "\"pid\":$job,.*\"from_start\":true"; }
job_holds() { memwatch ps --json | tr -d ' \n' | grep -q "\"driver_allocated_bytes\":$1,"; }
nothing_runs() { ! pgrep -x memwatch; }

nothing_is_left() {
    is "nothing is pinned" 0 "$(pinned)"
    for path in /usr/bin/memwatch /run/memwatch /usr/lib/systemd/system/$unit /usr/share/man/man1/memwatch.1.gz /usr/share/memwatch; do
        [ ! -e "$path" ] || fail "$path is left"
    done
    nothing_runs || fail "an agent runs"
    echo "ok: its files are gone, and nothing runs"
}

start_job() {
    rm -f /tmp/questions
    mkfifo /tmp/questions
    gpusim/bin/gpusim-workload </tmp/questions >/tmp/answers &
    job=$!
    exec 3>/tmp/questions
    printf 'uuid 0\ndevice 0\nalloc kept 64M\n' >&3
}

ask_job() {
    echo "$1" >&3
    sleep 1
}

end_job() {
    exec 3>&-
    wait "$job" || true
}

# Copies the simulated driver to the folder of a driver's libraries.
cp gpusim/lib/lib*.so* gpusim/device/lib*.so* "/usr/lib/$(uname -m)-linux-gnu/"
ldconfig
# Creates the ledger, which is the machine's GPU: the first process creates it.
echo quit | gpusim/bin/gpusim-workload >/dev/null || true

is "the first process" systemd "$(cat /proc/1/comm)"

echo "== .deb: installed"
holds "dpkg installs it" dpkg --install first.deb
is "the agent" active "$(systemctl is-active $unit)"
is "the agent at the next boot" enabled "$(systemctl is-enabled $unit)"
holds "there is the group" getent group memwatch
holds "the man page is there" test -s /usr/share/man/man1/memwatch.1.gz
start_job
waits "memwatch ps knows the job through the agent's socket" job_is_known
waits "and what it holds" job_holds 67108864
memwatch ps
[ "$(pinned)" -gt 0 ] || fail "nothing is pinned"
echo "ok: $(pinned) things are pinned"

echo "== .deb: restarted"
first=$(main_process)
systemctl stop $unit
[ "$(pinned)" -gt 0 ] || fail "the watch has ended with the agent"
ask_job 'alloc meanwhile 32M'
systemctl start $unit
[ "$first" != "$(main_process)" ] || fail "it was not restarted"
waits "the job is known from its start" job_is_known
waits "and what it has allocated while no agent ran" job_holds 100663296
holds "the agent says so" sh -c "journalctl --unit $unit --no-pager | grep 'resumed the previous agent'"

echo "== .deb: upgraded"
echo 'MEMWATCH_LISTEN=127.0.0.1:9747' >>/etc/default/memwatch-agent
first=$(main_process)
holds "dpkg upgrades it" dpkg --install second.deb
is "the agent" active "$(systemctl is-active $unit)"
[ "$first" != "$(main_process)" ] || fail "the agent was not restarted"
waits "the job is known from its start" job_is_known
holds "the administrator's settings stay" grep -q '^MEMWATCH_LISTEN' /etc/default/memwatch-agent
is "and are used" 1 "$(ss --listening --tcp --no-header --numeric | grep -c '127.0.0.1:9747')"

echo "== .deb: upgraded where the administrator has disabled it"
systemctl disable --now $unit
holds "dpkg installs it again" dpkg --install second.deb
is "at the next boot" disabled "$(systemctl is-enabled $unit || true)"
is "the agent" inactive "$(systemctl is-active $unit || true)"
systemctl enable --now $unit

echo "== .deb: removed"
holds "dpkg removes it" dpkg --remove memwatch
nothing_is_left
holds "the settings and the history stay" test -e /etc/default/memwatch-agent -a -d /var/lib/memwatch
holds "dpkg purges it" dpkg --purge memwatch
[ ! -e /etc/default/memwatch-agent ] && [ ! -e /var/lib/memwatch ] || fail "settings or history are left"
is "no link of the unit is left" "" "$(find /etc/systemd /var/lib/systemd -name 'memwatch*')"

echo "== .rpm"
holds "rpm installs it" rpm --nodeps --install first.rpm
# Debian's presets enable every service; the installation starts none.
is "the agent" inactive "$(systemctl is-active $unit || true)"
holds "it can be started" systemctl start $unit
waits "memwatch ps knows the job" sh -c "memwatch ps --json | grep -q '\"pid\": *$job'"
first=$(main_process)
holds "rpm upgrades it" rpm --nodeps --upgrade second.rpm
is "the agent" active "$(systemctl is-active $unit)"
[ "$first" != "$(main_process)" ] || fail "the agent was not restarted"
holds "rpm removes it" rpm --erase memwatch
nothing_is_left
end_job
echo "PACKAGES ARE FINE"
