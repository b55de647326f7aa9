# Three pairs of e1000 that cables join, for an experiment whose packets come by a device. Each side and the control take a pair.
# The guest has two CPUs.
cards=
for pair in '0 1' '2 3' '4 5'; do
    nic_of "${pair% *}"
    sender=$nic
    nic_of "${pair#* }"
    for card in "$sender" "$nic"; do
        sysctl -qw "net.ipv6.conf.$card.disable_ipv6=1"
        # The card must not be the ring that overruns.
        ethtool -G "$card" rx 4096
        ip link set "$card" up
    done
    cards="$cards${cards:+, }\"$sender,$nic\""
done
sleep 3
# shellcheck disable=SC2034
cpu=0,1 more="s/^path = .device.*/&\ncards = [$cards]/; s/^device = .*/device = \"pairs of e1000 in a guest; then memory shared with another process\"/; s/^The device is a veth pair and AF_XDP/The device is an e1000 and AF_XDP/"
