#!/bin/sh
# Scenarios of real devices, called by their names; what they print is what test programs print.
#
#   west            middle              east
#  10.7.0.1 eth0 ── w0    e0 ── eth0 10.7.0.2
#                    linerate
#
# Nothing but linerate joins w0 and e0, and no host asks for the other's address: every packet that
# crosses is one that a scenario sent. A file NAME.json is the document that a run ended with, and
# NAME.err what else it said.

readonly west=10.7.0.1 east=10.7.0.2
readonly second_cpu=/sys/devices/system/cpu/cpu1/online

# --- Scenarios: a function each, which fails by its first command that does.

scenario_netem_delay() {
    hosts_by_veth
    tc -n west qdisc add dev eth0 root netem delay 20ms
    join
    pings 20 56
    equal "$received" 20 'answers'
    round_trip_ms=$(sed -n 's/^rtt [^=]*= \([0-9]*\).*/\1/p' ping)
    [ "$round_trip_ms" -ge 20 ] || fail "a round trip of $round_trip_ms ms, delayed by 20"
    part
    equal "$(number forward ledger sent)" 40 'packets that crossed'
}

scenario_netem_loss() {
    hosts_by_veth
    tc -n west qdisc add dev eth0 root netem loss 20%
    join
    pings 100 56
    lost=$(dropped west)
    [ "$lost" -gt 0 ] || fail 'netem lost nothing'
    equal "$((received + lost))" 100 'answers and losses'
    part
    equal "$(number forward ledger sent)" "$((2 * received))" 'packets that crossed'
}

scenario_netem_loss_of_numbered_packets() {
    numbered 'loss 10%'
    lost=$(dropped west)
    [ "$lost" -gt 0 ] || fail 'netem lost nothing'
    part
    # A loss behind the last packet that came is one that nobody can see.
    equal "$(number sink verify packets)" "$((2000 - lost))" 'packets at the end'
    equal "$(number forward ledger sent)" "$((2000 - lost))" 'packets that crossed'
    [ "$(missed)" -le "$lost" ] || fail 'more were missed than were lost'
    equal "$(number sink verify corrupted)" 0 'corrupted'
}

scenario_netem_reorder() {
    numbered 'delay 10ms reorder 25%'
    part
    equal "$(number sink verify packets)" 2000 'packets at the end'
    equal "$(missed)" 0 'missed'
    equal "$(number sink verify corrupted)" 0 'corrupted'
    [ "$(number sink verify reordered)" -gt 0 ] || fail 'nothing was reordered'
}

scenario_virtio_net() {
    across_cards virtio_net 02:00:00:00:01
}

scenario_e1000() {
    across_cards e1000 02:00:00:00:02
}

# A card divides its packets otherwise while a port is open that asks for it, and as before afterwards.
scenario_rss() {
    [ -d /sys/module/virtio_net ] || { echo 'skipped: this kernel has no virtio_net'; return; }
    namespaces
    place 02:00:00:00:03:00 middle w0
    ip -n middle link set w0 up
    divided >before
    grep -q 'toeplitz: on' before
    symmetric before && fail 'its key is symmetric already'
    start rss middle forward xdp:w0,all,rss=symmetric sink:
    soon is_symmetric
    soon works
    part
    grep -q 'by RSS (Toeplitz, 128 entries, symmetric key)' rss.json || fail 'not said'
    divided >after
    cmp before after
    # Of somebody who changes it meanwhile the change stays.
    start rss middle forward xdp:w0,all,rss=symmetric sink:
    soon is_symmetric
    soon works
    ip netns exec middle ethtool -X w0 hkey "$(printf '11:%.0s' $(seq 39))11"
    part
    divided >before
    grep -q '^11:11:11:' before
    # A killed run leaves it changed, until doctor restores it.
    start rss middle forward xdp:w0,all,rss=symmetric sink:
    soon is_symmetric
    soon works
    kill -KILL "${running##*:}"
    wait "${running##*:}" || true
    running=
    is_symmetric
    ip netns exec middle linerate doctor --undo >undo.err
    grep -q 'w0: its RSS table is the former one' undo.err || fail 'not restored'
    divided >after
    cmp before after
}

