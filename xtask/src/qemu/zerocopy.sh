# The conformance suite over AF_XDP in zero-copy mode on two igb that a cable joins, and numbered packets through linerate
# between two more, from a packet socket to another. Setting: `count`.

# Whether cards have a link, which they are without for seconds when their rings are made anew.
linked() {
    for card; do [ "$(cat "/sys/class/net/$card/carrier")" = 1 ] || return; done
}

# A number of the sink's document, by its key.
verified() {
    sed -n "s/.*\"verify\":{[^{}]*\"$1\":\([0-9]*\).*/\1/p" sink
}

for card in 0 1 2 3 4 5; do
    nic_of $card || { echo "guest: n/a igb|this kernel has no driver"; continue; }
    ip link set "$nic" name "z$card"
    sysctl -qw "net.ipv6.conf.z$card.disable_ipv6=1"
    # The packets are for no station: a port makes its card promiscuous.
    ip link set "z$card" up
done
# Set after a run between two igb ended well. Without one, this kernel may lack zero-copy, and no result is wrong.
works=
soon linked z0 z1 z2 z3 z4 z5
# A frame has 256 bytes of headroom, and an igb writes whole KiB of what is left: 1 of a frame of 2048.
timeout 20 linerate forward xdp:z2,all,mode=zerocopy xdp:z3,all,mode=zerocopy 2>&1 | sed 's/^/guest: n\/a frames of 2048|/'
frame=4096
for size in 60 1514; do
    linerate forward packet:z5 sink: --json >sink 2>sink.err &
    sink=$!
    soon opened 1
    begun 0 xdp:z2,all,mode=zerocopy,ring=256 xdp:z3,all,mode=zerocopy,ring=256 --frame-size $frame
    sleep 5
    soon linked z2 z3
    linerate gen packet:z4 --count "$count" --rate 2kpps --size $size --json >gen 2>gen.err
    sleep 1
    balanced=
    ended && works=yes balanced=yes
    kill $sink
    wait $sink
    cat gen.err own.err sink.err
    what="packets of $size, frames of $frame"
    mode=$(sed 's/.*"driver":"xdp","mode":"AF_XDP \([^",]*\).*/\1/' own | head -1)
    echo "guest: cell $what|mode|$mode"
    sent=$(sed -n 's/.*"ledger":{[^{}]*"sent":\([0-9]*\).*/\1/p' gen)
    echo "guest: cell $what|sent|$sent"
    for word in packets lost corrupted; do
        echo "guest: cell $what|$word|$(verified $word)"
    done
    [ -z "$balanced" ] || [ "$(verified packets),$(verified corrupted)" = "$sent,0" ] ||
        echo "guest: wrong $what|of $sent packets, $(verified packets) arrived, $(verified corrupted) corrupted"
    # Of both ports.
    copied=$(grep -o '"driver":"xdp".*"copied_bytes":[0-9]*' own | grep -o '"copied_bytes":[0-9][0-9]*' | head -2 |
        awk -F: '{ bytes += $2 } END { print bytes }')
    echo "guest: cell $what|copied bytes|$copied"
    [ -z "$balanced" ] || [ "$copied" = 0 ] || echo "guest: wrong $what|$copied bytes copied"
    case $balanced,$mode in
    ,* | *zero-copy*) ;;
    *) echo "guest: wrong $what|the mode is $mode" ;;
    esac
done
what=conformance
for card in z0 z1; do ip link set $card mtu 1000; done
sleep 5
soon linked z0 z1
LINERATE_TEST_CARDS=z0,z1 RUST_TEST_THREADS=1 timeout 600 /tests/linerate_port zero_copy_xdp_sockets --show-output 2>&1 | tee suite
echo "guest: cell $what|passed|$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' suite)"
echo "guest: cell $what|failed|$(sed -n 's/^test result: .* \([0-9]*\) failed.*/\1/p' suite)"
echo "guest: cell $what|did not apply|$(grep -c 'does not apply' suite)"
[ -z "$works" ] || grep -q '^test result: ok. [1-9]' suite || echo "guest: wrong $what|$(grep '^test result' suite || echo 'it did not end')"
echo "guest: done 0"
poweroff -f
