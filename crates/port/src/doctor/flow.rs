//! The ports that `udp=` and `tcp=` reserve: whether they are free, or which process has them.

use linerate_skb::{Code, Error};

use super::finding::Findings;
use super::{proc, trial};
use crate::spec::Spec;

/// Tries to reserve the ports of `spec`, as opening the port would.
///
/// It is a port of AF_PACKET that is opened: it makes the same reservation, and copies packets
/// where `xdp` would take them, also those that this machine only forwards.
pub(crate) fn examine(spec: &Spec, found: &mut Findings) {
    let keys = ["udp", "tcp"].map(|key| Some((key, value(spec, key)?)));
    for (key, ports) in keys.into_iter().flatten() {
        match trial::open(&format!("packet:{},{key}={ports},promisc=off,ring=512KiB", spec.arg)) {
            Ok(_) => {
                found.ok(format!("{key}={ports} can be reserved"));
            }
            Err(e) if e.code == Code::Busy => {
                found.miss(&owned(e));
            }
            Err(e) if e.what.starts_with("cannot reserve") => {
                found.miss(&e);
            }
            // The error is of the socket that the trial used, not of the port.
            Err(e) => {
                let finding = found.lack(&e);
                finding.what = format!("reserving {key}={ports} was not tried");
            }
        }
    }
}

fn value(spec: &Spec, key: &str) -> Option<String> {
    spec.value(key, |text| Ok::<_, String>(text.to_owned())).ok().flatten()
}

/// Adds to an error the process that has the port which the error names.
pub(crate) fn owned(mut e: Error) -> Error {
    let mut words = e.what.rsplit(' ');
    let port = words.next().and_then(|port| port.parse().ok());
    let protocol = words.nth(1).map(str::to_ascii_lowercase);
    let holder = port.zip(protocol).and_then(|(port, protocol)| owner(&protocol, port));
    if let Some(holder) = holder {
        e.why = format!("{}: {holder}", e.why);
    }
    e
}

/// Returns a text that names the process which has `port` of `protocol`.
fn owner(protocol: &str, port: u16) -> Option<String> {
    let tables = [protocol.to_owned(), format!("{protocol}6")];
    let inode = tables.iter().find_map(|table| {
        let text = proc::text(&format!("/proc/thread-self/net/{table}"))?;
        text.lines().skip(1).find_map(|line| inode_of(line, port))
    });
    proc::holder_of(inode?)
}

/// Returns the inode in a line of a socket table, if the line's local port is `port`. A connection
/// that the kernel is about to forget has no inode.
///
/// Source: proc_pid_net(5), `/proc/net/tcp`.
fn inode_of(line: &str, port: u16) -> Option<u64> {
    let mut fields = line.split_whitespace();
    let local = fields.nth(1)?.rsplit(':').next()?;
    let inode = fields.nth(7)?.parse().ok()?;
    (u16::from_str_radix(local, 16) == Ok(port) && inode > 0).then_some(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_socket_table_is_read() {
        let line = "  10: 0100007F:1E61 00000000:0000 07 00000000:00000000 00:00000000 00000000     \
                    0        0 4711 2 0000000000000000 0";
        assert_eq!(inode_of(line, 7777), Some(4711));
        assert_eq!(
            (inode_of(line, 7778), inode_of("10: x", 0), inode_of("", 0)),
            (None, None, None)
        );
    }

    #[test]
    fn an_error_that_names_no_port_stays_as_it_is() {
        let e = Error::new(Code::Busy, "cannot open x", "it is taken");
        assert_eq!(owned(e.clone()), e);
    }
}