# Ports of two devices of Soft-RoCE: the suite, and numbered packets between two processes.
scenario_verbs() {
    [ -d /sys/module/rdma_rxe ] || { echo 'skipped: this kernel has no rdma_rxe'; return; }
    [ -e /usr/lib/x86_64-linux-gnu/libibverbs.so.1 ] || { echo 'skipped: without libibverbs'; return; }
    [ -x /tests/linerate_port ] || { echo 'skipped: without tests of ports: --only verbs'; return; }
    soft_roce
    /tests/linerate_port verbs::tests::devices >suite.err 2>&1 || fail 'the suite'
    grep -q 'skipped' suite.err && fail 'a part of the suite did not run'
    grep -q '^test result: ok. [1-9]' suite.err || fail 'no test of the suite ran'
    grep '^test result' suite.err
    for mode in ',datagrams' ''; do
        verbs_sink
        verbs_gen 100000 20kpps
        sleep 1
        part
        equal "$(number sink verify corrupted)" 0 'corrupted'
        equal "$(number sink verify reordered)" 0 'reordered'
        came=$(number sink verify packets)
        # A datagram for which the receiver has no request is lost.
        [ -n "$mode" ] || equal "$came" 100000 'packets by connections'
        [ "$came" -ge 50000 ] || fail "only $came datagrams came"
    done
    # A connection sends again what is lost on the way.
    tc qdisc add dev r0 root netem loss 2%
    verbs_sink
    verbs_gen 2000 2kpps
    sleep 1
    part
    tc qdisc del dev r0 root
    equal "$(number sink verify packets)" 2000 'packets in spite of losses'
    # A peer that is killed is left, and its place taken by the next that listens.
    verbs_sink
    linerate forward gen:rate=1kpps,size=200 "$(verbs_peer)" --json >gen.json 2>gen.err &
    sender=$!
    sleep 2
    kill -KILL "${running##*:}"
    wait "${running##*:}" || true
    verbs_sink --count 2000 --for 30s
    sink=${running##*:}
    running=" sink:$sink gen:$sender"
    wait "$sink" || fail 'the second peer'
    running=" gen:$sender"
    part
    [ "$(number sink verify packets)" -ge 500 ] || fail 'too little came to the second peer'
    # Queues take their completions on two CPUs at once.
    [ -e $second_cpu ] || { echo 'skipped: this kernel brings no CPU on line'; return; }
    echo 1 >$second_cpu
    /tests/linerate_port --nocapture --exact \
        verbs::tests::devices::several_queues_of_devices_work_on_threads_of_their_own_while_peers_come_and_go \
        >both.err 2>&1 || fail 'queues on two CPUs'
    grep -q '^test result: ok. 1 passed' both.err || fail 'it did not run'
    grep 'on 2 CPUs' both.err || fail 'it did not run on both'
    echo 0 >$second_cpu
}

verbs_sink() {
    linerate forward "verbs:rxe1,listen=127.0.0.1,peers=2,rx=4096,tx=4096$mode" sink: --json "$@" >sink.json 2>sink.err &
    running=" sink:$!"
    soon listens_at 127.0.0.1:7471
    soon works
}

# Sends $1 numbered packets at the rate $2.
verbs_gen() {
    linerate forward "gen:rate=$2,count=$1,size=200" "$(verbs_peer)" --json >gen.json 2>gen.err || fail 'gen'
}

# The port that connects to the sink.
verbs_peer() {
    echo "verbs:rxe0,connect=127.0.0.1,rx=512,tx=512$mode"
}

# A card reads packets where they lie, seconds after the socket that sent them was closed.
scenario_xdp_close_on_virtio_net() {
    [ -d /sys/module/virtio_net ] || { echo 'skipped: this kernel has no virtio_net'; return; }
    [ -x /tests/linerate_port ] || { echo 'skipped: without tests of AF_XDP: --only xdp'; return; }
    namespaces
    place 02:00:00:00:04:00 middle s0
    place 02:00:00:00:04:01 middle s1
    ip -n middle link set s0 up
    ip -n middle link set s1 up
    LINERATE_TEST_SLOW_CARDS='s0 s1' ip netns exec middle /tests/linerate_port --exact \
        xdp::tests::slow::frames_of_a_closed_queue_leave_a_card_as_they_were >card.err 2>&1 ||
        fail 'the frames were reused, or did not come'
    grep -q '^test result: ok. 1 passed' card.err || fail 'it did not run'
    ! grep -q skipped: card.err || fail 'it was skipped'
}

# A second CPU comes: a card's interrupts fire where they are moved, and come back. It goes off line under a worker,
# which goes on elsewhere and says so.
scenario_two_cpus() {
    [ -d /sys/module/virtio_net ] || { echo 'skipped: this kernel has no virtio_net'; return; }
    [ -e $second_cpu ] || { echo 'skipped: this kernel brings no CPU on line'; return; }
    on_two_cpus 02:00:00:00:01
    irqs_move w0/$west
    # Notes are for readers, and not beside a document.
    linerate forward gen:,rate=100pps sink: -q --cpu 1 >off.txt 2>off.err &
    running=" off:$!"
    soon pinned 1
    echo 0 >$second_cpu
    ! pinned 1 || fail 'it is where no CPU is'
    # Some dozens of its packets.
    sleep 1
    kill -TERM "${running##*:}" || fail 'it ended when its CPU went'
    status=0
    wait "${running##*:}" || status=$?
    running=
    # Of one that lost a packet, or whose ledger does not balance, it is another.
    equal "$status" 143 'exit status of a run whose CPU went'
    grep -q 'warning: a worker pinned to CPU 1 runs on CPU 0: CPU 1 is offline' off.err ||
        fail 'it did not say where it runs'
}

# A card with two queues: each queue's interrupts move alone, a worker on each CPU has one of them, and no flow is reordered.
scenario_two_queues() {
    grep -qs 02:00:00:00:05:00 /sys/class/net/*/address || { echo 'skipped: QEMU got no bridge and taps, which take root, /dev/net/tun, ip and unshare'; return; }
    [ -e $second_cpu ] || { echo 'skipped: this kernel brings no CPU on line'; return; }
    on_two_cpus 02:00:00:00:05
    ip netns exec middle ethtool -L w0 combined 2
    irqs_move w0/$west
    equal "$(grep -c ' alone on CPU 1' irqs.err)" 2 'queues whose irqs moved alone'
    # The card's counter knows every packet, so nobody asks for an address any more.
    ip -n west neigh replace "$east" lladdr "$(ip netns exec middle cat /sys/class/net/w0/address)" nud permanent dev eth0
    ip -n middle link add e0 numrxqueues 2 numtxqueues 2 type veth peer name eth0 netns east
    ip -n middle link set e0 up
    ip -n east link set eth0 up
    soon is_up middle e0
    start sink east forward packet:eth0 sink:
    soon opened east 1
    start forward middle forward xdp:w0,all xdp:e0,all --cpu 0,1
    soon works 1
    sleep 1
    before=$(received_by w0)
    ip netns exec west linerate gen packet:eth0 --to "$east:7777" --flows 16 --count 2000 --rate 1kpps --json >gen.json 2>gen.err
    equal "$(number gen ledger sent)" 2000 'packets sent'
    soon all_came
    sleep 1
    card=$(($(received_by w0) - before))
    part
    echo 0 >$second_cpu
    equal "$(number forward ledger sent)" "$card" 'packets of the card that crossed'
    equal "$(number sink verify packets)" "$card" 'packets at the end'
    equal "$(number sink verify reordered)" 0 'reordered'
    equal "$(number sink verify corrupted)" 0 'corrupted'
    queues=$(sed 's/.*"device":"w0"[^[]*\[[^[]*"queues":\[\([^]]*\)\].*/\1/' forward.json)
    echo "of $card packets: $queues"
    ! echo "$queues" | grep -q '"rx":{"packets":0,' || fail 'a queue received nothing'
}

# The first command shares its memory with a second process, whatever huge pages are free.
scenario_huge_pages() {
    for pages in 0 4 64; do
        echo "$pages" >/proc/sys/vm/nr_hugepages
        first_command "with $pages huge pages"
    done
    echo 0 >/proc/sys/vm/nr_hugepages
}

# The kernel promises no more memory than it has.
scenario_overcommit_never() {
    # Memory of another process is refused then, because a hole in it cannot be filled: the command takes a ring.
    echo 2 >/proc/sys/vm/overcommit_memory
    status=0
    timeout 120 linerate forward --json >forward.json 2>forward.err || status=$?
    echo 0 >/proc/sys/vm/overcommit_memory
    equal "$status" 0 'exit status without overcommitted memory'
    [ "$(number forward verify packets)" -gt 0 ] || fail 'nothing came without overcommitted memory'
    equal "$(number forward verify corrupted)" 0 'corrupted'
}

# The first command in a cgroup, of the second version, of little memory and one CPU.
scenario_cgroup_v2() {
    all=/sys/fs/cgroup
    grep -qw memory $all/cgroup.subtree_control || { echo 'skipped: no cgroup v2'; return; }
    mkdir $all/little
    echo 64M >$all/little/memory.max
    echo 0 >$all/little/cpuset.cpus
    echo 0 >$all/little/cgroup.procs
    first_command 'in a cgroup of 64 MiB and one CPU'
    grep -q '^oom_kill 0$' $all/little/memory.events || fail 'something was killed'
    echo 0 >$all/cgroup.procs
    # What ran in it may be leaving.
    soon rmdir $all/little
}

# The kernel tells time by another clock than the CPU's counter of ticks.
scenario_clock_not_tsc() {
    clocks=/sys/devices/system/clocksource/clocksource0
    read -r before <$clocks/current_clocksource
    tried=
    for clock in hpet acpi_pm; do
        grep -qw "$clock" $clocks/available_clocksource || continue
        echo "$clock" >$clocks/current_clocksource
        equal "$(cat $clocks/current_clocksource)" "$clock" 'clock'
        first_command "by the clock $clock"
        tried=yes
    done
    [ -n "$tried" ] || echo 'skipped: no other clock'
    echo "$before" >$clocks/current_clocksource
}

# --- Helpers.

# Whether what crosses a pair of cards of DRIVER, with addresses that begin so, crosses whole.
across_cards() {
    [ -d "/sys/module/$1" ] || { echo "skipped: this kernel has no $1"; return; }
    namespaces
    place "$2:00" west eth0
    place "$2:01" middle w0
    cable e0 east
    addresses
    join
    for size in 56 1400 8000; do
        pings 10 "$size"
        equal "$received" 10 "answers of $size bytes"
    done
    dd if=/dev/urandom of=sent bs=64k count=16 2>/dev/null
    tcp west east "$east"
    tcp east west "$west"
    part
}

# Brings the second CPU, and joins west and the middle by a pair of cards with addresses that begin so.
on_two_cpus() {
    echo 1 >$second_cpu
    namespaces
    place "$1:00" middle w0
    place "$1:01" west eth0
    ip -n middle addr add "$east/24" dev w0
    ip -n west addr add "$west/24" dev eth0
    ip -n middle link set w0 up
    ip -n west link set eth0 up
    soon is_up middle w0
    soon is_up west eth0
}

# Moves the interrupts of a card in the middle: $1 is its name, and an address reached by it.
irqs_move() {
    moves=affinity::interrupts::tests::the_irqs_of_a_real_device_fire_where_they_were_moved_and_are_put_back
    LINERATE_TEST_IRQ=$1 ip netns exec middle /tests/linerate_ctl --exact $moves \
        >irqs.err 2>&1 || fail 'irqs did not come where they were moved, or were not put back'
    grep -q '^test result: ok. 1 passed' irqs.err || fail 'it did not run'
    ! grep -q skipped: irqs.err || fail 'it was skipped'
}

# How the card w0 divides its packets.
divided() {
    ip netns exec middle ethtool -x w0
}

# How many packets a card in the middle has received, by its driver.
received_by() {
    ip netns exec middle cat "/sys/class/net/$1/statistics/rx_packets"
}

# Whether the card w0 has received what was sent since it had received $before; the bridge before it may drop some.
all_came() {
    [ "$(received_by w0)" -ge $((before + 1900)) ]
}

# Whether the worker of what was started last may run on CPU $1 alone. Threads of other names try the CPU before.
pinned() {
    for thread in /proc/"${running##*:}"/task/*; do
        grep -qsx linerate-0 "$thread/comm" || continue
        grep -qs "^Cpus_allowed_list:[[:space:]]*$1\$" "$thread/status" && return
    done
    return 1
}

symmetric() {
    grep -q '^6d:5a:6d:5a:.*:6d:5a$' "$1"
}

is_symmetric() {
    divided >now && symmetric now
}

# Whether what was started last has its worker $1, the first unless told, and so listens to signals.
works() {
    grep -qs "linerate-${1:-0}" /proc/"${running##*:}"/task/*/comm
}

# Sends the file `sent` by TCP from host $1 to host $2 with the address $3, and compares what came.
tcp() {
    # A listener whose own input ended would end the connection.
    [ -p silence ] || mkfifo silence
    exec 3<>silence
    ip netns exec "$2" timeout 30 nc -l -p 7777 <&3 >came &
    listener=$!
    soon listens "$2"
    ip netns exec "$1" timeout 30 nc "$3" 7777 <sent >/dev/null
    wait "$listener"
    cmp sent came
}

# Sends 2000 numbered packets from west to a verifying sink in the east, through netem as told.
numbered() {
    hosts_by_veth
    # shellcheck disable=SC2086
    tc -n west qdisc add dev eth0 root netem limit 10000 $1
    join
    start sink east forward packet:eth0 sink:
    soon opened east 1
    ip netns exec west linerate gen packet:eth0 --count 2000 --rate 5kpps --json \
        >gen.json 2>gen.err
    equal "$(number gen ledger sent)" 2000 'packets sent'
    soon arrived "$((2000 - $(dropped west)))"
}

hosts_by_veth() {
    namespaces
    cable w0 west
    cable e0 east
    addresses
}

namespaces() {
    for name in west middle east; do
        ip netns add "$name"
        # Interfaces that come up would send solicitations.
        ip netns exec "$name" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 \
            net.ipv6.conf.default.disable_ipv6=1
    done
}

# Two devices of Soft-RoCE on the ends of a veth, in the first namespace, as the driver requires.
soft_roce() {
    ip link add r0 type veth peer name r1
    for end in all r0 r1; do
        sysctl -qw "net.ipv4.conf.$end.accept_local=1" "net.ipv4.conf.$end.rp_filter=0"
    done
    ip addr add 10.8.0.1/24 dev r0
    ip addr add 10.8.0.2/24 dev r1
    ip link set r0 up
    ip link set r1 up
    ip neigh add 10.8.0.2 lladdr "$(cat /sys/class/net/r1/address)" nud permanent dev r0
    ip neigh add 10.8.0.1 lladdr "$(cat /sys/class/net/r0/address)" nud permanent dev r1
    rdma link add rxe0 type rxe netdev r0
    rdma link add rxe1 type rxe netdev r1
    soon active rxe0
    soon active rxe1
}

active() {
    rdma link show "$1/1" | grep -q 'state ACTIVE'
}

listens_at() {
    netstat -lnt | grep -q " $1 "
}

# A veth pair from interface $1 in the middle to a host's eth0.
cable() {
    ip -n middle link add "$1" type veth peer name eth0 netns "$2"
}

# The card with hardware address $1 into a namespace, by a name.
place() {
    file=$(grep -l "$1" /sys/class/net/*/address)
    card=${file%/address}
    ip link set dev "${card##*/}" netns "$2" name "$3"
}

addresses() {
    ip -n west addr add "$west/24" dev eth0
    ip -n east addr add "$east/24" dev eth0
    for place in 'west eth0' 'middle w0' 'middle e0' 'east eth0'; do
        ip -n "${place% *}" link set "${place#* }" up
    done
    for place in 'west eth0' 'middle w0' 'middle e0' 'east eth0'; do
        soon is_up "${place% *}" "${place#* }"
    done
    ip -n west neigh add "$east" lladdr "$(hardware_address east)" nud permanent dev eth0
    ip -n east neigh add "$west" lladdr "$(hardware_address west)" nud permanent dev eth0
}

hardware_address() {
    ip netns exec "$1" cat /sys/class/net/eth0/address
}

# Joins both hosts, and waits until they are.
join() {
    start forward middle forward packet:w0 packet:e0
    soon opened middle 2
}

# Starts linerate in a namespace; stopping it is `part`'s.
start() {
    name=$1
    namespace=$2
    shift 2
    ip netns exec "$namespace" linerate "$@" --json >"$name.json" 2>"$name.err" &
    running="$running $name:$!"
}

# Ends what was started, in this order, each with its ledger balanced and nothing in flight.
part() {
    for run in $running; do
        kill -TERM "${run#*:}"
        status=0
        wait "${run#*:}" || status=$?
        equal "$status" 143 "exit status of ${run%:*}"
        grep -q '"in_flight":0,"balanced":true' "${run%:*}.json" || fail "the balance of ${run%:*}"
    done
    running=
}

# Sends $1 pings of $2 bytes from west to east, and says how many were answered.
pings() {
    ip netns exec west ping -q -c "$1" -s "$2" -i 0.01 -W 2 "$east" >ping || true
    received=$(sed -n 's/.* \([0-9]*\) received.*/\1/p' ping)
}

# A number of the document of a run, by its object and its key.
number() {
    sed -n "s/.*\"$2\":{[^{}]*\"$3\":\([0-9]*\).*/\1/p" "$1.json"
}

# How many numbers the sink missed. One that it misses counts as lost, until it comes, unless that
# is more than 64 packets late: then it is counted as such.
missed() {
    echo "$(($(number sink verify lost) - $(number sink verify late)))"
}

# How many packets the qdisc of a host dropped.
dropped() {
    tc -n "$1" -s qdisc show dev eth0 | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p'
}

is_up() {
    ip -n "$1" -o link show "$2" | grep -q ' state UP '
}

# Whether packet ports are open on so many interfaces of a namespace.
opened() {
    [ "$(ip netns exec "$1" awk '$6 == 1 { print $5 }' /proc/net/packet | sort -u | wc -l)" -ge "$2" ]
}

listens() {
    ip netns exec "$1" netstat -lnt | grep -q ':7777 '
}

# Whether so many packets came to the eastern host.
arrived() {
    [ "$(ip netns exec east cat /sys/class/net/eth0/statistics/rx_packets)" -ge "$1" ]
}

# Runs the first command on a machine that is set up so; under emulation it takes its time.
first_command() {
    timeout 120 linerate forward --json >forward.json 2>forward.err || fail "it did not work $1"
    grep -q '"mode":"memif client, zero copy' forward.json || fail "no memif $1"
    [ "$(number forward verify packets)" -gt 0 ] || fail "nothing came $1"
    equal "$(number forward verify corrupted)" 0 'corrupted'
}

# Waits until a command succeeds, for ten seconds or more.
soon() {
    tries=200
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "it never came true: $*"
        sleep 0.05
    done
}

equal() {
    [ "$1" = "$2" ] || fail "$3: $1, expected $2"
}

# Ends a scenario. A line of a file starts with a mark, because it may look like the result of a test.
fail() {
    echo "$1"
    cat ./*.json ./*.err | sed 's/^/| /'
    echo
    exit 1
}

clean() {
    for run in $running; do
        kill -KILL "${run#*:}" 2>/dev/null || true
    done
    [ ! -e $second_cpu ] || echo 0 >$second_cpu
    ip -all netns delete
    ip link del r0 2>/dev/null || true
    rm -f ./*
}

# --- One after the other.

mkdir -p /tmp/scenario
cd /tmp/scenario || exit 1
passed=0
failed=0
for scenario; do
    printf 'test %s ... ' "$scenario"
    # Not in a condition: a shell that asks for the status in one does not stop at what fails.
    (
        set -eu
        running=
        trap clean EXIT
        "scenario_$scenario"
    )
    if [ "$?" -eq 0 ]; then
        echo ok
        passed=$((passed + 1))
    else
        echo FAILED
        failed=$((failed + 1))
    fi
done
echo "test result: $passed passed; $failed failed;"
[ "$failed" -eq 0 ]
