//! The program of the web: it answers requests with files.

use std::sync::Arc;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;

use super::{FIRST_PORT, Program, listening};
use crate::scenario::host::server::{REQUEST_BYTES_MAX, parse};

/// Number of sockets for each client: a connection that is closed has its socket until the client
/// has closed its end, too.
const SOCKETS: usize = 2;

/// The program of an adapter.
pub(super) struct Files {
    clients: usize,
    /// The responses as sent, by the file's number.
    responses: Arc<Vec<Vec<u8>>>,
    connections: Vec<Connection>,
}

/// The state of a socket.
#[derive(Debug, Default)]
struct Connection {
    request: Vec<u8>,
    reply: Option<Reply>,
}

/// A response, of which some bytes are sent.
#[derive(Debug)]
struct Reply {
    number: usize,
    sent: usize,
    /// True if the connection ends with it.
    last: bool,
}

impl Files {
    /// Creates the program for at most `clients` connections at a time.
    pub fn new(clients: usize, responses: Arc<Vec<Vec<u8>>>) -> Files {
        let connections = (0..SOCKETS * clients).map(|_| Connection::default()).collect();
        Files { clients, responses, connections }
    }
}

impl Program for Files {
    fn sockets(&self, buffer_bytes: usize) -> Vec<tcp::Socket<'static>> {
        let one = || {
            let mut socket = listening(FIRST_PORT, buffer_bytes, buffer_bytes);
            socket.set_nagle_enabled(false);
            socket
        };
        (0..SOCKETS * self.clients).map(|_| one()).collect()
    }

    fn turn(&mut self, sockets: &mut SocketSet<'_>, of: &[SocketHandle]) -> Option<bool> {
        let mut is_busy = false;
        for (handle, connection) in of.iter().zip(&mut self.connections) {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
            is_busy |= connection.turn(socket, &self.responses);
        }
        Some(is_busy)
    }
}

impl Connection {
    /// Reads a request, or sends its response; returns true if it did something.
    fn turn(&mut self, socket: &mut tcp::Socket<'_>, responses: &[Vec<u8>]) -> bool {
        if !socket.is_open() {
            *self = Connection::default();
            // The socket is closed, so this is not refused.
            return socket.listen(FIRST_PORT).is_ok();
        }
        let Some(reply) = &mut self.reply else { return self.ask(socket) };
        let Some(response) = responses.get(reply.number) else {
            socket.abort();
            return true;
        };
        let sent = socket.send_slice(&response[reply.sent..]).unwrap_or_default();
        reply.sent += sent;
        if reply.sent == response.len() {
            if reply.last {
                socket.close();
            }
            *self = Connection::default();
        }
        sent > 0
    }

    /// Reads more of a request; returns true if there was some.
    fn ask(&mut self, socket: &mut tcp::Socket<'_>) -> bool {
        let mut bytes = [0; REQUEST_BYTES_MAX];
        let n = socket.recv_slice(&mut bytes).unwrap_or_default();
        self.request.extend_from_slice(&bytes[..n]);
        if self.request.ends_with(b"\r\n\r\n") {
            let file = parse(&self.request);
            self.reply = file.map(|(file, last)| Reply { number: file.number(), sent: 0, last });
        }
        // The client reports what is wrong with its request.
        if self.reply.is_none()
            && (self.request.ends_with(b"\r\n\r\n") || self.request.len() > REQUEST_BYTES_MAX)
        {
            socket.abort();
        } else if n == 0 && socket.state() == tcp::State::CloseWait {
            socket.close();
        }
        n > 0
    }
}
