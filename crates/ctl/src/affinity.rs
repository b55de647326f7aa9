//! The three affinities, each set separately and temporarily: the CPUs of a device's interrupt
//! work, of a polling worker, and of an application's thread. Dropping a guard restores what it
//! found.
//!
//! ```text
//!   interrupt    a device's own irq               /proc/irq/N/smp_affinity_list
//!                of veth, which has none: NAPI's thread, which the interface is given meanwhile
//!   poller       a worker of an engine            Control::set_cpus
//!   process      any thread, by its number        sched_setaffinity(2)
//! ```
//!
//! Nothing here is done unasked: interrupts belong to the machine, and a program that balances them
//! (irqbalance) moves them again ([`InterruptGuard::notes`] says so).
//!
//! Source: Documentation/core-api/irq/irq-affinity.rst, Documentation/networking/napi.rst ("Threaded NAPI").

use std::fs;
use std::time::{Duration, Instant};

use linerate_datapath::Control;
use linerate_port::wait::poll_readable;
use linerate_port::{Code, Error, Result};
use linerate_sys::capability::Capabilities;
use linerate_sys::netif::{Interface, NetFolder};
use linerate_sys::thread;

/// Longest wait for a worker to execute an order; a worker that shares its CPU may need long.
const OBEYS: Duration = Duration::from_secs(10);
/// Longest wait for the kernel to start NAPI's threads.
const SOON: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(1);

/// Something that can be pinned, for the guards and for `placement`.
pub trait Pin {
    /// Returns the name for readers: `worker 1`, `interrupts of eth0`.
    fn name(&self) -> String;

    /// Restricts it to these CPUs until the next call; returns those on which it could run before.
    ///
    /// # Errors
    /// `E-CPU` if it may run on none of them: then it stays where it was.
    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>>;
}

/// A worker of a running engine.
#[derive(Debug, Clone)]
pub struct WorkerPin {
    control: Control,
    worker: usize,
}

impl WorkerPin {
    /// Creates a handle for a worker, by number.
    #[must_use]
    pub fn new(control: &Control, worker: usize) -> WorkerPin {
        WorkerPin { control: control.clone(), worker }
    }
}

impl Pin for WorkerPin {
    fn name(&self) -> String {
        format!("worker {}", self.worker)
    }

    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>> {
        Ok(self.control.set_cpus(self.worker, cpus)?.wait(OBEYS)?.before)
    }
}

/// A thread, identified by the kernel's number.
#[derive(Debug, Clone, Copy)]
pub struct ThreadPin(i32);

impl ThreadPin {
    /// Names the calling thread.
    #[must_use]
    pub fn current() -> ThreadPin {
        ThreadPin(thread::id())
    }

    /// Creates a handle for a thread, by its number in `ps -L`.
    #[must_use]
    pub fn of(thread: i32) -> ThreadPin {
        ThreadPin(thread)
    }
}

impl Pin for ThreadPin {
    fn name(&self) -> String {
        format!("thread {}", self.0)
    }

    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>> {
        let before = thread::allowed_cpus_of(self.0)?;
        thread::run_thread_on(self.0, cpus)?;
        Ok(before)
    }
}

/// An affinity that is put back when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it puts the affinity back"]
pub struct Pinned<P: Pin> {
    pin: P,
    before: Vec<usize>,
}

impl<P: Pin> Pinned<P> {
    /// Restricts `pin` to these CPUs for as long as the result lives.
    ///
    /// # Errors
    /// Those of [`Pin::pin`].
    pub fn new(mut pin: P, cpus: &[usize]) -> Result<Pinned<P>> {
        let before = pin.pin(cpus)?;
        Ok(Pinned { pin, before })
    }

    /// Moves it to other CPUs; dropping still restores the original ones.
    ///
    /// # Errors
    /// Those of [`Pin::pin`].
    pub fn move_to(&mut self, cpus: &[usize]) -> Result<()> {
        self.pin.pin(cpus).map(drop)
    }

    /// Returns the CPUs that the guard will put back.
    #[must_use]
    pub fn before(&self) -> &[usize] {
        &self.before
    }
}

