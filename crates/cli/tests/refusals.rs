//! Errors are printed in four parts, with an exit status for their kind.

mod command;
mod pin;

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use command::{Ended, command, run};

/// Command line, exit status, code, a part of the reason, a part of the remedy.
const REFUSALS: [(&str, i32, &str, &str, &str); 25] = [
    ("forwrd", 2, "E-USAGE", "no command", "linerate forward"),
    ("status", 2, "E-USAGE", "no command", "linerate tune PATH -S"),
    ("forward veth0 null:", 2, "E-PORT-SYNTAX", "there is no driver", "packet:veth0"),
    ("forward packt:veth0 null:", 2, "E-PORT-SYNTAX", "no driver 'packt'", "packet:veth0"),
    ("forward null:,sise=60 null:", 2, "E-PORT-SYNTAX", "no option 'sise'", "size"),
    ("forward gen:,rate=1 sink:", 2, "E-PORT-SYNTAX", "needs a unit", ""),
    ("forward a=gen: a=sink:", 2, "E-TOPOLOGY", "both are named 'a'", ""),
    ("forward a=gen: b=gen:", 2, "E-TOPOLOGY", "only be read", ""),
    ("forward ring:r0 sink:", 2, "E-TOPOLOGY", "1 of the two ends", "ring:r0 to two ports"),
    ("forward xdp: packet:", 2, "E-PORT-SYNTAX", "which interface?", "xdp:IFACE"),
    ("forward pcap:/dev/null sink:", 1, "E-CAPTURE", "it is empty", "program that writes it"),
    ("gen sink: --size imixx", 2, "E-PORT-SYNTAX", "write bytes, or imix", ""),
    ("doctor --try v0 --peer fd00::1", 2, "E-USAGE", "an IPv4 address", "linerate doctor"),
    ("forward --pool-frames 10", 2, "E-POOL-TOO-SMALL", "worker 0 hot list 2048", "frames"),
    ("forward --cpu 1023", 2, "E-CPU", "", "Cpus_allowed_list"),
    ("forward pcap:/nonexistent/in.pcap sink:", 1, "E-FILE", "No such file", ""),
    ("forward gen:,count=1 pcap:/proc/self/fd/1", 1, "E-FILE", "standard output", "pcap:-"),
    ("forward gen:,count=1 pcap:/proc/self/fd/2", 1, "E-FILE", "standard error", "2>"),
    ("forward gen:,size=9000 sink:", 2, "E-PORT-SYNTAX", "holds 1792", "--fit or --jumbo"),
    (
        "forward gen:,size=9000 sink: --jumbo 0",
        2,
        "E-PORT-SYNTAX",
        "holds 1792",
        "--fit or --jumbo",
    ),
    ("forward --frame-size 3000", 2, "E-POOL-SIZE", "power of two", "2048"),
    ("forward --frame-size 256", 2, "E-POOL-SIZE", "512 to 65536", "2048"),
    ("forward --jumbo 8 --buffers general", 2, "E-POOL-SIZE", "of any size", "pools of frames"),
    ("gen gen:", 2, "E-TOPOLOGY", "only be read", ""),
    ("gen sink: --size 59", 2, "E-PORT-SYNTAX", "--size 59: a frame has 60 to 65536", ""),
];

#[test]
fn each_refusal_has_its_code_its_reason_and_its_exit_status() {
    for (words, exit, code, why, fix) in REFUSALS {
        let ended = run(words);
        assert_eq!(ended.exit, Some(exit), "{words}: {ended:?}");
        assert!(ended.err.starts_with(&format!("error[{code}]: ")), "{words}: {ended:?}");
        let line =
            |label: &str| ended.err.lines().find_map(|l| l.strip_prefix(label)).unwrap_or("");
        assert!(line("  why: ").contains(why), "{words}: {ended:?}");
        assert!(line("  fix: ").contains(fix), "{words}: {ended:?}");

        let document = run(&format!("{words} --json"));
        let d = document.document();
        assert_eq!(
            (document.exit, document.err.as_str()),
            (Some(exit), ""),
            "{words}: {document:?}"
        );
        assert_eq!(d["schema"], "linerate-error/1", "{words}");
        assert_eq!(d["error"]["code"], code, "{words}");
        assert!(d["error"]["why"].as_str().unwrap().contains(why), "{words}: {d}");
    }
}

