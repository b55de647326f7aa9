//! A network namespace that exists while its [`Netns`] does, and no longer.
//!
//! It has no name and no mount: a thread made it, a descriptor holds it, and the kernel removes it
//! with everything in it when the last process inside has ended. A test that is killed leaves
//! nothing to clean up, and tests that run at once cannot meet.
//!
//! Programs are started by that thread, which ends with the namespace; they die with the thread
//! that started them (see [`process`](crate::process)).

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::installed;
use crate::process::Process;

type Order = (Command, Sender<std::io::Result<Child>>);

/// A network namespace.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Netns {
    /// Creates an empty namespace; `lo` is up, and IPv6 is off so that nothing sends unasked.
    ///
    /// # Errors
    /// The reason to skip, where that takes privileges or programs that are missing.
    pub fn new() -> Result<Netns, String> {
        installed("ip")?;
        let (orders, ordered) = channel();
        let (made, making) = channel();
        let thread = std::thread::spawn(move || serve(&made, &ordered));
        let fd = making.recv().unwrap_or_else(|_| Err("the thread inside died".into()))?;
        let netns = Netns { fd, orders: Some(orders), thread: Some(thread) };
        netns.run(|| {
            for which in ["all", "default"] {
                // A kernel without IPv6 has no such file.
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
            }
        });
        netns.ip("link set lo up");
        Ok(netns)
    }

    /// Returns a path of the namespace, for `ip link set … netns PATH`.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }

    /// Runs `inside` on a thread in the namespace.
    ///
    /// # Panics
    /// As `inside` does.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                inside()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts `inside` on a thread in the namespace, which the caller joins.
    pub fn spawn<T: Send + 'static>(
        &self,
        inside: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let fd = self.fd.try_clone().expect("there is a descriptor left");
        std::thread::spawn(move || {
            enter(&fd);
            inside()
        })
    }

    /// Moves the calling thread into the namespace, for good.
    pub fn enter(&self) {
        enter(&self.fd);
    }

    /// Runs `ip` with `args` inside, and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, args: &str) -> String {
        self.try_ip(args).unwrap_or_else(|why| panic!("ip {args}: {why}"))
    }

    /// Runs an `ip` command as [`Netns::ip`] does, and returns its failure instead of panicking.
    ///
    /// # Errors
    /// What it says on stderr.
    pub fn try_ip(&self, args: &str) -> Result<String, String> {
        let mut ip = Command::new("ip");
        ip.args(args.split_whitespace());
        let done = self.start(ip).finish(crate::wait::SOON);
        if done.code() == 0 { Ok(done.stdout) } else { Err(done.stderr) }
    }

    /// Starts `command` inside.
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

    /// Returns the names of its interfaces.
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

    /// Reads a file below `/proc/thread-self` inside.
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

/// Serves as the namespace's own thread: makes the namespace, then starts programs in it until all
/// senders of orders are gone.
fn serve(made: &Sender<Result<OwnedFd, String>>, ordered: &Receiver<Order>) {
    // SAFETY: NEWNET changes which interfaces this thread sees; the flag that is a danger, FILES,
    // is not among them.
    let unshared = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
    let fd = match unshared {
        Ok(()) => File::open("/proc/thread-self/ns/net").map(OwnedFd::from),
        Err(errno) => Err(errno.into()),
    };
    let _ = made.send(fd.map_err(|e| format!("no network namespace: {e}")));
    for (mut command, answer) in ordered {
        let _ = answer.send(command.spawn());
    }
}

fn enter(fd: &OwnedFd) {
    move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("the maker of a namespace may enter it");
}