impl<P: Pin> Drop for Pinned<P> {
    fn drop(&mut self) {
        // What is gone needs no putting back.
        let _ = self.pin.pin(&self.before);
    }
}

/// The work of an interface's interrupts, moved together. Dropping it restores the CPUs, and
/// removes NAPI threads that it added.
#[derive(Debug)]
#[must_use = "dropping it puts the interrupts back"]
pub struct InterruptGuard {
    name: String,
    folder: NetFolder,
    /// Irqs with the list of CPUs that each had.
    irqs: Vec<(u32, String)>,
    /// NAPI's threads with the CPUs that each had.
    threads: Vec<(i32, Vec<usize>)>,
    /// True if we gave the interface NAPI threads.
    is_threaded_by_us: bool,
    notes: Vec<String>,
}

impl InterruptGuard {
    /// Finds an interface's irqs; for one without, whose packets the kernel moves in soft
    /// interrupts of the sender's CPU, gives each NAPI instance a thread. The interface is looked
    /// up in the calling thread's network namespace; its port must be open, because a veth may have
    /// no NAPI before.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if it has neither, `E-PERM` without CAP_NET_ADMIN, `E-NODEV` if it is not there.
    pub fn of(interface: &str) -> Result<InterruptGuard> {
        let found = Interface::open(interface)?;
        let folder = NetFolder::open(&found)?;
        let mut guard = InterruptGuard {
            name: interface.to_owned(),
            irqs: Vec::new(),
            threads: Vec::new(),
            is_threaded_by_us: false,
            notes: balancer().into_iter().collect(),
            folder,
        };
        for irq in irqs(&guard.folder) {
            let now = fs::read_to_string(list_of(irq)).map_err(|e| guard.refused(irq, &e))?;
            guard.irqs.push((irq, now.trim().to_owned()));
        }
        if guard.irqs.is_empty() {
            guard.have_threads(found.rx_queues()? as usize)?;
        }
        Ok(guard)
    }

    /// Returns what is moved, in words for readers.
    #[must_use]
    pub fn moved(&self) -> String {
        let join = |all: Vec<String>| all.join(",");
        if self.irqs.is_empty() {
            let threads = self.threads.iter().map(|(thread, _)| thread.to_string()).collect();
            return format!("NAPI threads {} of {}", join(threads), self.name);
        }
        let irqs = self.irqs.iter().map(|(irq, _)| irq.to_string()).collect();
        format!("irqs {} of {}", join(irqs), self.name)
    }

    /// Returns the ids of the NAPI threads, if those are moved.
    #[must_use]
    pub fn threads(&self) -> Vec<i32> {
        self.threads.iter().map(|(thread, _)| *thread).collect()
    }

    /// Returns remarks on programs that may undo the move: those that balance interrupts.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn have_threads(&mut self, queues: usize) -> Result<()> {
        let unsupported = |why: &str| {
            let what = format!("cannot move the interrupts of {}", self.name);
            let fix = format!("open its port first; see: ip -d link show {}", self.name);
            Err(Error::new(Code::Unsupported, what, why).fix(fix))
        };
        let Some(now) = self.folder.read("threaded") else {
            return unsupported("it has no irq, and NAPI has no threads before Linux 5.12");
        };
        let others = if now == "0" { napi_threads(&self.name) } else { Vec::new() };
        if now == "0" {
            match self.folder.write("threaded", "1") {
                Ok(()) => self.is_threaded_by_us = true,
                // Source: net/core/dev.c, `dev_set_threaded`.
                Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {
                    return unsupported("it has no irq and no NAPI");
                }
                Err(e) => {
                    let what = format!("cannot give {} threads for NAPI", self.name);
                    return Err(Error::new(Code::Permission, what, e.to_string())
                        .fix(Capabilities::NET_ADMIN.remedy()));
                }
            }
        }
        let until = Instant::now() + SOON;
        loop {
            let mut threads = napi_threads(&self.name);
            threads.retain(|thread| !others.contains(thread));
            if !threads.is_empty() && threads.len() <= queues {
                for thread in threads {
                    self.threads.push((thread, thread::allowed_cpus_of(thread)?));
                }
                return Ok(());
            }
            if Instant::now() >= until {
                return unsupported(match threads.len() {
                    0 => "it has no irq and no NAPI",
                    _ => "interfaces of several network namespaces are called so",
                });
            }
            // The kernel starts them in its own time, and announces nothing.
            let _ = poll_readable(&[], Some(STEP));
        }
    }

    fn refused(&self, irq: u32, e: &std::io::Error) -> Error {
        let what = format!("cannot move irq {irq} of {}", self.name);
        // Source: kernel/irq/proc.c: EIO and EINVAL of an irq that its controller does not move.
        Error::new(Code::Cpu, what, format!("{}: {e}", list_of(irq)))
            .fix("root, and an irq that can be moved; CPUs: cat /sys/devices/system/cpu/online")
    }
}

