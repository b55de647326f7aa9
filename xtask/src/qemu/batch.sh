# Post 002's matrix on a second type of device: TCP from a host through linerate to another, by veth and by e1000, a doorbell
# for each packet (org) or for 64 (new), with the post's queues and sysctls. Setting: `seconds`, for each test.

# The five settings of the post; the first three are the machine's, the others a namespace's.
settings() {
    for word in core/rmem_max=4194304 core/wmem_max=4194304 core/netdev_max_backlog=120000; do
        applied '' "$word"
    done
    for place in west east; do
        applied $place 'ipv4/tcp_wmem=4096 524288 4194304'
        applied $place 'ipv4/tcp_rmem=4096 1048576 4194304'
    done
}

# Sets a sysctl in a host, or on this machine, and says what it is then. Another value is a wrong result.
applied() {
    within="${1:+ip netns exec $1}" file=/proc/sys/net/${2%%=*}
    $within sh -c "echo '${2#*=}' >$file" 2>/dev/null
    is=$($within cat "$file" 2>/dev/null | tr '\t' ' ')
    case $is in
        "${2#*=}") is="$is, as in the post" ;;
        '') echo "guest: n/a ${2%%=*}|it is not there ${1:+in $1}" ;;
        *) echo "guest: wrong ${2%%=*}|it is $is ${1:+in $1}" ;;
    esac
    echo "guest: set ${1:-machine} ${2%%=*} $is"
}

# Sets the queues of $1's card to $2 descriptors; `queues_are` compares, and says why the card refused.
queues() {
    of=$1 length=$2
    shift 2
    "$@" rx "$length" tx "$length" >"why-$of" 2>&1
}

# Says how long the queues of $1's card are, which should be $2. Another length is a wrong result.
queues_are() {
    of=$1 length=$2
    shift 2
    why=$(tr '\n' ' ' <"why-$of")
    for way in RX TX; do
        is=$("$@" | sed -n "/Current/,\$s/^$way:[[:space:]]*//p")
        case $is in
            "$length") ;;
            '') echo "guest: n/a $way queue of the $of|its length is not shown${why:+: $why}" ;;
            *) echo "guest: wrong $way queue of the $of|$is descriptors, and not $length${why:+: $why}" ;;
        esac
        echo "guest: set queue of the $of $way $is"
    done
}

# The matrix with one cap.
matrix() {
    for size in 32 128 512 4096; do
        for streams in 1 8 16; do
            status=0
            # shellcheck disable=SC2086
            ip netns exec west timeout 60 iperf3 -c 10.7.0.2 -l "$size" -P "$streams" -t "$seconds" $delay -J >came 2>&1 ||
                status=$?
            rate=$(number sum_received bits_per_second)
            if [ "$status" != 0 ] || [ -z "$rate" ]; then
                why=$(sed -n 's/.*"error"://p' came)
                echo "guest: n/a $test, size $size, connections $streams, $device $side|iperf3 ended with status $status${why:+: $why}"
                continue
            fi
            echo "guest: cell $test|size $size|connections $streams|$device $side kB/s|$(awk "BEGIN { print int($rate / 8000) }")"
            again=$(number sum_sent retransmits)
            echo "guest: cell $test|size $size|connections $streams|$device $side again|$again"
            [ $side = org ] && org_again=$((org_again + ${again:-0})) || new_again=$((new_again + ${again:-0}))
        done
    done
}

# The same through a device.
through() {
    org_again=0 new_again=0
    for cap in 1 64; do
        [ $cap = 1 ] && side=org || side=new
        begun 2 packet:w0 "packet:$out,tx_batch=$cap"
        soon ip netns exec west ping -c 1 -W 1 10.7.0.2 >/dev/null
        for test in TCP 'TCP No Delay'; do
            delay=
            [ "$test" = TCP ] || delay=-N
            matrix
        done
        ended
        # The receiver's counters of drops and errors, under the table.
        sed "s/^/guest: text softnet_stat of the machine, $device $side: /" /proc/net/softnet_stat
        ip netns exec east cat /proc/net/dev | sed -n "s/^ *eth0/guest: text receiver, $device $side: eth0/p"
    done
    # S2.32, with room for chance: a loss that batches cause sends thousands again.
    [ $new_again -le $((2 * org_again + 100)) ] ||
        echo "guest: wrong segments sent again by $device: $new_again with batches, $org_again without"
}

host west 10.7.0.1 w0
device=veth out=e0
host east 10.7.0.2 e0
settings
ip netns exec east iperf3 -s &
server=$!
through
kill "$server"
wait "$server"
ip link delete e0
ip netns delete east
device=e1000
host east 10.7.0.2 '' 0
nic_of 1
out=$nic
# The post's client has 512, its server 4096.
queues engine 512 ethtool -G "$out"
queues receiver 4096 ip netns exec east ethtool -G eth0
ip link set "$out" up
queues_are engine 512 ethtool -g "$out"
queues_are receiver 4096 ip netns exec east ethtool -g eth0
applied east 'ipv4/tcp_wmem=4096 524288 4194304'
applied east 'ipv4/tcp_rmem=4096 1048576 4194304'
sleep 3
ip netns exec east iperf3 -s &
through
echo "guest: done 0"
poweroff -f
