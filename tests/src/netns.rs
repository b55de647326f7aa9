//! A network namespace that exists as long as its [`Netns`].
//!
//! The namespace has no name and no mount: a thread creates it, a descriptor keeps it, and the
//! kernel removes it with its content when the last process inside has ended. A killed test leaves
//! nothing to clean up, and tests that run at the same time do not affect each other.
//!
//! The thread also starts the programs in its namespace. It ends with the namespace, and the
//! programs are killed when it ends (see [`process`](crate::process)).

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv6Addr, UdpSocket};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use linerate_sys::netns;

use crate::installed;
use crate::process::Process;

/// The words of `ip` where a kernel lacks a kind of interface, or a process a privilege.
const REFUSALS: [&str; 3] =
    ["Unknown device type", "Operation not supported", "Operation not permitted"];

type Order = (Command, Sender<std::io::Result<Child>>);

/// A network namespace.
#[derive(Debug)]
pub struct Netns {
    netns: netns::Netns,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<Option<()>>>,
}

impl Netns {
    /// Creates an empty namespace, in which `lo` is up, and IPv6 is off so that the kernel sends
    /// nothing by itself.
    ///
    /// # Errors
    /// The reason to skip, if privileges or programs are missing.
    pub fn new() -> Result<Netns, String> {
        installed("ip")?;
        let netns = netns::Netns::new().map_err(|e| {
            assert!(netns::is_refused(&e), "this is no reason to skip: {e}");
            e.to_string()
        })?;
        netns.quiet().expect(ENTERS);
        let (orders, ordered) = channel();
        let thread = netns.spawn("netns", move || serve(&ordered)).expect(ENTERS);
        let netns = Netns { netns, orders: Some(orders), thread: Some(thread) };
        netns.ip("link set lo up");
        Ok(netns)
    }

    /// Returns a path of the namespace, for `ip link set … netns PATH`.
    #[must_use]
    pub fn path(&self) -> String {
        self.netns.path()
    }

