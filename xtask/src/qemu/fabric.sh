# Post 000's path on an e1000, the NIC family of its time: card, linerate, memif, a reader in another process that verifies each
# byte; with an allocator or frames, by hot list and by ring. Settings: `count` of packets, and `rate`, how many a second.

# A figure of a document by its key, the first that stands there.
figure() {
    grep -o "\"$2\":[0-9.]*" "$1" | head -1 | cut -d: -f2
}

nic_of 1
sender=$nic
nic_of 0
for card in "$sender" "$nic"; do
    sysctl -qw "net.ipv6.conf.$card.disable_ipv6=1"
    ip link set "$card" up
done
sleep 3
for buffers in general frames; do
    for hot in 0 128 1024; do
        for ring in 256 1024; do
            rm -f fabric
            linerate forward memif:/tmp/fabric,role=server sink: --json >reader 2>reader.err &
            reader=$!
            soon test -S fabric
            begun 0 "xdp:$nic,all,ring=$ring" memif:/tmp/fabric --buffers $buffers --hot-list $hot --pool
            sleep 2
            linerate gen "packet:$sender" --count "$count" --rate "${rate}pps" --size 1514 --json >gen 2>gen.err
            sleep 1
            ended
            kill $reader
            wait $reader
            cat own.err reader.err gen.err
            name="$buffers|hot list $hot|ring $ring"
            per=$(figure own cpu_ns_per_packet)
            echo "guest: cell $name|CPU instructions/packet|$(awk "BEGIN { print int(${per:-0} / 4) }")"
            echo "guest: cell $name|right in the reader|$(sed -n 's/.*"verify":{[^{}]*"packets":\([0-9]*\).*/\1/p' reader)"
            echo "guest: cell $name|ring full|$(figure own missed_ring_full_packets)"
            echo "guest: cell $name|no CPU in time|$(figure own missed_no_cpu_packets)"
            echo "guest: cell $name|no buffer|$(figure own missed_no_frame_packets)"
            echo "guest: cell $name|locks/packet|$(figure own taken_per_packet | cut -c1-6)"
            echo "guest: cell $name|memory KiB|$(($(figure own memory_bytes) / 1024))"
        done
    done
done
echo "guest: done 0"
poweroff -f
