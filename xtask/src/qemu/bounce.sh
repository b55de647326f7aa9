#!/bin/sh
# The first process of a guest with four i82559: a TCP stream into each, with affinity or without. The words of the
# kernel's command line that it does not know are our settings: side, path, warm,
# count, kallsyms.
export PATH=/bin
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
while read -r module; do
    insmod "/modules/$module" || echo "guest: no $module"
    # What it used to start is freed behind its back, and decides where the next one lies.
    sleep 1
done </etc/modules
ip link set lo up
# As in 2.4.17, which never let a buffer grow: what is received and not yet read stays little.
echo '4096 87380 87380' >/proc/sys/net/ipv4/tcp_rmem
echo 0 >/proc/sys/net/ipv4/tcp_moderate_rcvbuf
# The marks of a process that has ended stay in its page.
for i in 0 1 2 3; do
    nic=$(basename "$(dirname "$(grep -l "02:00:00:00:03:0$i" /sys/class/net/*/address)")")
    ip link set "$nic" up
    end=$nic
    if [ "${path:-}" = linerate ]; then
        # Between the adapter and the kernel's TCP, which has the other end of a tap.
        end=t$i
        [ "$side" = both ] && cpu="--cpu $i" || cpu=
        # shellcheck disable=SC2086
        linerate forward "packet:$nic" "tap:$end,up" $cpu >/dev/null 2>"/tmp/linerate.$i" &
        tries=600
        until [ -d "/sys/class/net/$end" ] || [ "$tries" = 0 ]; do
            tries=$((tries - 1))
            usleep 50000
        done
        [ "$tries" -gt 0 ] || cat "/tmp/linerate.$i"
    fi
    ip addr add "10.0.$((i + 2)).15/24" dev "$end"
    eval "irq$i=$(cat "/sys/class/net/$nic/device/irq")"
done
echo "guest: irqs $irq0 $irq1 $irq2 $irq3"
grep -w e100_rx_alloc_skb /proc/kallsyms | sed 's/^/guest: address /'

if [ "$side" = kallsyms ]; then
    grep ' [tTwW] ' /proc/kallsyms | nc 10.0.2.2 "$kallsyms"
else
    case $side in
    both)
        for i in 0 1 2 3; do
            [ "$i" = 0 ] || lines-load receive "500$i" 0 0 "$i" &
        done
        chief=0
        step=0
        ;;
    none)
        for i in 1 2 3; do
            lines-load receive "500$i" 0 0 &
        done
        chief=
        step=1
        ;;
    esac
    # The lines of this process are in the counts, so both sides have it. A step of 0 binds.
    lines-load rotate 20 "$step" "$irq0" "$irq1" "$irq2" "$irq3" &
    # shellcheck disable=SC2086
    lines-load receive 5000 "$warm" "$count" $chief &
    chief=$!
    until [ "$(grep -c ' 0A ' /proc/net/tcp)" = 4 ]; do usleep 20000; done
    echo "guest: ready"
    wait "$chief"
    echo "guest: counted $?"
    grep e100 /proc/interrupts | sed 's/^/guest: interrupts /'
fi
echo "guest: done 0"
poweroff -f