/// Returns true, with a message, if the kernel refuses packet sockets to the command.
fn may_open_none(ended: &Ended) -> bool {
    let is_refused = ended.exit == Some(5) && ended.err.contains("socket(AF_PACKET): ");
    if is_refused {
        println!("skipped: {}", ended.err.trim());
    }
    is_refused
}

/// Opens `/dev/full`; returns `None`, with a message, if there is none.
fn full() -> Option<File> {
    match OpenOptions::new().write(true).open("/dev/full") {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            println!("skipped: there is no /dev/full");
            None
        }
        full => Some(full.unwrap()),
    }
}

#[test]
fn a_missing_interface_is_named() {
    let ended = run("forward packet:nosuchif0 sink:blind");
    if may_open_none(&ended) {
        return;
    }
    assert_eq!(ended.exit, Some(1), "{ended:?}");
    assert!(
        ended.err.starts_with("error[E-NODEV]: ") && ended.err.contains("nosuchif0"),
        "{ended:?}"
    );
}

#[test]
fn standard_output_that_is_appended_to_a_file_being_read_is_refused() {
    let path = std::env::temp_dir().join(format!("linerate-out-{}.pcap", std::process::id()));
    let file = OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
    // As a port that reads the file does.
    let reader = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&reader, rustix::fs::FlockOperation::LockShared).unwrap();
    let mut command = command("forward gen:,count=1 pcap:-");
    command.stdin(Stdio::null()).stdout(file).stderr(Stdio::piped());
    let ended = Ended::from(command.output().unwrap());
    let written = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(ended.err.starts_with("error[E-BUSY]: "), "{ended:?}");
    assert_eq!((ended.exit, written.len()), (Some(1), 0));
}

