//! The program of a stream: it reads from all connections, and checks each byte.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;

use super::{FIRST_PORT, Program, listening};
use crate::scenario::host::tcp::FILL;

/// Bytes of a socket's send buffer: nothing is sent but acknowledgements.
const UNUSED_BYTES: usize = 1024;
/// Bytes of a read.
const READ_BYTES: usize = 64 << 10;

/// The program of an adapter.
pub(super) struct Stream {
    counts: Vec<Arc<AtomicU64>>,
    bytes: Vec<u8>,
}

impl Stream {
    /// Creates the program with a counter of the bytes for each connection.
    pub fn new(counts: Vec<Arc<AtomicU64>>) -> Stream {
        Stream { counts, bytes: vec![0; READ_BYTES] }
    }
}

impl Program for Stream {
    fn sockets(&self, buffer_bytes: usize) -> Vec<tcp::Socket<'static>> {
        (FIRST_PORT..)
            .take(self.counts.len())
            .map(|port| listening(port, buffer_bytes, UNUSED_BYTES))
            .collect()
    }

    fn turn(&mut self, sockets: &mut SocketSet<'_>, of: &[SocketHandle]) -> Option<bool> {
        let mut has_read = false;
        for (handle, count) in of.iter().zip(&self.counts) {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
            while let Ok(n @ 1..) = socket.recv_slice(&mut self.bytes) {
                if self.bytes[..n].iter().any(|byte| *byte != FILL) {
                    return None;
                }
                count.fetch_add(n as u64, Ordering::Release);
                has_read = true;
            }
            if socket.state() == tcp::State::CloseWait {
                socket.close();
            }
        }
        Some(has_read)
    }
}
