//! Runs every example to its end, and checks that its ledger balances with nothing in flight.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

use linerate::{Batch, Health, Port, Queue, Want, pcap};
use linerate_tests::capture::Folder;
use linerate_tests::netns::Netns;
use linerate_tests::process::{Finished, Process};
use linerate_tests::topology::{EAST, Hosts, WEST};
use linerate_tests::traffic::Session;
use linerate_tests::wait::{SOON, until, until_true};
use linerate_tests::{available, example, or_skip, traffic};

/// An address that no host has: only the example answers for it.
const ECHO: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 9);
const UDP_PORT: u16 = 7777;
/// Bytes sent through the guard.
const BYTES: usize = 16 << 20;
/// Longest time an example may take on a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn packets_in_the_kernels_words_are_freed_on_another_thread() {
    let done = start(example!("compat"), &[]).finish(LONG);
    assert_whole(&done);
    assert!(done.stdout.contains("25600 cloned, 25600 freed by the application"), "{done:?}");
    assert!(done.stdout.contains("created 51200 = sent 0 + consumed 51200"), "{done:?}");
}

#[test]
fn echo_tokio_answers_itself() {
    let done = start(example!("echo_tokio"), &[]).finish(LONG);
    assert_whole(&done);
    assert!(done.stdout.contains("12800 answers, all right"), "{done:?}");
    assert!(done.stdout.contains("created 12800 = sent 0 + consumed 12800"), "{done:?}");
}

#[test]
fn the_generator_reports_its_pace() {
    let done = start(example!("gen"), &[]).finish(LONG);
    assert_whole(&done);
    let (pace, ledger) = done.stdout.split_once('\n').unwrap();
    let (asked, sent) = (number_after(pace, "asked "), number_after(pace, "  sent "));
    assert!(asked >= sent && sent > 0, "{done:?}");
    assert_eq!(asked, sent + number_after(pace, "unsent "), "{done:?}");
    assert_eq!(number_after(ledger, "consumed "), sent, "{done:?}");
}

#[test]
fn the_guard_runs_on_generated_traffic() {
    let done = start(example!("wire"), &["gen:,rate=100kpps,count=5000", "sink:"]).finish(LONG);
    assert_whole(&done);
    // A mirrored packet counts once more as created and as sent.
    assert!(done.stdout.contains("created 5005 = sent 5005"), "{done:?}");
}

#[test]
fn an_argument_that_is_not_utf_8_is_an_error_that_says_so() {
    for program in [
        env!("CARGO_BIN_EXE_balancer"),
        env!("CARGO_BIN_EXE_decap"),
        env!("CARGO_BIN_EXE_dns"),
        example!("echo"),
        example!("echo_mio"),
        example!("echo_tokio"),
        example!("fabric_reader"),
        example!("gen"),
        env!("CARGO_BIN_EXE_macswap"),
        env!("CARGO_BIN_EXE_nat"),
        example!("own_driver"),
        example!("pool"),
        env!("CARGO_BIN_EXE_responder"),
        env!("CARGO_BIN_EXE_smoltcp"),
        env!("CARGO_BIN_EXE_splitter"),
        env!("CARGO_BIN_EXE_vxlan"),
        example!("wire"),
    ] {
        let mut command = command(program, &[]);
        command.arg(OsStr::from_bytes(b"pcap:\xff"));
        let done = Process::start(command, |mut command| command.spawn()).finish(LONG);
        assert!(done.code() != 0 && !done.stderr.contains("panicked"), "{program}: {done:?}");
        let is_ours = program == example!("own_driver"); // the command's own message
        let told =
            is_ours || done.stderr.contains("argument 1 is not UTF-8: pcap:\u{fffd}; rename");
        assert!(told, "{program}: {done:?}");
    }
}

#[test]
fn the_command_forwards_from_a_driver_of_the_programs_own() {
    let done = start(example!("own_driver"), &["forward", "imix:1000", "sink:"]).finish(LONG);
    assert_eq!(done.code(), 0, "{done:?}");
    let ledger = "rx 0 + created 1,000 = tx 1,000 + drop 0 + in flight 0   OK";
    assert!(done.stdout.contains(ledger), "{done:?}");
    let help = start(example!("own_driver"), &["--help"]).finish(LONG).stdout;
    assert!(help.contains("\n  null:[size=60]") && help.contains("\n  imix\n"), "{help}");
    for misspelt in ["imx:1000", "imix:1000,size=9", "imix:many"] {
        let refused = start(example!("own_driver"), &["forward", misspelt, "sink:"]).finish(LONG);
        assert_eq!(refused.code(), 2, "{refused:?}");
    }
    let fine = start(example!("own_driver"), &["doctor", "imix:10"]).finish(LONG);
    assert!(fine.stdout.starts_with("ok    opens: "), "{fine:?}");
}

