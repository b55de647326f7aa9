# How many packets a card's interrupt brings: two e1000, of which the second can hold its interrupts, and a virtio; a third
# e1000 sends. Settings: `loads`, packets a second, and `count`, how many.

packets() {
    cat "/sys/class/net/$nic/statistics/rx_packets"
}

irqs() {
    awk -v action="$action" '$NF == action { n += $2 } END { print n + 0 }' /proc/interrupts
}

bound() {
    netstat -lnu | grep -q ':7777 '
}

# Has the kernel send `count` datagrams at `rate`, one at a time.
send() {
    for word in "count $count" "delay $((1000000000 / rate))" 'pkt_size 1514' "dst 10.8.$card.1" "src_min 10.8.$card.2" \
        "src_max 10.8.$card.2" "dst_mac $(cat "/sys/class/net/$nic/address")" 'udp_dst_min 7777' 'udp_dst_max 7777'; do
        echo "$word" >"/proc/net/pktgen/$sender"
    done
    echo start >/proc/net/pktgen/pgctrl
    grep -q '^Result: OK' "/proc/net/pktgen/$sender" || cat "/proc/net/pktgen/$sender"
    # What the card holds back comes within this time.
    usleep 20000
}

# Returns true if a comparison of two figures is true.
is() {
    awk "BEGIN { exit !($1 $2 $3) }"
}

# Fails, and sets `limit`, if the card that can hold its interrupts holds them too little, or holds them though it is told
# not to. Counts in `judged` the windows that it judges.
held_as_told() {
    case "$what,$setting,$reader,$rate" in
    'e1000, mitigation on,rx-usecs 0,kernel,10000')
        judged=$((judged + 1)) limit='at most 3'
        is "$per" '<=' 3
        ;;
    'e1000, mitigation on,rx-usecs 1000,kernel,10000')
        judged=$((judged + 1)) limit='at least 5'
        is "$per" '>=' 5
        ;;
    esac
}

# One load, with a reader behind it.
window() {
    name="linerate, $reader"
    case $reader in
    kernel)
        name='a socket'
        lines-load datagrams 7777 &
        pid=$!
        soon bound
        ;;
    *)
        begun 1 "packet:$nic,udp=7777" sink:blind --moderation "$reader"
        ;;
    esac
    before=$(packets)
    fired=$(irqs)
    "$@" &
    beside=$!
    send
    wait "$beside"
    came=$(($(packets) - before))
    fired=$(($(irqs) - fired))
    case $reader in kernel) kill "$pid" ;; *) ended ;; esac
    lost=
    where="$what, $setting, $name, $rate/s"
    if [ "$came" -lt "$count" ]; then
        lost=" ($((count - came)) lost)"
        echo "guest: wrong $where|$came of $count packets came"
    fi
    if [ "$fired" -gt 0 ]; then
        per=$(awk "BEGIN { printf \"%.1f\", $came / $fired }")
        held_as_told || echo "guest: wrong $where|$per packets an irq, and not $limit"
    else
        # A virtio card that defers its interrupts can do without; an e1000 cannot, so its irqs were not found.
        per='no irq'
        case $what in e1000*) echo "guest: wrong $where|no irq was counted for $came packets" ;; esac
    fi
    echo "guest: cell $what|$setting|$name|$rate/s|$per$lost"
    [ "$reader" = kernel ] && return
    per=$(sed -n 's/.*"packets_per_irq":\([0-9]*[.][0-9]\).*/\1/p' own)
    echo "guest: cell $what|$setting|  its wake-ups, $reader|$rate/s|$per"
}

# All readers and loads.
windows() {
    for reader in kernel napi adaptive; do
        for rate in $rates; do
            window true
        done
    done
}

# A setting of ethtool's, or why there is none.
coalesce() {
    setting=$*
    # shellcheck disable=SC2048,SC2086
    if why=$(ethtool -C "$nic" $* 2>&1); then
        windows
    else
        echo "guest: n/a $what, $setting|$why"
    fi
}

toggle() {
    for usecs in 0 1000 0 1000 0 1000 0 1000; do
        ethtool -C "$nic" rx-usecs "$usecs"
        usleep 20000
    done
}

take() {
    card=$1 what=$2
    nic_of "$card" || { echo "guest: n/a $what|no driver"; return 1; }
    action=$nic
    ip addr add "10.8.$1.1/24" dev "$nic"
    ip link set "$nic" up
    sleep 2
}

# shellcheck disable=SC2154
rates=$(echo "$loads" | tr , ' ')
judged=0
nic_of 3
sender=$nic
ip link set "$sender" up
echo "add_device $sender" >/proc/net/pktgen/kpktgend_0
take 0 'e1000, mitigation off' && coalesce rx-usecs 1000
if take 1 'e1000, mitigation on'; then
    for usecs in 0 1000; do coalesce rx-usecs "$usecs"; done
    reader=napi rate=${rates##* } setting='rx-usecs 0 <-> 1000'
    window toggle
fi
if take 2 virtio-net; then
    action=$(basename "$(readlink "/sys/class/net/$nic/device")")-input.0
    coalesce rx-usecs 250
    coalesce tx-frames 1
    setting='defer 2 irqs, 1 ms'
    echo 2 >"/sys/class/net/$nic/napi_defer_hard_irqs"
    echo 1000000 >"/sys/class/net/$nic/gro_flush_timeout"
    windows
fi
if [ "$judged" -lt 2 ]; then
    echo "guest: n/a the limits of packets an irq|$judged of 2 windows were judged: they are of 10000/s into a socket, by e1000 with mitigation"
fi
echo "guest: done 0"
poweroff -f
