# Compiles the program in MBENCH_SOURCE for this machine, once, and runs it: CPUS CASE BURSTS REPS.
# It has anonymous huge pages of its own and no devices.
set -e
flags="$(pkg-config --cflags libdpdk) -march=native" # pkg-config names a CPU too; the last one counts
libs=$(pkg-config --libs libdpdk)
folder=${TMPDIR:-/tmp}/linerate-peers-$(id -u)
mkdir -p -m 700 "$folder"
if [ -L "$folder" ] || [ ! -O "$folder" ]; then
    echo "$folder is not this user's own: set TMPDIR" >&2
    exit 1
fi
program=$folder/mbench-$(printf %s "$MBENCH_SOURCE$flags$libs" | cksum | tr -d ' ')
if [ ! -x "$program" ]; then
    printf %s "$MBENCH_SOURCE" >"$program.c"
    cc -O3 $flags "$program.c" -o "$program.$$" $libs
    mv "$program.$$" "$program" # in one step: another process may be looking for it
fi
exec "$program" -l "$1" --in-memory --no-pci --no-telemetry -- "$2" "$3" "$4"
