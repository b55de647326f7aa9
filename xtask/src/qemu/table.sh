#!/bin/sh
# The first process of a guest that prints a table: this, then the script of its subject, whose settings are words of the
# kernel's command line. `linerate` runs in the first namespace.
#
#   host west               host east
#  10.7.0.1 eth0 ── w0 ─┬─ e0 ── eth0 10.7.0.2
#                   linerate
export PATH=/bin HOME=/tmp
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
while read -r module; do
    insmod "/modules/$module" || echo "guest: n/a $module|no such module"
done </etc/modules
ip link set lo up
cd /tmp || exit

# Waits until a command succeeds, for twenty seconds or more.
soon() {
    tries=400
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { echo "guest: n/a $*|it never came true"; return 1; }
        usleep 50000
    done
}

# Whether packet ports are open on so many interfaces.
opened() {
    [ "$(awk '$6 == 1 { print $5 }' /proc/net/packet | sort -u | wc -l)" -ge "$1" ]
}

# The name of the card with this number.
nic_of() {
    nic=$(grep -l "02:00:00:00:04:0$1" /sys/class/net/*/address) || return
    nic=$(basename "$(dirname "$nic")")
}

# Starts linerate; `ended` ends it, and fails if its ledger does not balance. A run that this kernel refuses has no ledger.
begun() {
    ports=$1
    shift
    linerate forward "$@" --json >own 2>own.err &
    pid=$!
    soon opened "$ports"
}

ended() {
    kill "$pid"
    wait "$pid"
    status=$?
    grep -q '"in_flight":0,"balanced":true' own && return
    kind=n/a
    if [ "$status" -ge 128 ] || grep -q '"balanced":' own; then kind=wrong; fi
    echo "guest: $kind linerate|exit status $status: $(cat own own.err | tr '\n' ' ')"
    return 1
}

# A number of iperf3's document in the file `came`, from behind a key.
number() {
    awk -v of="\"$1\":" -v key="\"$2\":" '$1 == of { found = 1 } found && $1 == key { print $2 + 0; exit }' came
}

# Makes host $1 with address $2, whose eth0 is an end of a cable to interface $3, or card $4.
host() {
    ip netns add "$1"
    ip netns exec "$1" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
    if [ -n "${4:-}" ]; then
        nic_of "$4"
        ip link set "$nic" netns "$1" name eth0
    else
        ip link add "$3" type veth peer name eth0 netns "$1"
        ip link set "$3" up
    fi
    ip -n "$1" addr add "$2/24" dev eth0
    ip -n "$1" link set eth0 up
    # Packets as a wire carries them, with their checksums.
    ip netns exec "$1" ethtool -K eth0 tso off gso off gro off 2>/dev/null
}

