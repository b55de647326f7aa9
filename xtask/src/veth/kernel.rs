//! The generator inside the kernel: copies of one frame sent out of an interface without a socket,
//! a system call or an sk_buff for each, so that what is measured is never the generator.
//!
//! It runs in a process of its own, which is this program once more: a call lasts for seconds, and
//! only a process can be killed in the middle of one.

use std::process::Command;

use anyhow::{Context, Result};
use linerate_sys::bpf::{Insn, Program, Reg, XDP_TX};
use linerate_sys::netif::Interface;
use linerate_sys::thread;

use crate::veth::programs::GENERATOR_CPU;

/// The interface that it sends from.
pub const INTERFACE: &str = "a0";
/// First argument that makes this program the generator.
pub const WORD: &str = "kernel-generator";

/// Frames of one call, which ends with a pause of some 10 ms: it should be rare.
const CALL_FRAMES: u32 = 1 << 25;
/// As a driver's NAPI takes them.
const BATCH_FRAMES: u32 = 64;
/// A frame without its checksum, the shortest that Ethernet has.
const FRAME_BYTES: usize = 60;

/// This program, to be the generator.
pub fn command() -> Command {
    // The program that runs, also if another was built in its place meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.args(["veth", WORD]);
    command
}

/// Sends until it is killed.
pub fn send() -> Result<()> {
    thread::pin_to_cpu(GENERATOR_CPU)?;
    let program = Program::load(&[Insn::set(Reg::R0, XDP_TX), Insn::exit()], false)?;
    let index = Interface::open(INTERFACE)?.index();
    let frame = frame();
    loop {
        program
            .run_live(index, &frame, CALL_FRAMES, BATCH_FRAMES)
            .context("cannot send live frames, which takes Linux 5.18: BPF_PROG_TEST_RUN")?;
    }
}

/// UDP from 10.0.0.1:1000 to 10.0.0.2:9, which discards, with zeroes in it.
fn frame() -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    let head = [
        &[0x02, 0, 0, 0, 0, 0x02][..],                     // to
        &[0x02, 0, 0, 0, 0, 0x01],                         // from
        &[0x08, 0x00],                                     // IPv4
        &[0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0x66, 0xbc], // 46 bytes, UDP
        &[10, 0, 0, 1, 10, 0, 0, 2],                       // from, to
        &[0x03, 0xe8, 0, 9, 0, 26],                        // 26 bytes, no checksum
    ];
    for (to, from) in frame.iter_mut().zip(head.into_iter().flatten()) {
        *to = *from;
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_a_packet_whose_checksum_is_right() {
        let frame = frame();
        let sum: u32 =
            frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(usize::from(frame[17]), FRAME_BYTES - 14);
        assert_eq!(usize::from(frame[39]), FRAME_BYTES - 14 - 20);
    }
}
