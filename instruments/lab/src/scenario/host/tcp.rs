//! Sockets with buffers of a size that is asked for, and what TCP says of itself.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use linerate_sys::netns::Netns;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::{Code, Error, Result};

/// The longest time that a socket of the traffic waits for its peer; a longer wait means that the
/// path is broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A socket that listens at `address`, and whose connections have buffers of so many bytes. To be
/// called in the host's namespace.
pub(super) fn listen(address: Ipv4Addr, buffer_bytes: usize) -> io::Result<TcpListener> {
    let socket = socket(buffer_bytes)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(address, 0))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// A connection to a socket that listens. To be called in the host's namespace.
///
/// The buffers are set before: the window that is offered is settled by the first packets.
pub(super) fn connect(to: SocketAddrV4, buffer_bytes: usize) -> io::Result<TcpStream> {
    let socket = socket(buffer_bytes)?;
    // connect(2) waits no longer than a send would.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}

fn socket(buffer_bytes: usize) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_send_buffer_size(&socket, buffer_bytes)?;
    sockopt::set_socket_recv_buffer_size(&socket, buffer_bytes)?;
    Ok(socket)
}

/// The segments that hosts have sent again.
#[derive(Debug)]
pub(super) struct Retransmits(Vec<File>);

impl Retransmits {
    /// Opens the counters of these hosts.
    ///
    /// # Errors
    /// `E-FILE` without /proc.
    pub fn of(hosts: &[&Netns]) -> Result<Retransmits> {
        let path = "/proc/thread-self/net/snmp";
        let open = |host: &&Netns| {
            // What it tells is of the namespace of the thread that opens it.
            host.run(|| File::open(path))?.map_err(|e| unreadable(&e))
        };
        hosts.iter().map(open).collect::<Result<_>>().map(Retransmits)
    }

    /// Returns the number of retransmissions so far.
    ///
    /// # Errors
    /// `E-FILE` if the kernel does not say.
    pub fn count(&mut self) -> Result<u64> {
        let mut sum = 0;
        for file in &mut self.0 {
            let mut text = String::new();
            file.rewind().map_err(|e| unreadable(&e))?;
            file.read_to_string(&mut text).map_err(|e| unreadable(&e))?;
            let found = field(&text, "Tcp:", "RetransSegs");
            sum += found.ok_or_else(|| unreadable(&io::Error::other("no RetransSegs in it")))?;
        }
        Ok(sum)
    }
}

/// A number of /proc/net/snmp, whose lines come in pairs: names, then values.
fn field(snmp: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix(protocol));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|known| known == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

fn unreadable(e: &io::Error) -> Error {
    Error::new(Code::File, "cannot read what TCP sent again", format!("net/snmp: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_name() {
        let text = "Ip: Forwarding X\nIp: 1 2\nTcp: RtoMin RetransSegs InErrs\nTcp: 200 17 0\n";
        assert_eq!(field(text, "Tcp:", "RetransSegs"), Some(17));
        assert_eq!(field(text, "Tcp:", "OutRsts"), None);
        assert_eq!(field("Tcp: RetransSegs\n", "Tcp:", "RetransSegs"), None);
        assert_eq!(field("Tcp: RetransSegs\nTcp: x\n", "Tcp:", "RetransSegs"), None);
    }
}
