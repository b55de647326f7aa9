//! The command on interfaces of a namespace of its own, where a veth pair is `v0` and `v1`.

mod command;

use command::{Ended, run};
use linerate_sys::netns::{self, Netns};

fn run_in(netns: &Netns, words: &str) -> Ended {
    netns.run(|| run(words)).unwrap()
}

#[test]
fn a_wire_between_the_ends_of_one_veth_pair_is_warned_about() {
    let netns = match Netns::with_pair() {
        Err(e) if netns::is_refused(&e) => return eprintln!("skipped: {e}"),
        made => made.unwrap(),
    };
    let pair = "v0 and v1 are the ends of one veth pair";
    let warned = |words: &str| {
        let text = run_in(&netns, &format!("forward {words} --for 10ms"));
        let document = run_in(&netns, &format!("forward {words} --for 10ms --json"));
        assert_eq!((text.exit, document.exit), (Some(0), Some(0)), "{text:?} {document:?}");
        let warnings = document.document()["warnings"].to_string();
        assert_eq!(text.err.contains(pair), warnings.contains(pair), "{text:?} {document:?}");
        text.err.contains(&format!("warning: {pair}"))
    };
    assert!(warned("packet:v0 packet:v1"));
    assert!(!warned("packet:v0 sink:"));
    netns.ip("link add w0 type veth peer name w1").unwrap();
    netns.ip("link set w0 up").unwrap();
    assert!(!warned("packet:v0 packet:w0"));
}

#[test]
fn a_wire_between_two_names_of_one_interface_is_refused() {
    let netns = match Netns::with_pair() {
        Err(e) if netns::is_refused(&e) => return eprintln!("skipped: {e}"),
        made => made.unwrap(),
    };
    match netns.ip("link property add dev v0 altname v0b") {
        // iproute2 before 5.5.
        Err(e) if e.why.contains("\"property\" is unknown") => return eprintln!("skipped: {e}"),
        made => drop(made.unwrap()),
    }
    for other in ["v0", "v0b"] {
        let refused = run_in(&netns, &format!("forward packet:v0 packet:{other} --for 10ms"));
        assert_eq!((refused.exit, refused.out.as_str()), (Some(2), ""), "{refused:?}");
        assert!(refused.err.contains("both ports are on "), "{refused:?}");
    }
}

#[test]
fn an_interface_that_the_host_uses_gets_no_packets_without_a_rate_or_an_end() {
    let netns = match Netns::with_pair() {
        Err(e) if netns::is_refused(&e) => return eprintln!("skipped: {e}"),
        made => made.unwrap(),
    };
    netns.ip("addr add 192.0.2.1/24 dev v0").unwrap();
    let refused = run_in(&netns, "gen packet:v0");
    assert_eq!((refused.exit, refused.out.as_str()), (Some(2), ""), "{refused:?}");
    for part in
        ["error[E-USAGE]: ", "v0 has the address 192.0.2.1", "fix: add --rate, --for or --count"]
    {
        assert!(refused.err.contains(part), "{part}: {refused:?}");
    }
    for bound in ["--count 1", "--for 1ms", "--rate 1kpps --count 1"] {
        let sent = run_in(&netns, &format!("gen packet:v0 {bound}"));
        assert_eq!(sent.exit, Some(0), "{bound}: {sent:?}");
    }
    for source in ["gen:", "gen:rate=1kpps,rate_for=1s"] {
        let refused = run_in(&netns, &format!("forward {source} packet:v0"));
        assert_eq!((refused.exit, refused.out.as_str()), (Some(2), ""), "{refused:?}");
        for part in ["error[E-USAGE]: ", "v0 has the address", "fix: add --for or --count"] {
            assert!(refused.err.contains(part), "{part}: {refused:?}");
        }
    }
    for bounded in ["gen:count=1 packet:v0", "gen: packet:v0 --count 1"] {
        let sent = run_in(&netns, &format!("forward {bounded}"));
        assert_eq!(sent.exit, Some(0), "{bounded}: {sent:?}");
    }
}

#[test]
fn a_generator_of_which_nothing_is_sent_fails_with_the_reason() {
    let netns = match Netns::with_pair() {
        Err(e) if netns::is_refused(&e) => return eprintln!("skipped: {e}"),
        made => made.unwrap(),
    };
    for (words, exit) in [
        ("gen packet:v0 --count 10 --size 1515", 3),
        ("forward gen:,count=10,size=1515 packet:v0", 3),
        ("gen packet:v0 --count 10 --size 1514", 0),
    ] {
        let ended = run_in(&netns, words);
        assert_eq!(ended.exit, Some(exit), "{words}: {ended:?}");
        let why = "every packet was dropped: 10 too_long; v0 has the MTU 1500 and sends packets of up to 1514 bytes";
        let lines = format!("error[E-VERIFY]: no packet was sent\n  why: {why}\n  fix: a size of");
        assert_eq!(ended.err.contains(&lines), exit == 3, "{words}: {ended:?}");
    }
}
