#!/bin/bash
# One window of forwarding: a program under packets, and one line of JSON that says what it did.
# Experiments `veth`, `veth-load`, `versions-load`, `send-cap` and `memif-peers` run it as a side of
# scenario `command`.
#
#   generator ── a0 ═ v0 ── program ── w0 ═ b0     xdp, packet: counted is what b0 receives
#                      program ── w0 ═ b0          xdp:send, packet:send: the same
#   generator ── t0 ── program ── t1               tap: what the program writes into t1
#   testpmd ══ program                             memif: what testpmd gets back, or sends one way
#
# usage: forward.sh SIDE PORT LAB probe
#        forward.sh SIDE PORT LAB CPU GENERATOR_CPU SECONDS SIZE [RATE]
#
#   SIDE   linerate, testpmd, vswitch (Open vSwitch in user space), bridge (the kernel's), or the
#          path of another build of linerate
#   PORT   xdp, packet, tap, or memif:macswap|sink:server|client[:OPTION] with the program's role;
#          xdp:send:CAP and packet:send:CAP send by `linerate gen --tx-batch CAP`, without a generator
#   LAB    linerate-lab; linerate and macswap are beside it, or on the PATH
#   SIZE   bytes of a frame
#   RATE   packets a second by `linerate forward gen:`, 0 for none; without it as many as can be
#
# Everything runs in namespaces of its own, of network, processes and mounts, with a /run in memory:
# the kernel removes them with the first process inside, however that ends.
set -eu

side=$1 lab=$3 cpu=$4
IFS=: read -r port back role option <<<"$2"

fail() {
    echo "$*" >&2
    exit 1
}

# Prints where a program of this tree is.
ours() {
    local beside=${lab%/*}/$1
    if [ -x "$beside" ]; then echo "$beside"; else command -v "$1"; fi
}

needs() {
    command -v "$1" >/dev/null || fail "no $1: apt-get install $2"
}

if [ "$cpu" = probe ]; then
    [ "$(id -u)" -eq 0 ] || fail 'only root makes interfaces: run it with sudo'
    needs ip iproute2
    needs taskset util-linux
    unshare --net --mount --pid --fork --kill-child true || fail 'no namespaces can be made'
    ours linerate >/dev/null || fail 'no linerate: cargo build --release -p linerate-cli'
    case $side-$port-$back in
    linerate-memif-macswap)
        ours macswap >/dev/null || fail 'no macswap: cargo build --release -p linerate-examples'
        ;;&
    testpmd-* | *-memif-*) needs dpdk-testpmd 'dpdk (in some releases dpdk-dev)' ;;
    vswitch-*) needs ovs-vswitchd openvswitch-switch ;;
    esac
    exit
fi
if [ -z "${LINERATE_INSIDE-}" ]; then
    export LINERATE_INSIDE=1
    exec unshare --net --mount --pid --fork --kill-child \
        bash -c "$BASH_EXECUTION_STRING" forward.sh "$@"
fi

generator_cpu=$5 seconds=$6 size=$7 rate=${8-}
linerate=$(ours linerate)
# Another build is the program under test; the generator stays the same.
tested=$linerate
case $side in */*) tested=$side side=linerate ;; esac
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs run /run
cd /run
# Nothing but the generator sends: no neighbour discovery.
for all in /proc/sys/net/ipv6/conf/{all,default}/disable_ipv6; do
    [ ! -e "$all" ] || echo 1 >"$all"
done

# start NAME CPU PROGRAM [ARGUMENT..]: in the background, with its output in NAME.log.
start() {
    local log=$1.log on=$2
    shift 2
    taskset --cpu-list "$on" "$@" >"$log" 2>&1 </dev/null &
}

# until_true SECONDS COMMAND..: waits for a command to succeed; it fails at a program's end.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ! ended program "$program" && ! ended generator "$generator" || return 1
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.02
    done
}

# ended NAME PID: succeeds, and says so, if the program has ended.
ended() {
    [ -n "$2" ] && ! kill -0 "$2" 2>/dev/null || return 1
    echo "$side: the $1 ended: $(grep -av '^ *$' "$1.log" | tail -n 2 | tr '\n' ' ')" >&2
}

# Whoever has started this counts the CPU time of programs that were waited for.
end_programs() {
    kill -9 $(jobs -p) || true
    wait || true
} 2>/dev/null

# --- The programs under test. $program is the one whose CPU time counts; none for the kernel.

# testpmd NAME CPU MODE DEVICE..
testpmd() {
    local name=$1 on=$2 mode=$3 memory=(--no-huge --no-shconf -m 512) device devices=() kb
    shift 3
    for device; do devices+=(--vdev "$device"); done
    # Huge pages that nobody shares, if there are any; a memif of these would be another case.
    kb=$(awk '/^HugePages_Free/ {n = $2} /^Hugepagesize/ {print n * $2}' /proc/meminfo)
    [ "$port" = memif ] || [ "${kb:-0}" -lt 131072 ] || memory=(--in-memory)
    # Two lcores are the least that it takes; the first only prints the figures.
    start "$name" "$on" dpdk-testpmd --lcores "0@$on,1@$on" --no-pci "${memory[@]}" \
        --file-prefix "$name" "${devices[@]}" -- --forward-mode="$mode" --auto-start --nb-cores=1 \
        --total-num-mbufs=16384 --stats-period=1 --txpkts="$size"
}