impl Pin for InterruptGuard {
    fn name(&self) -> String {
        format!("interrupts of {}", self.name)
    }

    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>> {
        let mut before = Vec::new();
        for (irq, _) in &self.irqs {
            let now = fs::read_to_string(list_of(*irq)).map_err(|e| self.refused(*irq, &e))?;
            before.extend(thread::listed(&now));
            let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
            fs::write(list_of(*irq), list.join(",")).map_err(|e| self.refused(*irq, &e))?;
        }
        for (thread, _) in &self.threads {
            before.extend(thread::allowed_cpus_of(*thread)?);
            thread::run_thread_on(*thread, cpus)?;
        }
        before.sort_unstable();
        before.dedup();
        Ok(before)
    }
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        for (irq, list) in &self.irqs {
            let _ = fs::write(list_of(*irq), list);
        }
        for (thread, cpus) in &self.threads {
            let _ = thread::run_thread_on(*thread, cpus);
        }
        if self.is_threaded_by_us {
            let _ = self.folder.write("threaded", "0");
        }
    }
}

fn list_of(irq: u32) -> String {
    format!("/proc/irq/{irq}/smp_affinity_list")
}

/// Returns the irqs of an interface's device that have a handler: its own messages, those of the
/// device below a virtio one, or its shared line.
fn irqs(folder: &NetFolder) -> Vec<u32> {
    let messages = || ["device/msi_irqs", "device/../msi_irqs"].map(|at| folder.names(at));
    let line = || ["device/irq", "device/../irq"].into_iter().filter_map(|at| folder.read(at));
    let found = messages().into_iter().find(|names| !names.is_empty());
    let names = found.unwrap_or_else(|| line().collect());
    let known = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let has_handler = |irq: &u32| handled(&known, *irq);
    names.iter().filter_map(|name| name.parse().ok()).filter(has_handler).collect()
}

/// Returns true if /proc/interrupts names an irq that carries packets, not one for configuration
/// changes only.
fn handled(text: &str, irq: u32) -> bool {
    let line = text
        .lines()
        .find(|line| line.split(':').next().is_some_and(|n| n.trim() == irq.to_string()));
    line.is_some_and(|line| !line.ends_with("-config"))
}

/// Returns the name of a running program that balances interrupts, if there is one.
fn balancer() -> Option<String> {
    let process = processes("irqbalance").into_iter().next()?;
    Some(format!(
        "irqbalance (process {process}) may move interrupts again: systemctl stop irqbalance"
    ))
}

/// Returns the kernel's threads for NAPI of interfaces of that name, in any network namespace.
fn napi_threads(interface: &str) -> Vec<i32> {
    processes(&format!("napi/{interface}-"))
}

