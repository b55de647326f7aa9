//! One run of QEMU, with the messages of its guest.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

use crate::qemu::{BOOT_LIMIT, TABLE_LIMIT};

/// The variable that selects another emulator.
pub const OWN_QEMU: &str = "LINERATE_QEMU";

/// The emulator's program.
pub const QEMU: &str = "qemu-system-x86_64";

/// A machine with only the devices that the tests use. It never uses KVM, so that the result of a
/// test does not depend on the host's CPU.
const MACHINE: &str = "-accel tcg -cpu max -m 1024 -M q35 -nodefaults \
    -no-user-config -display none -monitor none -serial stdio -no-reboot \
    -device isa-debug-exit,iobase=0xf4,iosize=0x04";

/// Three pairs of cards, each connected by a cable, and one card with RSS: the guest identifies
/// them by MAC address. The first card of the third pair sends with a delay of four seconds.
const CARDS: &str = "-netdev hubport,id=v0,hubid=0 -netdev hubport,id=v1,hubid=0 \
    -netdev hubport,id=e0,hubid=1 -netdev hubport,id=e1,hubid=1 \
    -netdev hubport,id=r0,hubid=2 \
    -netdev hubport,id=s0,hubid=3 -netdev hubport,id=s1,hubid=3 \
    -device virtio-net-pci,netdev=v0,mac=02:00:00:00:01:00,romfile= \
    -device virtio-net-pci,netdev=v1,mac=02:00:00:00:01:01,romfile= \
    -device virtio-net-pci,netdev=r0,rss=on,mac=02:00:00:00:03:00,romfile= \
    -device virtio-net-pci,netdev=s0,tx=timer,x-txtimer=4000000000,mac=02:00:00:00:04:00,romfile= \
    -device virtio-net-pci,netdev=s1,mac=02:00:00:00:04:01,romfile= \
    -device e1000,netdev=e0,mac=02:00:00:00:02:00,romfile= \
    -device e1000,netdev=e1,mac=02:00:00:00:02:01,romfile=";

/// A card with two queues, and one that a bridge of this machine joins it to: only a tap gives a
/// card of QEMU more than one queue. Bridge and taps are in a network namespace of QEMU's own.
const TWO_QUEUES: &str = "-netdev tap,id=q0,ifname=q0,queues=2,script=no,downscript=no,vhost=off \
    -netdev tap,id=q1,ifname=q1,script=no,downscript=no,vhost=off \
    -device virtio-net-pci,netdev=q0,mq=on,vectors=6,mac=02:00:00:00:05:00,romfile= \
    -device virtio-net-pci,netdev=q1,mac=02:00:00:00:05:01,romfile=";
/// Creates that namespace's bridge and taps, which send nothing by themselves.
const BRIDGE: &str = "\
    { [ ! -e /proc/sys/net/ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; } && \
    ip link add b0 type bridge mcast_snooping 0 && ip link set b0 up && \
    ip tuntap add q0 mode tap multi_queue && ip link set q0 up master b0 && \
    ip tuntap add q1 mode tap && ip link set q1 up master b0";

/// Number of CPUs, and the kernel option that starts only one. Guests run at the same time, one for
/// each host CPU. With two CPUs, a kernel 6.12 died once in code that it rewrites while XDP
/// programs are attached and detached. The second CPU is offline until a scenario enables it.
const CPUS: (&str, &str) = ("2", "maxcpus=1");

/// Kernel options. Mitigations of speculation are off, because they cost time and nothing else
/// shares the guest.
const KERNEL_OPTIONS: &str = "console=ttyS0 panic=-1 loglevel=4 mitigations=off";

/// Returns the command that boots `image` with the root file system `root`.
pub fn command(image: &Path, root: &Path) -> Command {
    let mut command = bare(image, root, CPUS.1, BOOT_LIMIT);
    command.args(["-smp", CPUS.0]);
    command.args(CARDS.split_whitespace());
    if !can_bridge() {
        return command;
    }
    command.args(TWO_QUEUES.split_whitespace());
    let mut bridged = Command::new("unshare");
    bridged.args(["--net", "sh", "-c", &format!("{BRIDGE} && exec \"$0\" \"$@\"")]);
    bridged.arg(command.get_program()).args(command.get_args());
    bridged
}

/// Returns true if this process may create a network namespace with a bridge and taps.
fn can_bridge() -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "sh", "-c", BRIDGE]).stdout(Stdio::null()).stderr(Stdio::null());
    unshare.status().is_ok_and(|status| status.success())
}

/// Returns the command that boots a guest that prints a table, with additional kernel options.
pub fn table(image: &Path, root: &Path, words: &str) -> Command {
    bare(image, root, words, TABLE_LIMIT)
}

/// Returns the command that boots a guest without cards.
fn bare(image: &Path, root: &Path, words: &str, limit: &str) -> Command {
    let mut command = within(limit);
    command.args(MACHINE.split_whitespace());
    command
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(root)
        .args(["-append", &format!("{KERNEL_OPTIONS} {words}")]);
    command
}

/// Returns the QEMU command with the time limit of a guest.
pub fn within_limit() -> Command {
    within(BOOT_LIMIT)
}

fn within(limit: &str) -> Command {
    let mut command = Command::new("timeout");
    let program = std::env::var_os(OWN_QEMU).unwrap_or_else(|| QEMU.into());
    // Keep QEMU in our process group, so that Ctrl-C interrupts QEMU as well.
    command.args(["--foreground", "--kill-after=5s", limit]).arg(program);
    command
}

/// Runs the guest to its end; passes each line of its console to `log` and to `seen`.
pub fn run(mut command: Command, log: &Path, mut seen: impl FnMut(&str)) -> Result<ExitStatus> {
    let mut log = File::create(log).with_context(|| format!("{}", log.display()))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?);
    let mut child = command.spawn().context("cannot start QEMU")?;
    let mut console = BufReader::new(child.stdout.take().context("QEMU has no console")?);
    let mut line = Vec::new();
    while console.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        writeln!(log, "{text}")?;
        seen(text);
        line.clear();
    }
    Ok(child.wait()?)
}