#[test]
fn the_pool_alone_carries_datagrams_to_another_thread() {
    let pool = start(example!("pool"), &["127.0.0.1:0", "64"]);
    let address = until("its address", SOON, || {
        let said = pool.stderr();
        let line = said.lines().next().filter(|_| said.ends_with('\n'))?;
        Some(line.strip_prefix("listening on ")?.to_owned())
    });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // The last line is longer than a frame's room.
    let lines: Vec<String> = (1..=64).map(|i| format!("{i}{}", "x".repeat(i * i / 2))).collect();
    for line in &lines {
        socket.send_to(line.as_bytes(), &address).unwrap();
    }
    let done = pool.finish(LONG);
    assert_whole(&done);
    let printed: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(printed.len(), 65, "{done:?}");
    for (printed, line) in printed.iter().zip(&lines) {
        assert_eq!(*printed, &line[..line.len().min(1792)]);
    }
    assert!(printed[64].contains("created 64 = sent 0 + consumed 64 + dropped 0"), "{done:?}");
}

/// Another process reads packets of this one: every frame is returned, and no byte is copied.
#[test]
fn fabric_reader_sees_every_packet_without_a_copy() {
    let folder = Folder::new();
    let path = folder.path("fabric.sock");
    let path = path.as_str();
    let reader = start(example!("fabric_reader"), &[path, "3001"]);
    until_true("its socket", SOON, || reader.stderr().contains("waiting at"));
    let port = Port::open(&format!("memif:{path},size=256")).unwrap();
    let pool = port.pool().clone();
    let mut queue = port.into_queues().remove(0);
    until_true("the connection", SOON, || {
        let _ = queue.arm(Want::Frames);
        queue.health() == Health::Up
    });
    let (mut batch, mut bytes) = (Batch::with_capacity(1), 0);
    let mut send = |queue: &mut Queue, number: usize| {
        let datagram = datagram(if number.is_multiple_of(3) { 53 } else { 123 }, number);
        bytes += datagram.len();
        batch.push(queue.local().alloc_copy(&datagram).unwrap()).unwrap();
        while queue.xmit(&mut batch) == 0 {
            assert!(queue.wait_for(Want::Room, Some(LONG)).unwrap(), "no room for {number}");
        }
    };
    (0..3000).for_each(|number| send(&mut queue, number));
    until_true("every frame", SOON, || {
        let _ = queue.arm(Want::Frames);
        pool.ledger().in_flight == 0
    });
    let ledger = pool.ledger();
    assert!(ledger.balanced() && ledger.sent == 3000, "{ledger}");
    assert_eq!(queue.driver_counts().copied_bytes, Some(0));
    send(&mut queue, 3000);
    let done = reader.finish(LONG);
    assert_eq!(done.code(), 0, "{done:?}");
    let said = format!("frames 3001 bytes {bytes} dns 1001 copied out 0 protocol errors 0\n");
    assert!(done.stdout.ends_with(&said), "{done:?}");
    assert!(!std::path::Path::new(path).exists(), "the socket is taken away");
}

