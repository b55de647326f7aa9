# Post 000's path on an e1000, the NIC family of its time: card, linerate, memif, a reader in another process that verifies each
# byte; with malloc's memory or frames, copied or in place, by hot list and by ring. Settings: `count` of packets, `rate`, how many
# a second, and `bursts`, how many at once.

# A figure of a document by its key, the first that stands there.
figure() {
    grep -o "\"$2\":[0-9.]*" "$1" | head -1 | cut -d: -f2
}

# A number of the reader's document, by its key.
verified() {
    sed -n "s/.*\"verify\":{[^{}]*\"$1\":\([0-9]*\).*/\1/p" reader
}

# Packets that found no free descriptor of the card.
missed() {
    ethtool -S "$nic" | awk '$1 == "rx_missed_errors:" { print $2 }'
}

nic_of 1
sender=$nic
nic_of 0
for card in "$sender" "$nic"; do
    sysctl -qw "net.ipv6.conf.$card.disable_ipv6=1"
    # The packets are for no station: each port makes its card promiscuous.
    ip link set "$card" up
done
sleep 3
for path in malloc copies in-place xdp; do
    # An allocator's memory can neither be registered with the kernel nor shared: packets are copied in and out.
    case $path in
    malloc) buffers=general port=packet:$nic out=,zerocopy=no ;;
    copies) buffers=frames port=packet:$nic out=,zerocopy=no ;;
    in-place) buffers=frames port=packet:$nic out= ;;
    xdp) buffers=frames port=xdp:$nic,all out= ;;
    esac
    for ring in 256 1024; do
        ethtool -G "$nic" rx $ring
        sleep 3
        # A packet port's ring is in bytes: room for as many packets of 2 KiB.
        case $port in packet:*) size=$((ring / 512))MiB; [ $ring = 256 ] && size=512KiB ;; *) size=$ring ;; esac
        for hot in 0 128 1024; do
            for burst in $(echo "$bursts" | tr , ' '); do
                rm -f fabric
                linerate forward memif:/tmp/fabric,role=server sink: --json >reader 2>reader.err &
                reader=$!
                soon test -S fabric
                begun 0 "$port,ring=$size" "memif:/tmp/fabric$out" --buffers $buffers --hot-list $hot --pool
                sleep 2
                before=$(missed)
                linerate gen "packet:$sender" --count "$count" --rate "${rate}pps" --burst "$burst" --size 1514 --json >gen 2>gen.err
                sleep 1
                balanced=
                ended && balanced=yes
                kill $reader
                wait $reader
                cat own.err reader.err gen.err
                name="$path|ring $ring|hot list $hot|bursts of $burst"
                per=$(figure own cpu_ns_per_packet)
                bytes=$(figure own memory_bytes)
                echo "guest: cell $name|instructions/packet|${per%.*}"
                echo "guest: cell $name|% of CPU|$(awk "BEGIN { printf \"%.1f\", ${per:-0} * $rate / 1e7 }")"
                by_card=$(($(missed) - before))
                echo "guest: cell $name|right at reader|$(verified packets)"
                echo "guest: cell $name|missed by card|$by_card"
                # Of the first port: in all, and those of an xdp port by their cause.
                echo "guest: cell $name|missed by port|$(figure own missed)"
                echo "guest: cell $name|ring full|$(figure own missed_ring_full_packets)"
                echo "guest: cell $name|no CPU|$(figure own missed_no_cpu_packets)"
                echo "guest: cell $name|no buffer|$(figure own missed_no_frame_packets)"
                dropped=$(sed -n 's/.*"dropped":{\([^}]*\)}.*/\1/p' own | tr -d '"')
                echo "guest: cell $name|dropped|$dropped"
                echo "guest: cell $name|locks/packet|$(figure own taken_per_packet | cut -c1-6)"
                echo "guest: cell $name|memory KiB|$((${bytes:-0} / 1024))"
                # A run that this kernel refuses is n/a. Of the others, each packet is right at the reader or lost by a cause.
                [ -n "$balanced" ] || continue
                right=$(verified packets)
                by_port=$(figure own missed)
                known=$((${right:-0} + by_card + ${by_port:-0}))
                for reason in $(echo "$dropped" | tr , ' '); do known=$((known + ${reason##*:})); done
                [ $known = "$count" ] || echo "guest: wrong $name|of $count packets, $known are right at the reader or lost by a cause"
                [ "$(verified corrupted)" = 0 ] || echo "guest: wrong $name|$(verified corrupted) corrupted"
            done
        done
    done
done
echo "guest: done 0"
poweroff -f
