# How long a ping takes beside a bulk stream through 10 Mbit/s: by linerate's fifo and fq_codel, and by the kernel's own in
# the same place. Settings: `pings`, 20 ms apart, and `limit`, packets of each fifo.

# Pings, and says which round trip 99, 50 of 100 are below.
pinged() {
    ip netns exec west ping -c "$pings" -i 0.02 -W 5 10.7.0.2 >answers
    sed -n 's/.*time=\([0-9.]*\) ms/\1/p' answers | sort -n >times
    n=$(wc -l <times)
    echo "guest: cell $what|p50 ms|$(sed -n "$(((n + 1) / 2))p" times)"
    echo "guest: cell $what|p99 ms|$(sed -n "$(((n * 99 + 99) / 100))p" times)"
    echo "guest: cell $what|answered|$n of $pings"
}

# The same beside streams.
measured() {
    ip netns exec west timeout 100 iperf3 -c 10.7.0.2 -P 8 -t $((pings / 50 + 4)) >bulk 2>&1 &
    bulk=$!
    # The streams find their rate.
    sleep 2
    pinged
    wait "$bulk"
    echo "guest: cell $what|Mbit/s|$(awk '/SUM.*receiver/ { print $6 }' bulk)"
}

host west 10.7.0.1 w0
host east 10.7.0.2 e0
ip netns exec east iperf3 -s -D
for qdisc in "fifo,limit=$limit" fq_codel; do
    what="linerate, $qdisc"
    begun 2 packet:w0 "packet:e0,shape=10Mbit,qdisc=$qdisc"
    measured
    ended
done
what='linerate, no stream beside'
begun 2 packet:w0 packet:e0
pinged
ended
ip link add name b0 type bridge
for end in w0 e0; do ip link set $end master b0; done
ip link set b0 up
tc qdisc add dev e0 root handle 1: tbf rate 10mbit burst 66kb latency 10s
for qdisc in "pfifo limit $limit" fq_codel; do
    what="the kernel, $qdisc"
    # shellcheck disable=SC2086
    tc qdisc replace dev e0 parent 1:1 handle 10: $qdisc
    sleep 1
    measured
    tc -s qdisc show dev e0 | sed 's/^/guest: qdisc /'
    tc qdisc del dev e0 parent 1:1
done
echo "guest: done 0"
poweroff -f