/// Returns a datagram to `port`, with a length that depends on `number`.
fn datagram(port: u16, number: usize) -> Vec<u8> {
    let mut bytes = vec![0; 60 + number % 1400];
    bytes[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    bytes[23] = 17;
    bytes[36..38].copy_from_slice(&port.to_be_bytes());
    bytes
}

#[test]
fn usage_and_unknown_devices_are_errors_that_say_what_to_do() {
    let done = start(example!("echo"), &[]).finish(LONG);
    assert!(done.code() == 1 && done.stderr.contains("usage: echo 7777 eth0"), "{done:?}");
    let done = start(example!("echo"), &["7777", "packt:eth0"]).finish(LONG);
    assert!(done.code() == 1 && done.stderr.contains("did you mean packet:eth0"), "{done:?}");
    let done = start(example!("pool"), &[]).finish(LONG);
    assert!(done.code() == 1 && done.stderr.contains("usage: pool"), "{done:?}");
    let done = start(example!("fabric_reader"), &[]).finish(LONG);
    assert!(done.code() == 1 && done.stderr.contains("usage: fabric_reader"), "{done:?}");
    let done = start(example!("fabric_reader"), &["/no/such/directory/x.sock"]).finish(LONG);
    assert!(done.code() == 1 && done.stderr.contains("directory"), "{done:?}");
}

#[test]
fn echo_answers_every_datagram_of_a_kernel_client() {
    for device in ["w0", "packet:w0", "packet:w0,udp=7777"] {
        let hosts = or_skip!(hosts());
        let echo = hosts.middle.start(command(example!("echo"), &["7777", device, "300"]));
        // The program prints the mode that it obtained.
        until_true("the port", SOON, || echo.stderr().ends_with('\n'));
        assert_answered(&hosts.west, ECHO, 300);
        let done = echo.finish(LONG);
        assert_whole(&done);
        assert_eq!(number_after(&done.stdout, "sent "), 300, "{device}: {done:?}");
    }
}

#[test]
fn echo_mio_answers_every_datagram_until_its_input_ends() {
    let hosts = or_skip!(hosts());
    let echo = hosts.middle.start(command(example!("echo_mio"), &["packet:w0"]));
    hosts.wait_for_packet_port("w0");
    assert_answered(&hosts.west, ECHO, 300);
    let done = echo.finish(LONG);
    assert_whole(&done);
    assert_eq!(number_after(&done.stdout, "sent "), 300, "{done:?}");
}

#[test]
fn echo_tokio_answers_every_datagram_of_a_kernel_client() {
    let hosts = or_skip!(hosts());
    let echo = hosts.middle.start(command(example!("echo_tokio"), &["packet:w0", "3s"]));
    hosts.wait_for_packet_port("w0");
    assert_answered(&hosts.west, ECHO, 300);
    let done = echo.finish(LONG);
    assert_whole(&done);
    assert_eq!(number_after(&done.stdout, "sent "), 300, "{done:?}");
}

/// Checks that datagrams from the ports of services get no answer: another echo would answer the
/// answer, and so on for ever.
#[test]
fn echoes_do_not_answer_services() {
    let text = "packet:eth0,udp=7777";
    for (program, args, services) in [
        (example!("echo"), &["7777", text][..], &[UDP_PORT, 7][..]),
        (example!("echo_mio"), &[text], &[UDP_PORT, 7]),
        (example!("echo_tokio"), &[text, "120s"], &[UDP_PORT, 7]),
        (example!("readme"), &[], &[UDP_PORT]),
    ] {
        let hosts = or_skip!(Hosts::new());
        let address = Ipv4Addr::new(10, 7, 0, 5);
        hosts.middle.ip(&format!("addr add {address}/24 dev w0"));
        let echo = hosts.west.start(command(program, args));
        until_true("the port", SOON, || (echo.stdout() + &echo.stderr()).ends_with('\n'));
        for port in services {
            let service = hosts.middle.run(|| UdpSocket::bind((address, *port))).unwrap();
            service.connect((WEST, UDP_PORT)).unwrap();
            service.send(b"an answer").unwrap();
            // Answers keep their order, so the service would have received one before this client.
            assert_answered(&hosts.middle, WEST, 1);
            service.set_nonblocking(true).unwrap();
            let none = service.recv(&mut [0; 64]).expect_err("no answer");
            assert_eq!(none.kind(), ErrorKind::WouldBlock, "{program}, port {port}");
        }
    }
}

/// Runs both echo programs on an interface while a user has an open session.
#[test]
fn echoes_on_xdp_answer_beside_a_session_of_the_kernels() {
    let port = format!("xdp:w0,udp={UDP_PORT}");
    for (program, args) in [
        (example!("echo"), vec!["7777", &port, "300"]),
        (example!("echo_tokio"), vec![&port, "4s"]),
    ] {
        let hosts = or_skip!(hosts());
        let address = Ipv4Addr::new(10, 7, 0, 5);
        hosts.middle.ip(&format!("addr add {address}/24 dev w0"));
        let mut session = Session::open(&hosts.west, &hosts.middle, address);
        let tried = hosts.middle.run(|| Port::open("xdp:w0,write").map(drop));
        or_skip!(available(tried));
        let echo = hosts.middle.start(command(program, &args));
        until_true("the port", SOON, || echo.stderr().ends_with('\n'));
        assert!(echo.stderr().contains("AF_XDP"), "{}", echo.stderr());
        std::thread::scope(|scope| {
            scope.spawn(|| session.chat());
            assert_answered(&hosts.west, ECHO, 300);
        });
        session.chat();
        let done = echo.finish(LONG);
        assert_whole(&done);
        assert_eq!(number_after(&done.stdout, "sent "), 300, "{done:?}");
        // The program received no packet of the session, and no other packet that it did not
        // request.
        assert_eq!(number_after(&done.stdout, "received "), 300, "{done:?}");
        session.chat();
    }
}

#[test]
fn the_guard_joins_two_hosts_and_mirrors() {
    let hosts = or_skip!(Hosts::new());
    let folder = Folder::new();
    let file = folder.path("mirror.pcapng");
    let mirror = format!("pcap:{file}");
    let guard = command(example!("wire"), &["packet:w0", "packet:e0", &mirror, "10s"]);
    let guard = hosts.middle.start(guard);
    hosts.wait_for_packet_port("w0");
    hosts.wait_for_packet_port("e0");
    hosts.wait_until_joined();
    let socket = hosts.east.run(|| UdpSocket::bind((EAST, UDP_PORT))).unwrap();
    // 1200 packets pass in both directions together: at least one is mirrored.
    let answering = std::thread::spawn(move || answer(&socket, 600));
    assert_answered(&hosts.west, EAST, 600);
    answering.join().unwrap();
    // TCP over a veth pair uses superframes: the guard sees only the first frame of a chain.
    traffic::transfer(&hosts.west, &hosts.east, EAST, BYTES);
    let done = guard.finish(LONG);
    assert_whole(&done);
    assert!(!done.stdout.contains("malformed"), "{done:?}");
    let packets = number_after(&done.stdout, "received ");
    assert!(packets < (BYTES / 1448) as u64, "no superframes: {done:?}");
    assert!(!pcap::read_all(&file).unwrap().is_empty(), "{done:?}");
}

/// Creates two hosts; the western one has a neighbour entry for [`ECHO`].
fn hosts() -> Result<Hosts, String> {
    let hosts = Hosts::new()?;
    hosts.west.ip(&format!("neigh add {ECHO} lladdr 02:00:00:00:00:09 dev eth0"));
    Ok(hosts)
}

/// Sends `count` datagrams of all lengths up to the MTU and compares every answer.
fn assert_answered(from: &Netns, to: Ipv4Addr, count: usize) {
    let socket = from.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    socket.connect((to, UDP_PORT)).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut answer = [0; 2048];
    for i in 0..count {
        let question: Vec<u8> = (0..i * 1472 / count).map(|at| (at * 7 + i) as u8).collect();
        socket.send(&question).unwrap();
        let len = socket.recv(&mut answer).unwrap_or_else(|e| panic!("datagram {i}: {e}"));
        assert!(answer[..len] == question, "datagram {i} came back changed");
    }
}

/// Answers `count` datagrams with the same datagram.
fn answer(socket: &UdpSocket, count: usize) {
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut bytes = [0; 2048];
    for _ in 0..count {
        let (len, from) = socket.recv_from(&mut bytes).unwrap();
        socket.send_to(&bytes[..len], from).unwrap();
    }
}

fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

fn start(program: &str, args: &[&str]) -> Process {
    Process::start(command(program, args), |mut command| command.spawn())
}

fn assert_whole(done: &Finished) {
    assert_eq!(done.code(), 0, "{done:?}");
    let ledger = done.stdout.lines().last().unwrap_or_default();
    assert!(ledger.ends_with("+ in flight 0   OK"), "{done:?}");
}

/// Returns the number after the last `name` in `text`.
fn number_after(text: &str, name: &str) -> u64 {
    let (_, rest) = text.rsplit_once(name).unwrap_or_else(|| panic!("no '{name}' in {text}"));
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().unwrap_or_else(|_| panic!("no number behind '{name}' in {text}"))
}