# The device of a testpmd of that role.
memif_device() {
    echo "net_memif0,role=$1,id=0,socket=/run/memif.sock,socket-abstract=no,rsize=10"
}

# Open vSwitch with AF_XDP ports: its daemons, a database of their own, a flow each way.
# Source: Documentation/intro/install/afxdp.rst of Open vSwitch.
vswitch() {
    local tell=(ovs-vsctl --db=unix:/run/db --timeout=20) interface n=0
    export OVS_RUNDIR=/run
    ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
    start database "$generator_cpu" ovsdb-server conf.db --remote=punix:/run/db \
        --unixctl=/run/db.ctl
    until_true 20 test -S db
    "${tell[@]}" --no-wait init
    "${tell[@]}" --no-wait set Open_vSwitch . "other_config:pmd-cpu-mask=$((1 << cpu))"
    start program "$cpu" ovs-vswitchd unix:/run/db -vconsole:warn --unixctl=/run/switch.ctl
    program=$!
    "${tell[@]}" add-br br0 -- set bridge br0 datapath_type=netdev
    for interface in v0 w0; do
        n=$((n + 1))
        "${tell[@]}" add-port br0 $interface -- \
            set interface $interface type=afxdp ofport_request=$n
    done
    ovs-ofctl --timeout=20 add-flow unix:/run/br0.mgmt in_port=1,actions=output:2
    ovs-ofctl --timeout=20 add-flow unix:/run/br0.mgmt in_port=2,actions=output:1
}

# The kernel's bridge, whose work would be done on the generator's CPU if it were not steered.
bridge() {
    ip link add br0 type bridge
    ip link set v0 master br0
    ip link set w0 master br0
    ip link set br0 up
    printf '%x' $((1 << cpu)) >/sys/class/net/v0/queues/rx-0/rps_cpus
}

start_program() {
    local of=net_af_$port a=v0 b=w0 memif=memif:/run/memif.sock,role=$role${option:+,$option}
    [ "$port" != tap ] || of=net_tap a=t0 b=t1
    program=
    case $side-$port-$back in
    vswitch-*) vswitch && return ;;
    bridge-*) bridge && return ;;
    linerate-memif-macswap) start program "$cpu" "$(ours macswap)" "$memif" ;;
    linerate-memif-sink)
        start program "$cpu" "$linerate" forward "$memif" sink:,blind --quiet --for 1h
        ;;
    testpmd-memif-*) testpmd program "$cpu" "${back/sink/rxonly}" "$(memif_device "$role")" ;;
    linerate-*-send)
        start program "$cpu" "$tested" gen "$port:w0" --size "$size" --tx-batch "$role" --for 1h --quiet
        ;;
    linerate-*)
        start program "$cpu" "$tested" forward "$port:$a" "$port:$b" --quiet --cpu "$cpu"
        ;;
    testpmd-*) testpmd program "$cpu" io "${of}0,iface=$a" "${of}1,iface=$b" ;;
    esac
    program=$!
}

# --- The generator before the program, and the counter behind it.

start_generator() {
    local pace=${rate:+,rate=${rate}pps} before=a0
    generator=
    case $side-$port-$back-$rate in
    *-0) return ;;
    *-memif-macswap-*) testpmd generator "$generator_cpu" flowgen "$(memif_device "$other_role")" ;;
    *-memif-sink-*) testpmd generator "$generator_cpu" txonly "$(memif_device "$other_role")" ;;
    # AF_XDP is offered more than a user's program can send. A bridge has no program that takes it.
    linerate-xdp-- | testpmd-xdp-- | vswitch-xdp--)
        start generator "$generator_cpu" "$lab" lab flood a0 "$size"
        ;;
    *)
        [ "$port" != tap ] || before=t0
        start generator "$generator_cpu" "$linerate" forward "gen:,size=$size$pace" \
            "packet:$before,bypass" --quiet --cpu "$generator_cpu"
        ;;
    esac
    generator=$!
}

# Sets $count to the packets that have passed, and $now to the time in microseconds.
look() {
    local name n told
    if [ "$port" = memif ]; then
        # testpmd tells them once a second: those that it tells next are those of now.
        told=$(grep -ac "$counted" generator.log || true)
        while [ "$(grep -ac "$counted" generator.log || true)" -eq "$told" ]; do
            ! ended generator "$generator" || return 1
            sleep 0.005
        done
        count=$(grep -a "$counted" generator.log | awk '{n = $2} END {print n}')
    else
        # Not /sys, which takes a lock of all interfaces.
        while read -r name _ n _; do
            [ "$name" != "$behind:" ] || count=$n
        done </proc/net/dev
    fi
    now=${EPOCHREALTIME/[.,]/}
}

