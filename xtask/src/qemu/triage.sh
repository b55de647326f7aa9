# Which part loses: tests of post 002's matrix, by veth and by e1000, a doorbell for each packet or for 64, with a fault that
# batches switch on planted in the core, in the driver of one device, or nowhere. What is sent again names it: on both devices it
# is the core, on one its driver. What 64 gain over 1 beside each fault, and without one, is printed, too.
# Settings: `seconds` for each test; `tests` (1: TCP, 2: TCP No Delay), their `sizes` and `connections`; the `caps`, 1 first; of
# `lost` packets the fault loses one.

# The packets that the engine's eastern interface says it sent.
counted() {
    # A card's driver counts each two seconds.
    sleep 3
    cat "/sys/class/net/$out/statistics/tx_packets"
}

# Runs one test, and adds its figures to the device's. A test that fails is a wrong result, because the cause is judged by the
# sum of all.
one() {
    delay=-N name='TCP No Delay' status=0
    [ "$test" != 1 ] || delay='' name=TCP
    # shellcheck disable=SC2086
    ip netns exec west timeout 60 iperf3 -c 10.7.0.2 -l "$size" -P "$streams" $delay -t "$seconds" -J >came 2>&1 3>&- ||
        status=$?
    resent=$(number sum_sent retransmits)
    kbytes=$(number sum_received bits_per_second | awk '{ print int($1 / 8000) }')
    if [ "$status" != 0 ] || [ -z "$resent" ] || [ -z "$kbytes" ]; then
        why=$(sed -n 's/.*"error"://p' came) failed=1
        echo "guest: wrong $row|$name, $size bytes, $streams, $device|iperf3 ended with status $status${why:+: $why}"
        return
    fi
    again=$((again + resent)) rate=$((rate + kbytes))
    echo "guest: cell $row|$name, $size bytes, $streams|$device kB/s|$kbytes"
    echo "guest: cell $row|$name, $size bytes, $streams|$device again|$resent"
}

# Runs the tests through a device with a cap; `again` is what was sent again.
tested() {
    part=none
    [ "$fault" != core ] || part=core
    [ "$fault" != "driver of $device" ] || part=driver
    before=$(counted)
    planted packet:w0 "packet:$out" "$cap" "$part" "$lost" <hold >own 2>own.err &
    pid=$!
    exec 3>hold
    soon opened 2
    ip -n west neigh flush dev eth0
    soon ip netns exec west ping -c 1 -W 1 10.7.0.2 >/dev/null
    row="fault: $fault|cap $cap"
    again=0 rate=0 failed=
    for test in $(echo "$tests" | tr , ' '); do
        for streams in $(echo "$connections" | tr , ' '); do
            for size in $(echo "$sizes" | tr , ' '); do
                one
            done
        done
    done
    exec 3>&-
    wait "$pid" || echo "guest: wrong planted|$(cat own own.err | tr '\n' ' ')"
    read -r _ received _ dropped _ said <own
    # A sum without one of its tests is compared with none.
    [ -z "$failed" ] || rate=
    [ -z "$rate" ] || echo "guest: cell $row|$device kB/s|$rate"
    [ "$cap" != 1 ] || eval "org_$device=$rate"
    eval "org=\${org_$device:-}"
    [ "$cap" = 1 ] || [ -z "$rate" ] || [ -z "$org" ] || echo "guest: cell $row|$device gain %|$(awk "BEGIN { printf \"%.1f\", $org ? 100 * ($rate / $org - 1) : 0 }")"
    echo "guest: cell $row|$device again|$again"
    echo "guest: cell $row|$device core lost|$dropped"
    echo "guest: cell $row|$device driver lost|$((said - $(counted) + before))"
    echo "guest: received $received by $device"
}

host west 10.7.0.1 w0
host east 10.7.0.2 e0
host far 10.7.0.2 '' 0
nic_of 1
card=$nic
ip link set "$card" up
ip netns exec east iperf3 -s -D
ip netns exec far iperf3 -s -D
mkfifo hold
for fault in 'driver of e1000' core none 'driver of veth'; do
    for cap in $(echo "$caps" | tr , ' '); do
        device=veth out=e0
        tested
        on_veth=$again
        device=e1000 out=$card
        tested
        case $((on_veth > 10)),$((again > 10)) in
            0,0) cause=none ;;
            1,1) cause=core ;;
            1,0) cause='driver of veth' ;;
            0,1) cause='driver of e1000' ;;
        esac
        echo "guest: cell fault: $fault|cap $cap|cause|$cause"
        # Without batches there is no fault.
        expected=$fault
        [ "$cap" != 1 ] || expected=none
        [ "$cause" = "$expected" ] || echo "guest: wrong cause with a cap of $cap|$cause was found, $expected was planted"
    done
done
echo "guest: done 0"
poweroff -f
