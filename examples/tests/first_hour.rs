//! Runs the commands of docs/first-hour.md, docs/two-cards.md, docs/capabilities.md and the
//! README's section "The first packets of your own" block by block, as printed; `pages` runs those
//! of other pages.

mod page;
mod pages;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use linerate_tests::capture::Folder;
use linerate_tests::command::copy_into;
use linerate_tests::netns::Netns;
use linerate_tests::{installed, or_skip};

use crate::page::{TWO_HOSTS, ran, ran_in, script, xdp_opens};

const FIRST_HOUR: &str = include_str!("../../docs/first-hour.md");
const README: &str = include_str!("../../README.md");
const TWO_CARDS: &str = include_str!("../../docs/two-cards.md");
const CAPABILITIES: &str = include_str!("../../docs/capabilities.md");

#[test]
fn first_hour_works_as_printed() {
    for program in ["ip", "ping", "curl", "python3", "bash", "unshare"] {
        or_skip!(installed(program));
    }
    or_skip!(xdp_opens()); // needs root, and a kernel with namespaces
    let folder = Folder::new();
    let (script, printed) = script(FIRST_HOUR);
    assert_eq!(printed, 8, "blocks on the page");
    let clone = clone_in(&folder);
    // A reader sees that both servers are there, and can send again.
    let send = "sleep 2\nsudo ip netns exec east bash -c 'exec 3<>/dev/udp/10.7.0.2/7777";
    assert!(script.contains(send));
    let script = with_examples(&script).replace(send, &format!("{BOUND}\n{SERVED}\n{send}"));
    let said = ran_in(&clone, &folder, &script);
    for part in [
        "3 packets transmitted, 3 received",
        "== block 5\nhello\n200\n",
        "received 1 = sent 1 ",
        "+ in flight 0   OK",
        "balance  rx ",
        "== block 7\nhello again\n",
    ] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
}

#[test]
fn two_cards_are_joined_as_printed() {
    for program in ["ip", "ping", "sysctl", "unshare", "bash"] {
        or_skip!(installed(program));
    }
    or_skip!(xdp_opens());
    let (script, printed) = script(TWO_CARDS);
    assert_eq!(printed, 4, "blocks on the page");
    let show = "sudo linerate tune /run/linerate.sock -i";
    assert!(script.contains(show));
    let ping = "timeout 60 bash -c 'until ip netns exec east ping -c 1 -W 1 10.7.0.2; do :; done'";
    let script = script.replace(show, &format!("{ping}\n{show}"));
    let said = ran(&Folder::new(), &format!("{TWO_HOSTS}{script}"));
    for part in ["1 received", "AF_XDP native copy", "in flight 0   OK"] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
}

/// Waits until the web server of the page listens.
const SERVED: &str = "timeout 60 bash -c \
    'until ip netns exec west ss -Htln sport = :8000 | grep -q .; do sleep 0.1; done'";

/// Waits until the echo program has reserved its port.
const BOUND: &str = "timeout 60 bash -c \
    'until ip netns exec west ss -Huln sport = :7777 | grep -q .; do sleep 0.1; done'";

#[test]
fn first_packets_of_the_readme_pass_as_printed() {
    for program in ["ip", "bash", "unshare"] {
        or_skip!(installed(program));
    }
    or_skip!(Netns::new());
    // Where xdp does not open, the program receives copies, and says why.
    let device = match xdp_opens() {
        Ok(()) => "eth0 AF_XDP",
        Err(why) => {
            eprintln!("skipped in part: {why}");
            "eth0 AF_PACKET"
        }
    };
    let section = README.split("\n## The first packets").nth(1).unwrap();
    let (script, printed) = script(section.split("\n## ").next().unwrap());
    assert_eq!(printed, 1, "blocks of the section");
    // A reader would see that the echo program runs, and could send again.
    let script = with_examples(&script).replace("sleep 2", &format!("{BOUND}\nsleep 2"));
    let said = ran(&Folder::new(), &script);
    for part in [device, "hello\n", "received 1 = sent 1 ", "in flight 0   OK"] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
}

/// Creates a folder `linerate` with the content of a clone, and returns its path.
fn clone_in(folder: &Folder) -> String {
    let clone = folder.path("linerate");
    fs::create_dir(&clone).unwrap();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize().unwrap();
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "target" {
            symlink(entry.path(), Path::new(&clone).join(entry.file_name())).unwrap();
        }
    }
    clone
}

/// Returns a script that uses the examples of this build instead of those that the page builds.
fn with_examples(script: &str) -> String {
    let examples = Path::new(env!("CARGO_BIN_EXE_echo")).parent().unwrap();
    script.replace(" target/release/", &format!(" {}/", examples.display()))
}

/// The user of docs/capabilities.md, who has no privileges.
const NOBODY: &str = "
linerate() { setpriv --reuid=65534 --regid=65534 --clear-groups /usr/local/bin/linerate \"$@\"; }
";

#[test]
fn capabilities_do_instead_of_root_as_printed() {
    for program in ["ip", "setcap", "getcap", "setpriv", "unshare", "bash"] {
        or_skip!(installed(program));
    }
    or_skip!(xdp_opens());
    let folder = Folder::new();
    let copy = copy_into(&folder);
    fs::set_permissions(folder.path(""), Permissions::from_mode(0o755)).unwrap();
    let (script, printed) = script(CAPABILITIES);
    assert_eq!(printed, 4, "blocks on the page");
    let script = format!("{NOBODY}{script}").replace("/usr/local/bin/linerate", &copy);
    let said = ran(&folder, &script);
    assert!(said.contains("ok    opens: e0 AF_XDP"), "{said}");
    assert_eq!(said.matches("tx 1,000 + drop 0 + in flight 0   OK").count(), 4, "{said}");
}