    /// Runs `inside` on a new thread in the namespace, and returns its result.
    ///
    /// # Panics
    /// As `inside` does.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> T {
        self.netns.run(inside).expect(ENTERS)
    }

    /// Starts `inside` on a new thread in the namespace; the caller joins the thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        inside: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        self.netns.spawn("inside", inside).expect(ENTERS)
    }

    /// Runs `ip` with `args` in the namespace, and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, args: &str) -> String {
        self.try_ip(args).unwrap_or_else(|why| panic!("ip {args}: {why}"))
    }

    /// Runs an `ip` command as [`Netns::ip`] does, for what a kernel may lack.
    ///
    /// # Errors
    /// The reason to skip, in the words of `ip`: the kernel has no interface of this kind, or
    /// refuses it to this process.
    ///
    /// # Panics
    /// If it fails for any other reason.
    pub fn try_ip(&self, args: &str) -> Result<String, String> {
        let mut ip = Command::new("ip");
        ip.args(args.split_whitespace());
        let done = self.start(ip).finish(crate::wait::SOON);
        if done.code() == 0 {
            return Ok(done.stdout);
        }
        let is_reason = REFUSALS.iter().any(|words| done.stderr.contains(words));
        assert!(is_reason, "this is no reason to skip: ip {args}: {}", done.stderr);
        Err(done.stderr)
    }

    /// Starts `command` in the namespace.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(&self, command: Command) -> Process {
        Process::start(command, |command| {
            let (answer, answered) = channel();
            let orders = self.orders.as_ref().expect("taken in drop only");
            orders.send((command, answer)).expect("the thread lives as long as we do");
            answered.recv().expect("every order is answered")
        })
    }

    /// Returns the names of the namespace's interfaces.
    #[must_use]
    pub fn interfaces(&self) -> Vec<String> {
        let text = self.read("net/dev");
        let names = text.lines().skip(2).filter_map(|line| line.split_once(':'));
        names.map(|(name, _)| name.trim().to_owned()).collect()
    }

    /// Returns the number of packet sockets that are bound to interface `name`.
    ///
    /// # Panics
    /// If there is no such interface.
    #[must_use]
    pub fn packet_sockets(&self, name: &str) -> usize {
        let shown = self.ip(&format!("-o link show dev {name}"));
        let (index, _) = shown.split_once(':').expect("ip prints `index: name: …`");
        let text = self.read("net/packet");
        let bound = |line: &&str| line.split_whitespace().nth(4) == Some(index);
        text.lines().skip(1).filter(bound).count()
    }

    /// Gives interface `name` the address `address`, without duplicate address detection; IPv6 is
    /// off on it until then.
    ///
    /// # Errors
    /// The reason to skip: there is no IPv6, or settings are read-only.
    ///
    /// # Panics
    /// If it fails for any other reason.
    pub fn add_ipv6(&self, name: &str, address: Ipv6Addr) -> Result<(), String> {
        if let Err(e) = self.run(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))) {
            assert_eq!(e.raw_os_error(), Some(libc::EAFNOSUPPORT), "no reason to skip: {e}");
            return Err(format!("no IPv6: {e}"));
        }
        self.set(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0")?;
        self.ip(&format!("-6 addr add {address}/64 dev {name} nodad"));
        Ok(())
    }

    /// Sets the namespace's setting at `path` below `/proc/sys`.
    ///
    /// # Errors
    /// The reason to skip, if settings are read-only, as in a container.
    ///
    /// # Panics
    /// If it fails for any other reason.
    pub fn set(&self, path: &str, value: &str) -> Result<(), String> {
        let path = format!("/proc/sys/{path}");
        match self.run(|| fs::write(&path, value)) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == ErrorKind::ReadOnlyFilesystem => Err(format!("{path}: {e}")),
            Err(e) => panic!("this is no reason to skip: {path}: {e}"),
        }
    }

    /// Returns a count of the kernel for the namespace, by the name that nstat(8) gives it:
    /// `TcpInCsumErrors`, `IpExtInCEPkts`, `Ip6InReceives`.
    ///
    /// # Panics
    /// If the kernel has no such count.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        let text = self.read("net/snmp") + &self.read("net/netstat");
        let found = count_of_pair(&text, name);
        let found = found.or_else(|| count_of_line(&self.read("net/snmp6"), name));
        found.unwrap_or_else(|| panic!("the kernel has no count {name}"))
    }

    /// Reads a file below `/proc/thread-self` in the namespace.
    fn read(&self, path: &str) -> String {
        self.run(|| fs::read_to_string(format!("/proc/thread-self/{path}"))).expect("procfs")
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs the namespace's own thread: starts programs in the namespace until all senders of orders
/// are dropped.
fn serve(ordered: &Receiver<Order>) {
    for (mut command, answer) in ordered {
        let _ = answer.send(command.spawn());
    }
}

/// Returns a count in `text`, in which a line of names stands above a line of numbers, both behind
/// the name of a protocol.
fn count_of_pair(text: &str, name: &str) -> Option<u64> {
    text.lines().zip(text.lines().skip(1)).find_map(|(names, numbers)| {
        let (protocol, names) = names.split_once(": ")?;
        let name = name.strip_prefix(protocol)?;
        let i = names.split_whitespace().position(|other| other == name)?;
        numbers.strip_prefix(protocol)?.split_whitespace().nth(1 + i)?.parse().ok()
    })
}

/// Returns a count in `text`, in which each line is a name and a number.
fn count_of_line(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The reason why entering a namespace cannot fail.
const ENTERS: &str = "the maker of a namespace may enter it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_found_by_its_protocol_and_its_name() {
        let text = "Ip: InReceives InHdrErrors\nIp: 5 6\nTcp: MaxConn InErrs\nTcp: -1 7\n\
                    IpExt: InReceives InCEPkts\nIpExt: 8 9\n";
        let count = |name| count_of_pair(text, name);
        assert_eq!([count("IpInHdrErrors"), count("TcpInErrs")], [Some(6), Some(7)]);
        assert_eq!([count("IpInReceives"), count("IpExtInReceives")], [Some(5), Some(8)]);
        assert_eq!([count("IpExtInCEPkts"), count("IpInCEPkts")], [Some(9), None]);
        let text = "Ip6InReceives   \t3\nIp6InHdrErrors  \t4\n";
        let counts = ["Ip6InHdrErrors", "Ip6In"].map(|name| count_of_line(text, name));
        assert_eq!(counts, [Some(4), None]);
    }
}
