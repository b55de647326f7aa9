//! A packet generator in the kernel: sends copies of one frame without a socket, a system call or
//! an sk_buff for each, so that it is never the limit of what AF_XDP receives.
//!
//! It is a process of its own, because a call lasts for seconds: only a process can be killed in
//! the middle of one. The script `forward.sh` starts it on a CPU.

use linerate_sys::bpf::{Insn, Program, Reg, XDP_TX};
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::HostUse;

use crate::{Code, Error, Result};

/// Frames of one call; calls should be few, because each ends with a pause of some 10 ms.
const CALL_FRAMES: u32 = 1 << 25;
/// Number of frames that the kernel sends in one batch, as a driver's NAPI would receive them.
const BATCH_FRAMES: u32 = 64;

const WHAT: &str = "cannot send live frames";

/// Sends frames of `size` bytes out of `interface` until the process is killed: the kernel acts as
/// if the interface had received each frame and sent it back. Only a veth whose peer has an XDP
/// program accepts such frames.
///
/// # Errors
/// `E-EXPERIMENT` for a size that no frame has, and for an interface that the host itself uses;
/// `E-SYSTEM` without the privilege, the interface, or Linux 5.18.
pub fn send(interface: &str, size: usize) -> Result<()> {
    let frame = frame(size)?;
    let refused = |e| {
        Error::os(Code::System, WHAT, "BPF_PROG_TEST_RUN", e).fix("it takes Linux 5.18, and root")
    };
    let program = Program::load(&[Insn::set(Reg::R0, XDP_TX), Insn::exit()], false)?;
    let interface = Interface::open(interface)?;
    if let Some(used) = HostUse::of(&interface)? {
        let why = format!("the host itself uses the interface ({used})");
        return Err(Error::new(Code::Experiment, WHAT, why));
    }
    let index = interface.index();
    loop {
        program.run_live(index, &frame, CALL_FRAMES, BATCH_FRAMES).map_err(refused)?;
    }
}

/// Returns a UDP frame of zeros from 10.0.0.1:1000 to 10.0.0.2:9, the discard service.
fn frame(size: usize) -> Result<Vec<u8>> {
    if !(60..=1514).contains(&size) {
        let why = format!("a frame has 60 to 1514 bytes, not {size}");
        return Err(Error::new(Code::Experiment, WHAT, why));
    }
    let [ip_bytes, udp_bytes] = [14, 34].map(|before| (size - before) as u16);
    let mut ip = [0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip[2..4].copy_from_slice(&ip_bytes.to_be_bytes());
    let checksum = !linerate_wire::checksum::sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let udp = [[0x03, 0xe8], [0, 9], udp_bytes.to_be_bytes(), [0, 0]].concat();
    let to_and_from = [0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0x00];
    let mut frame = [&to_and_from[..], &ip, &udp].concat();
    frame.resize(size, 0);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_a_packet_whose_checksum_and_lengths_are_right() {
        for size in [60, 1514] {
            let frame = frame(size).unwrap();
            assert_eq!(linerate_wire::checksum::sum(&frame[14..34]), 0xffff);
            let length = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
            assert_eq!((frame.len(), length(16), length(38)), (size, size - 14, size - 34));
        }
        assert!(frame(59).is_err() && frame(1515).is_err());
    }
}