# Sets $cpu_ns and $waited_ns to what the program's threads had of a CPU, and waited for one; of the
# kernel it is the time of its CPU in soft interrupts, whosever they are.
#
# Source: Documentation/scheduler/sched-stats.rst.
time_of_program() {
    local on waiting task
    cpu_ns=0 waited_ns=0
    if [ -z "$program" ]; then
        # user, nice, system, idle, iowait, irq, and soft interrupts, in ticks of 10 ms.
        read -r _ _ _ _ _ _ _ on _ < <(grep "^cpu$cpu " /proc/stat)
        cpu_ns=$((on * 10000000))
        return
    fi
    for task in /proc/"$program"/task/*/schedstat; do
        # A thread may end between the two.
        read -r on waiting _ <"$task" || continue
        cpu_ns=$((cpu_ns + on)) waited_ns=$((waited_ns + waiting))
    done
}

# Prints the seconds of a window that ends with a second of testpmd's.
whole_seconds() {
    awk "BEGIN {s = int($seconds + 0.5); print (s > 0 ? s : 1)}"
}

packets_come() {
    look && [ "$count" -ge $((first_count + 1000)) ]
}

interface_is_there() {
    ip link set "$1" up 2>/dev/null
}

# Makes the interfaces anew: of a program that was killed an XDP program may be left on them.
make_links() {
    local pair
    for pair in a0:v0 w0:b0; do
        ip link del ${pair%:*} 2>/dev/null || true
        ip link add ${pair%:*} type veth peer name ${pair#*:}
        ip link set ${pair%:*} up
        ip link set ${pair#*:} up
    done
}

behind=b0 counted=RX-packets: other_role=client
[ "$role" = server ] || other_role=server
[ "$back" != sink ] || counted=TX-packets:
[ "$port" != tap ] || behind=t1

# Starts the programs and measures: from $first.. to $now, $count, $cpu_ns and $waited_ns.
attempt() {
    program='' generator='' first_count=0 count=0
    [ "$port" = memif ] || [ "$port" = tap ] || make_links
    # A client of testpmd's connects once, when it starts: the server is first.
    if [ "$port-$role" = memif-client ]; then
        start_generator
        until_true "$patience" test -S memif.sock || return 1
    fi
    start_program
    case $port in
    tap)
        until_true "$patience" interface_is_there t0 || return 1
        until_true "$patience" interface_is_there t1 || return 1
        ;;
    memif) until_true "$patience" test -S memif.sock || return 1 ;;
    esac
    [ -n "$generator" ] || start_generator
    [ -z "$generator" ] || until_true "$patience" packets_come || return 1
    # Queues fill, memory becomes warm; and nothing shows that an idle program is ready.
    sleep 1
    [ -n "$generator" ] || sleep 1
    look || return 1
    time_of_program
    first_count=$count first_ns=$cpu_ns first_waited_ns=$waited_ns first=$now
    if [ "$port" = memif ]; then
        # What testpmd tells next is of a whole second.
        sleep "$(($(whole_seconds) - 1)).5"
    else
        sleep "$seconds"
    fi
    look || return 1
    time_of_program
    ! ended program "$program" && ! ended generator "$generator"
}

# Started under load, testpmd's net_af_xdp now and then forwards nothing, and on a busy machine one
# with a memif ends: then they are started anew, and that is counted. Other programs have one start.
starts=1 patience=30 most=1
case $side$port in
testpmd* | *memif) most=6 patience=10 ;;
esac
until attempt; do
    [ $starts -lt $most ] || fail "$side: no packets were measured in $starts starts"
    starts=$((starts + 1))
    end_programs
    rm -f memif.sock
done

microseconds=$((now - first))
# A window that became longer by more than a twentieth was held up; testpmd's ends with a second. The
# clock was set back in a window that is too short; of testpmd's, the first line may be read 20 ms late.
longest=$(awk "BEGIN {print int(1e6 * $seconds * 1.05)}") held_up=null
shortest=$(awk "BEGIN {print int(1e6 * $seconds)}")
if [ "$port" = memif ]; then
    longest=$((longest + 1000000))
    shortest=$(($(whole_seconds) * 1000000 - 20000))
fi
[ $microseconds -le "$longest" ] || held_up="\"held up: it took $microseconds us\""
[ $microseconds -ge "$shortest" ] || held_up="\"too short: it took $microseconds us\""
cpu_ns=$((cpu_ns - first_ns)) waited_ns=$((waited_ns - first_waited_ns))
[ -n "$program" ] || waited_ns=null

end_programs
echo "{\"packets\": $((count - first_count)), \"ns\": $((microseconds * 1000)), \"cpu_ns\": $cpu_ns," \
    "\"waited_ns\": $waited_ns, \"starts\": $starts, \"held_up\": $held_up}"