#[test]
fn capture_to_a_standard_output_that_is_the_standard_error_too_is_refused() {
    let path = std::env::temp_dir().join(format!("linerate-both-{}.pcap", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    let mut command = command("forward gen:,count=1 pcap:-");
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    let status = command.status().unwrap();
    let written = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(status.code(), Some(1), "{written}");
    assert!(written.starts_with("error[E-FILE]: cannot write "), "{written}");
    assert!(written.contains("  fix: redirect the standard error: 2>"), "{written}");
}

#[test]
fn a_cpu_that_is_not_there_is_refused_before_anything_is_opened() {
    let out = std::env::temp_dir().join(format!("linerate-no-cpu-{}.pcap", std::process::id()));
    for words in ["forward gen:,count=1", "gen"] {
        let ended = run(&format!("{words} pcap:{} --cpu 0,1023", out.display()));
        assert_eq!(ended.exit, Some(2), "{words}: {ended:?}");
        if pin::is_refused(&ended) {
            return;
        }
        assert!(
            ended.err.starts_with("error[E-CPU]: cannot pin a thread to CPU 1023"),
            "{ended:?}"
        );
        assert!(ended.out.is_empty() && !out.exists(), "{words}: the port was opened: {ended:?}");
    }
}

#[test]
fn a_generator_whose_interface_is_absent_says_so() {
    let ended = run("gen packet:nosuchif0 --to 192.0.2.7:7777 --count 1");
    if may_open_none(&ended) {
        return;
    }
    assert!(
        ended.err.starts_with("error[E-NODEV]: ") && ended.err.contains("nosuchif0"),
        "{ended:?}"
    );
}

#[test]
fn words_that_are_not_understood_are_a_usage_error() {
    for words in ["forward null:", "forward --for 10", "forward --count -1", "gen"] {
        let ended = run(words);
        assert_eq!(ended.exit, Some(2), "{words}: {ended:?}");
        let is_ours =
            ended.err.starts_with("error[E-USAGE]: ") && ended.err.contains("\n  fix: linerate");
        assert!(ended.out.is_empty() && is_ours, "{words}: {ended:?}");
        assert!(!ended.err.contains("For more information"), "{words}: {ended:?}");
        let document = run(&format!("{words} --json"));
        assert_eq!((document.exit, document.err.as_str()), (Some(2), ""), "{words}: {document:?}");
        assert_eq!(document.document()["error"]["code"], "E-USAGE");
    }
    let typo = run("forwrd --json").document();
    assert_eq!(typo["error"]["fix"], "linerate forward", "{typo}");
}

#[test]
fn argument_that_is_not_utf8_is_refused_as_any_other() {
    for (words, argument, exit, error) in [
        ("forward sink:", &b"pcap:/nonexistent/\xff"[..], 2, "error[E-USAGE]: "),
        ("forward gen:,count=1 sink: --control", b"/nonexistent/\xff", 1, "error[E-SYSTEM]: "),
    ] {
        let mut command = command(words);
        command.arg(OsStr::from_bytes(argument)).stdin(Stdio::null());
        let ended = Ended::from(command.output().unwrap());
        assert_eq!(ended.exit, Some(exit), "{words}: {ended:?}");
        assert!(ended.err.starts_with(error) && ended.err.contains("\n  fix: "), "{ended:?}");
    }
}

#[test]
fn path_that_is_too_long_for_a_socket_is_refused_with_the_limit() {
    let path = format!("/nonexistent/{}", "x".repeat(100));
    let ended = run(&format!("forward gen:,count=1 sink: --control {path}"));
    assert_eq!(ended.exit, Some(1), "{ended:?}");
    let parts =
        ["error[E-SYSTEM]: ", "why: its path has 113 bytes", "fix: name a path of at most 108"];
    for part in parts {
        assert!(ended.err.contains(part), "{part}: {ended:?}");
    }
}

#[test]
fn help_is_asked_for_and_says_how() {
    let help = run("--help");
    assert_eq!(help.exit, Some(0));
    for part in ["forward", "gen", "PORT is [name=]driver:arg", "packet:IFACE", "Exit status"] {
        assert!(help.out.contains(part), "{part}: {help:?}");
    }
    let forward = run("forward --help");
    for part in ["linerate forward packet:eth0 packet:eth1", "--for <TIME>", "--json", "ledger"] {
        assert!(forward.out.contains(part), "{part}: {forward:?}");
    }
    let version = format!("linerate {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!((run("version").out, run("--version").out), (version.clone(), version));
}

#[test]
fn capture_that_reaches_the_limit_of_file_sizes_ends_the_run_in_order() {
    let path = std::env::temp_dir().join(format!("linerate-limit-{}.pcapng", std::process::id()));
    let inner =
        command(&format!("forward gen:,count=30k,size=1514 pcap:{} --quiet", path.display()));
    let mut shell = Command::new("sh");
    // 12 or 24 MiB, as the shell counts; the pool's memory is a file, too.
    shell.args(["-c", "ulimit -f 24576; exec \"$@\"", "sh"]);
    shell.arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    let ended = Ended::from(shell.output().unwrap());
    let read = run(&format!("forward pcap:{} sink: --quiet", path.display()));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(ended.exit, Some(1), "{ended:?}");
    assert!(
        ended.err.contains("error[E-FILE]") && ended.err.contains("File too large"),
        "{ended:?}"
    );
    assert!(ended.out.contains(" write_failed\n") && ended.out.contains("   OK\n"), "{ended:?}");
    assert_eq!(read.exit, Some(0), "the file has whole packets only: {read:?}");
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure_and_a_closed_pipe_is_not() {
    let Some(full) = full() else { return };
    for words in ["forward --count 10", "forward --count 10 --json", "version", "--version"] {
        let ended = command(words).stdout(full.try_clone().unwrap()).output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("error[E-FILE]"), "{ended:?}");
    }
    let mut child = command("forward --for 100ms")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn error_of_a_run_is_printed_although_its_result_cannot_be_written() {
    let Some(full) = full() else { return };
    for more in ["--quiet", "--json"] {
        // Seven of ten packets that come at once do not fit.
        let mut command =
            command(&format!("forward gen:,count=10 sink:,qdisc=fifo,limit=3 {more}"));
        let ended = command.stdout(full.try_clone().unwrap()).output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(3), "{err}");
        assert!(err.contains("error[E-VERIFY]") && err.contains("error[E-FILE]"), "{err}");
    }
}
