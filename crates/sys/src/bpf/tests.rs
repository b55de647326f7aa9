use std::time::Duration;

use super::*;
use crate::netif::Interface;
use linerate_testing::{in_netns, ip};

/// `return XDP_PASS`
const PASS: [Insn; 2] = [Insn::set(Reg::R0, XDP_PASS), Insn::exit()];

/// Returns true, with a message, if the kernel refuses maps and programs to this process, or has
/// none. The verifier's EACCES, which no missing privilege causes, is no reason.
fn skipped(error: &Error) -> bool {
    let is_refused = crate::xdp::is_refused(&error.why);
    let errnos = ["Operation not permitted", "Function not implemented"];
    let skip = is_refused && errnos.iter().any(|errno| error.why.contains(errno));
    if skip {
        eprintln!("skipped: {error}");
    }
    skip
}

/// Returns true if this kernel is older than Linux `major`.`minor`.
fn is_before(version: (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>());
    let mut number = || numbers.next().unwrap().unwrap();
    (number(), number()) < version
}

#[test]
fn instructions_are_those_of_the_standard() {
    let bytes = |insn: Insn| -> [u8; 8] {
        // SAFETY: eight bytes without padding.
        unsafe { std::mem::transmute(insn) }
    };
    // As `llvm-objdump` of clang's output has them.
    assert_eq!(bytes(Insn::copy(Reg::R6, Reg::R1)), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes(Insn::set(Reg::R0, 2)), [0xb7, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(bytes(Insn::exit()), [0x95, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes(Insn::call(51)), [0x85, 0, 0, 0, 51, 0, 0, 0]);
    assert_eq!(bytes(Insn::add(Reg::R4, 14)), [0x07, 0x04, 0, 0, 14, 0, 0, 0]);
    let load = Insn::load(Size::Half, Reg::R5, Reg::R2, 12);
    assert_eq!(bytes(load), [0x69, 0x25, 12, 0, 0, 0, 0, 0]);
    let load = Insn::load(Size::Byte, Reg::R0, Reg::R7, 0);
    assert_eq!(bytes(load), [0x71, 0x70, 0, 0, 0, 0, 0, 0]);
    let jump = Insn::jump_if_reg(If::Above, Reg::R4, Reg::R3).to(5);
    assert_eq!(bytes(jump), [0x2d, 0x34, 5, 0, 0, 0, 0, 0]);
    let jump = Insn::jump_if(If::Differs, Reg::R5, 17).to(-1);
    assert_eq!(bytes(jump), [0x55, 0x05, 0xff, 0xff, 17, 0, 0, 0]);
    assert_eq!(bytes(Insn::and(Reg::R0, 15)), [0x54, 0, 0, 0, 15, 0, 0, 0]);
    assert_eq!(bytes(Insn::shift_left(Reg::R0, 2)), [0x67, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(bytes(Insn::load_map(Reg::R1, 7)[0]), [0x18, 0x11, 0, 0, 7, 0, 0, 0]);
}

#[test]
fn a_program_is_attached_as_long_as_its_link_lives() {
    in_netns(|| {
        ip("link add v0 type veth peer name v1");
        let program = match Program::load(&PASS, true) {
            Ok(program) => program,
            Err(e) if skipped(&e) => return,
            Err(e) => panic!("{e}"),
        };
        let v0 = Interface::open("v0").unwrap();
        for (mode, word) in [(Mode::Native, " xdp "), (Mode::Generic, " xdpgeneric ")] {
            let link = program.attach(v0.index(), mode).unwrap();
            assert!(ip("link show v0").contains(word), "{}", ip("link show v0"));
            let second = program.attach(v0.index(), mode).unwrap_err();
            assert!(matches!(second, Errno::BUSY | Errno::EXIST), "{second}");
            drop(link);
            // A child of another test has a copy of the descriptor until it runs its program.
            let gone = || !ip("link show v0").contains("xdp");
            let tried = std::iter::repeat_with(gone).take(200).find(|gone| {
                std::thread::sleep(Duration::from_millis(if *gone { 0 } else { 5 }));
                *gone
            });
            assert!(tried.is_some(), "{}", ip("link show v0"));
        }
        assert_eq!(program.attach(4_000_000, Mode::Native).unwrap_err(), Errno::INVAL);
    });
}

#[test]
fn refused_program_is_reported_in_the_verifiers_words() {
    let unset = [Insn::copy(Reg::R0, Reg::R3), Insn::exit()];
    match Program::load(&unset, false).unwrap_err() {
        e if skipped(&e) => {}
        e => assert!(e.why.contains("R3 !read_ok"), "{e}"),
    }
}

#[test]
fn load_that_a_signal_interrupts_is_repeated_up_to_a_limit() {
    let load_with = |interruptions: usize| {
        let mut calls = 0;
        let loaded = uninterrupted(|| {
            calls += 1;
            if calls <= interruptions { Err(Errno::AGAIN) } else { Ok(7) }
        });
        (loaded, calls)
    };
    assert_eq!(load_with(0), (Ok(7), 1));
    assert_eq!(load_with(4), (Ok(7), 5));
    assert_eq!(load_with(5), (Err(Errno::AGAIN), 5));
    let mut calls = 0;
    let refused: rustix::io::Result<()> = uninterrupted(|| {
        calls += 1;
        Err(Errno::ACCESS)
    });
    assert_eq!((refused, calls), (Err(Errno::ACCESS), 1));
}

#[test]
fn last_line_of_a_log_is_reported_only_if_the_log_has_its_end() {
    let whole = b"0: (bf) r0 = r3\nR3 !read_ok\nprocessed 1 insns\n\0\0";
    let cut = b"0: (bf) r0 = r1\n1: (bf) r0 =\0";
    let why = |log: &[u8], is_cut| load_refused(Errno::ACCESS, log, is_cut).why;
    for is_cut in [false, true] {
        assert!(why(whole, is_cut).ends_with("the verifier says: R3 !read_ok"));
    }
    assert!(why(cut, false).ends_with("says: 1: (bf) r0 ="));
    let e = load_refused(Errno::ACCESS, cut, true);
    assert!(e.code == Code::System && !e.why.contains("verifier"), "{e}");
    assert_eq!(load_refused(Errno::ACCESS, b"\0", false).code, Code::Permission);
}

#[test]
fn a_map_takes_sockets_and_nothing_else() {
    let map = match SocketMap::new(4) {
        Ok(map) => map,
        Err(e) if skipped(&e) => return,
        Err(e) => panic!("{e}"),
    };
    let socket = crate::xdp::XdpSocket::new().unwrap();
    map.insert(0, socket.as_fd()).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(map.insert(0, file.as_fd()).is_err());
    assert!(map.insert(9, socket.as_fd()).unwrap_err().why.contains("BPF_MAP_UPDATE_ELEM"));
}

#[test]
fn live_frames_leave_by_the_interface_that_they_seem_to_come_by() {
    in_netns(|| {
        ip("link add v0 type veth peer name v1");
        let load = |said| Program::load(&[Insn::set(Reg::R0, said), Insn::exit()], true);
        let (send, pass) = match (load(XDP_TX), load(XDP_PASS)) {
            (Ok(send), Ok(pass)) => (send, pass),
            (Err(e), _) | (_, Err(e)) if skipped(&e) => return,
            (Err(e), _) | (_, Err(e)) => panic!("{e}"),
        };
        let (v0, v1) = (Interface::open("v0").unwrap(), Interface::open("v1").unwrap());
        // A veth takes frames of programs if its peer has one.
        let _link = pass.attach(v1.index(), Mode::Native).unwrap();
        v0.set_up().unwrap();
        v1.set_up().unwrap();
        linerate_testing::wait_running("v0");
        let mut frame = [0; 60];
        // EtherType of local experiments: the stack has no use for it.
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        match send.run_live(v0.index(), &frame, 128, 64) {
            Err(Errno::INVAL) if is_before((5, 18)) => {
                return eprintln!("skipped: live frames take Linux 5.18");
            }
            sent => sent.unwrap(),
        }
        let received = || {
            let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let line = text.lines().find_map(|line| line.trim().strip_prefix("v1:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while received() < 128 {
            assert!(std::time::Instant::now() < deadline, "{} of 128 frames", received());
            std::thread::yield_now();
        }
        let runt = send.run_live(v0.index(), &frame[..13], 1, 1).unwrap_err();
        assert_eq!(runt, Errno::INVAL);
        assert!(send.run_live(4_000_000, &frame, 1, 1).is_err());
    });
}
