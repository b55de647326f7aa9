//! The server of the short responses: as many threads as connections, all of one socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::crew::settle_down;
use super::hosts::Hosts;
use super::mix::{CLASS_PCT, File, STEPS};
use crate::Result;

/// Bytes of the longest request that is taken.
const REQUEST_BYTES_MAX: usize = 1024;

/// Threads that serve.
#[derive(Debug)]
pub(super) struct Servers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Option<()>>>,
}

#[derive(Debug)]
struct Shared {
    listener: TcpListener,
    /// The responses as they are sent, by the file's number.
    responses: Vec<Vec<u8>>,
    ended: AtomicBool,
    /// The connection that each thread serves.
    open: Vec<Mutex<Option<Arc<TcpStream>>>>,
}

impl Servers {
    /// Starts `threads` of them in east, on `cpu`.
    ///
    /// # Errors
    /// `E-SYSTEM` if one cannot be had.
    pub fn start(
        hosts: &Hosts,
        listener: TcpListener,
        threads: usize,
        cpu: usize,
    ) -> Result<Servers> {
        let open = (0..threads).map(|_| Mutex::new(None)).collect();
        let responses = File::all().map(response).collect();
        let ended = AtomicBool::new(false);
        let shared = Arc::new(Shared { listener, responses, ended, open });
        let mut servers = Servers { shared, threads: Vec::new() };
        for number in 0..threads {
            let shared = servers.shared.clone();
            let body = move || {
                settle_down(cpu);
                shared.serve(number);
            };
            servers.threads.push(hosts.east.spawn(&format!("server-{number}"), body)?);
        }
        Ok(servers)
    }

    /// Ends them, whatever they wait for.
    pub fn end(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // It wakes those who wait for a connection: accept(2) fails then.
        let _ = rustix::net::shutdown(&self.shared.listener, rustix::net::Shutdown::Both);
        for open in &self.shared.open {
            let open = open.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = open.as_ref().map(|stream| stream.shutdown(Shutdown::Both));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn serve(&self, number: usize) {
        let Some(place) = self.open.get(number) else { return };
        let keep = |stream| *place.lock().unwrap_or_else(PoisonError::into_inner) = stream;
        while let Ok((stream, _)) = self.listener.accept() {
            let stream = Arc::new(stream);
            keep(Some(stream.clone()));
            // Seen here, or the connection is seen in `end`.
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            // A client that goes away or talks nonsense is done with; it notices itself.
            let _ = self.answer(&stream);
            keep(None);
        }
    }

    /// Answers every request of a connection.
    fn answer(&self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut bytes = [0; REQUEST_BYTES_MAX];
        let mut n = 0;
        loop {
            let read = stream.read(&mut bytes[n..])?;
            n += read;
            if read == 0 {
                return Ok(());
            }
            if !bytes[..n].ends_with(b"\r\n\r\n") {
                continue;
            }
            let Some((file, last)) = parse(&bytes[..n]) else { return Ok(()) };
            let Some(response) = self.responses.get(file.number()) else { return Ok(()) };
            stream.write_all(response)?;
            if last {
                return Ok(());
            }
            n = 0;
        }
    }
}

fn response(file: File) -> Vec<u8> {
    let bytes = file.bytes();
    let head = format!(
        "HTTP/1.0 200 OK\r\nServer: linerate-lab\r\nContent-Type: text/html\r\n\
         Content-Length: {bytes}\r\n\r\n"
    );
    let mut response = head.into_bytes();
    response.resize(response.len() + bytes, b'x');
    response
}

/// Returns the requested file, and true if the request is its connection's last.
fn parse(request: &[u8]) -> Option<(File, bool)> {
    let text = std::str::from_utf8(request).ok()?;
    let path = text.strip_prefix("GET /class")?.split(' ').next()?;
    let (class, step) = path.split_once('_')?;
    let file = File { class: class.parse().ok()?, step: step.parse().ok()? };
    let exists = file.class < CLASS_PCT.len() && file.step < STEPS;
    exists.then(|| (file, text.contains("\r\nConnection: close\r\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_no_file_is_no_request() {
        let last = b"GET /class2_8 HTTP/1.0\r\nConnection: close\r\n\r\n";
        assert_eq!(parse(last), Some((File { class: 2, step: 8 }, true)));
        assert_eq!(parse(b"GET /class0_0 HTTP/1.0\r\n\r\n").map(|(_, last)| last), Some(false));
        for bad in ["GET /class4_0 ", "GET /class0_9 ", "GET /class-1_0 ", "PUT /class0_0 ", ""] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse(&[0xff; 9]), None);
    }
}
