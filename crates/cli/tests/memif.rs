//! Two `linerate` processes joined by memif: one sends packets, and the other verifies them.

mod command;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use command::{Ended, command, finish, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Returns a name that only this test uses, for an abstract socket.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("@linerate-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Starts a run that ends at the end of its standard input; returns once its ports are open.
fn start(words: &str) -> Child {
    let mut command = command(&format!("{words} --beside --json"));
    let mut child = command::start(command.stdin(Stdio::piped()));
    let mut line = String::new();
    // Read one byte at a time: later output is for the code that waits for the end.
    let mut out = BufReader::with_capacity(1, child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{words}");
    child.stdout = Some(out.into_inner());
    child
}

/// Ends the run and returns its document; checks that the ledger balances with nothing in flight.
fn end(child: Child) -> Value {
    // This closes its standard input.
    whole(&Ended::from(finish(child)), 0)
}

/// Ends the run by SIGINT, as a user does, with its standard input still open.
fn interrupt(mut child: Child) -> Ended {
    let _stdin = child.stdin.take();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    Ended::from(finish(child))
}

/// Starts a run and interrupts it, with ever longer pauses until packets have passed: the ledger
/// counts them by `key`. Two processes connect late on a busy machine.
fn interrupted(words: &str, key: &str) -> Value {
    for ms in [400, 2000, 8000] {
        let child = start(words);
        std::thread::sleep(Duration::from_millis(ms));
        let d = whole(&interrupt(child), 130);
        if d["ledger"][key].as_u64().unwrap() > 0 {
            return d;
        }
    }
    panic!("{words}: no packet passed");
}

fn whole(ended: &Ended, exit: i32) -> Value {
    assert_eq!(ended.exit, Some(exit), "{ended:?}");
    let d = ended.document();
    let ledger = &d["ledger"];
    assert_eq!((&ledger["balanced"], &ledger["in_flight"]), (&true.into(), &0.into()), "{d}");
    d
}

/// Checks that the sink received `packets` without a fault.
fn assert_clean(d: &Value, packets: &Value) {
    assert_eq!(&d["verify"]["packets"], packets, "{d}");
    for fault in ["lost", "reordered", "duplicated", "late", "corrupted", "foreign"] {
        assert_eq!(d["verify"][fault], 0, "{fault}: {d}");
    }
}

#[test]
fn what_leaves_one_process_is_verified_by_the_other_in_either_role() {
    for sharing in ["yes", "read", "no"] {
        for client_sends in [true, false] {
            let path = name();
            let server = format!("memif:{path},role=server,size=256");
            let client = format!("memif:{path},role=client,size=256,zerocopy={sharing}");
            let (from, to) = if client_sends { (client, server) } else { (server, client) };
            let source = "gen:,size=imix,flows=5";
            let case = format!("zerocopy={sharing}, client sends: {client_sends}");
            let (sent, came) = if client_sends {
                let sink = start(&format!("forward {to} sink:"));
                let sent = run(&format!("forward {source},count=20k {from} --json"));
                assert_eq!(sent.err, "", "no notes are printed");
                (whole(&sent, 0), end(sink))
            } else {
                // A listening port without a peer drops its packets and keeps running.
                let sender = start(&format!("forward {source},rate=20kpps {from}"));
                let came = whole(&run(&format!("forward {to} sink: --count 2000 --json")), 0);
                (end(sender), came)
            };
            let [left, arrived] =
                [(&sent, "sent"), (&came, "received")].map(|(d, key)| d["ledger"][key].as_u64());
            if client_sends {
                assert_eq!((left, arrived), (Some(20_000), Some(20_000)), "{case}: {sent} {came}");
                assert_clean(&came, &20_000.into());
                let copied = sent["ports"][1]["copied_bytes"].as_u64().unwrap();
                assert_eq!(copied > 0, sharing == "no", "{case}: {sent}");
            } else {
                assert!(arrived >= Some(2000) && left >= arrived, "{case}: {sent} {came}");
                assert_eq!(came["verify"]["packets"].as_u64(), arrived, "{case}: {came}");
            }
            assert_eq!(came["verify"]["corrupted"], 0, "{case}: {came}");
        }
    }
}

/// Returns the ports of a sender and of a verifier, with a socket of their own.
fn ports(client_sends: bool) -> (String, String) {
    let path = name();
    let server = format!("memif:{path},role=server");
    let client = format!("memif:{path},role=client");
    if client_sends { (client, server) } else { (server, client) }
}

#[test]
fn a_sender_goes_on_when_its_peer_is_interrupted_and_another_one_comes() {
    for client_sends in [true, false] {
        let (from, to) = ports(client_sends);
        let sender = start(&format!("forward gen:,size=200,rate=50kpps {from}"));
        let first = interrupted(&format!("forward {to} sink:"), "received");
        // The run ends when 1000 packets have arrived; without a connection it would end with
        // fewer.
        let second = run(&format!("forward {to} sink: --count 1000 --for 20s --json"));
        let (second, sent) = (whole(&second, 0), whole(&interrupt(sender), 130));
        let n = |of: &Value, key: &str| of["ledger"][key].as_u64().unwrap();
        let came = n(&first, "received") + n(&second, "received");
        assert!(n(&second, "received") >= 1000, "client sends {client_sends}: {second} {sent}");
        assert!(came <= n(&sent, "created"), "{first} {second} {sent}");
        assert!(sent["ports"][1]["resets"].as_u64().unwrap() > 0, "{sent}");
        for found in [&first, &second] {
            for fault in ["reordered", "duplicated", "corrupted", "foreign"] {
                assert_eq!(found["verify"][fault], 0, "{fault}: {found}");
            }
        }
    }
}

#[test]
fn a_sink_goes_on_when_its_sender_is_interrupted_and_loses_nothing_of_it() {
    for client_sends in [true, false] {
        let (from, to) = ports(client_sends);
        let sink = start(&format!("forward {to} sink:"));
        let first = interrupted(&format!("forward gen:,size=200,rate=50kpps {from}"), "sent");
        let second = run(&format!("forward gen:,size=1514,count=5000 {from} --json"));
        let (second, came) = (whole(&second, 0), end(sink));
        let sent = |of: &Value| of["ledger"]["sent"].as_u64().unwrap();
        let both = sent(&first) + sent(&second);
        assert_eq!(came["ledger"]["received"], both, "{first} {second} {came}");
        assert!(sent(&first) > 0 && sent(&second) > 0, "{first} {second} {came}");
        assert_eq!(came["verify"]["corrupted"], 0, "{came}");
    }
}

#[test]
fn a_peer_that_never_came_fails_a_run_that_has_an_end() {
    for (words, what) in [
        (format!("gen memif:{} --for 300ms", name()), "has no server"),
        (format!("forward gen:,count=10 memif:{}", name()), "has no server"),
        (format!("forward memif:{},role=server sink: --for 300ms", name()), "has no client"),
    ] {
        let ended = run(&words);
        assert_eq!(ended.exit, Some(1), "{words}: {ended:?}");
        let error = ended.err.split("error[E-DEVICE-DOWN]: memif ").nth(1).unwrap_or_default();
        assert!(error.contains(what) && error.contains("in the whole run"), "{words}: {ended:?}");
        assert!(error.contains("\n  fix: start "), "{words}: {ended:?}");
        assert!(ended.out.contains("balance "), "the ledger is still printed: {ended:?}");
        let d = run(&format!("{words} --json")).document();
        assert_eq!(
            (&d["error"]["code"], &d["ledger"]["balanced"]),
            (&"E-DEVICE-DOWN".into(), &true.into()),
            "{d}"
        );
    }
}
