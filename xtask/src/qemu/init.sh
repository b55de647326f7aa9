#!/bin/sh
# The first process of a guest: runs every test program, then every scenario, says on the console
# how each ended, and turns the machine off.
export PATH=/bin HOME=/tmp TMPDIR=/tmp RUST_BACKTRACE=0 RUST_TEST_THREADS=1 RUST_TEST_NOCAPTURE=1
export LINERATE_PROGRAM=/bin/linerate
# Properties are tried elsewhere, many times as fast: here it is the kernel that differs.
export PROPTEST_CASES=8 LINERATE_TEST_KILLS=5

/bin/busybox mount -t devtmpfs dev /dev
# Whatever is no program of its own is a tool of busybox.
/bin/busybox --install -s /bin 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup &&
    echo '+memory +cpuset' >/sys/fs/cgroup/cgroup.subtree_control
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd
while read -r module; do
    insmod "/modules/$module" || echo "guest: no $module"
done </etc/modules
ip link set lo up
. /etc/settings

failed=0
if [ -n "$write" ]; then
    echo "${write#*=}" >"${write%%=*}"
    # The kernel may refuse a setting, or take a part of it.
    [ "$(cat "${write%%=*}")" = "${write#*=}" ] || { echo "guest: not set: $write"; failed=1; }
fi

# Runs a program within its limit and says how it ended.
within() {
    name=$1
    shift
    echo "guest: begin $name"
    timeout "$limit" "$@"
    status=$?
    [ "$status" -eq 0 ] || failed=1
    printf '\nguest: end %s %s\n' "$name" "$status"
}

for name in $tests; do
    within "$name" "/tests/$name" $filter
done
# By name: what busybox runs as `sh` is its own shell, which would prefer its own `ip` and `tc`.
[ -z "$scenarios" ] || within scenarios dash /etc/scenarios $scenarios

echo "guest: done $failed"
# The debug port ends the emulator with a status; where there is no /dev/port, the power goes off.
[ -c /dev/port ] && printf "\\00$failed" | dd of=/dev/port bs=1 seek=244 count=1 2>/dev/null
poweroff -f