/// Returns the processes whose names begin with `name`.
fn processes(name: &str) -> Vec<i32> {
    // Longer names are cut by kernels before 5.17.
    let cut = name.get(..15).unwrap_or(name);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let process = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
        let is_it = comm.starts_with(name) || (comm.trim_end() == cut && cut.len() < name.len());
        is_it.then_some(number)
    };
    let mut all: Vec<i32> = entries.filter_map(process).collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_while_the_guard_is_there() {
        std::thread::spawn(|| {
            let all = thread::allowed_cpus().unwrap();
            let mut pinned = Pinned::new(ThreadPin::current(), &all[..1]).unwrap();
            assert_eq!(
                (thread::allowed_cpus().unwrap(), pinned.before()),
                (all[..1].to_vec(), &all[..])
            );
            let last = all[all.len() - 1];
            pinned.move_to(&[last]).unwrap();
            assert_eq!(thread::current_cpu(), last);
            let e = pinned.move_to(&[60_000]).unwrap_err();
            assert_eq!(e.code, Code::Cpu);
            assert_eq!(thread::allowed_cpus().unwrap(), [last]);
            drop(pinned);
            assert_eq!(thread::allowed_cpus().unwrap(), all);
            let e = Pinned::new(ThreadPin::of(i32::MAX), &[last]).unwrap_err();
            assert!(e.code == Code::System, "{e}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_irq_that_carries_packets_is_told_from_others() {
        let text = "    CPU0 CPU1\n 37:  0 0 PCI-MSIX-0000:00:03.0 0-edge virtio2-config\n \
                    38:  0 9 PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0\nNMI: 0 0 x\n";
        assert_eq!([37, 38, 3, 39].map(|irq| handled(text, irq)), [false, true, false, false]);
        assert!(!handled("", 1));
    }

    /// Returns the number of these irqs on each CPU.
    fn came(irqs: &[(u32, String)]) -> Vec<u64> {
        let text = fs::read_to_string("/proc/interrupts").unwrap();
        // The head names the CPUs that are on line.
        let cpus = text.lines().next().unwrap().split_whitespace().count();
        let mut sums = vec![0; cpus];
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let number = words.next().and_then(|n| n.trim_end_matches(':').parse().ok());
            if irqs.iter().any(|(irq, _)| Some(*irq) == number) {
                sums.iter_mut().zip(words).for_each(|(sum, n)| *sum += n.parse::<u64>().unwrap());
            }
        }
        sums
    }

    /// Checks moving and restoring the interrupts of a real device, if one is named with an address
    /// that is reached through it: `LINERATE_TEST_IRQ=eth0/192.0.2.1`, as root.
    #[test]
    fn the_irqs_of_a_real_device_fire_where_they_were_moved_and_are_put_back() {
        let named = std::env::var("LINERATE_TEST_IRQ").unwrap_or_default();
        let all = thread::allowed_cpus().unwrap();
        let (Some((device, address)), [first, .., last]) = (named.split_once('/'), &all[..]) else {
            return println!("skipped: LINERATE_TEST_IRQ=DEVICE/ADDRESS, on two CPUs, is not set");
        };
        let mut guard = InterruptGuard::of(device).unwrap();
        let lists = |guard: &InterruptGuard| -> Vec<String> {
            let list = |(irq, _): &(u32, String)| fs::read_to_string(list_of(*irq)).unwrap();
            guard.irqs.iter().map(list).collect()
        };
        let (before, irqs) = (lists(&guard), guard.irqs.clone());
        assert!(!irqs.is_empty() && guard.threads().is_empty(), "{}", guard.moved());
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        for cpu in [*first, *last, *first] {
            let _ = guard.pin(&[cpu]).unwrap();
            assert!(lists(&guard).iter().all(|list| list.trim() == cpu.to_string()));
            let (then, until) = (came(&irqs), Instant::now() + Duration::from_secs(20));
            while came(&irqs)[cpu] < then[cpu] + 10 {
                assert!(Instant::now() < until, "CPU {cpu}: {then:?} to {:?}", came(&irqs));
                let _ = socket.send_to(b"x", (address, 9));
                let _ = poll_readable(&[], Some(STEP));
            }
            println!("{} on CPU {cpu}: {then:?} to {:?}", guard.moved(), came(&irqs));
        }
        let e = guard.pin(&[60_000]).unwrap_err();
        assert!(e.code == Code::Cpu && !e.fix.is_empty(), "{e}");
        drop(guard);
        let now: Vec<String> =
            irqs.iter().map(|(irq, _)| fs::read_to_string(list_of(*irq)).unwrap()).collect();
        assert_eq!(now, before);
    }

    #[test]
    fn an_interface_without_interrupts_says_so() {
        let e = InterruptGuard::of("no-such-dev0").unwrap_err();
        assert_eq!(e.code, Code::NoDevice);
    }
}
