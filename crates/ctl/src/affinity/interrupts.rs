//! The interrupts of an interface: finds them, moves them together or by queue, and restores their CPUs.
//!
//! ```text
//!   /sys/class/net/X/device/msi_irqs ─► irqs with a handler (/proc/interrupts) ─► smp_affinity_list
//!   NAPI is threaded: netdev-genl, or threads called napi/X-N                  ─► sched_setaffinity(2)
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linerate_port::wait::poll_readable;
use linerate_port::{Code, Error, Result};
use linerate_sys::capability::Capabilities;
use linerate_sys::netif::{Interface, NetFolder};
use linerate_sys::thread;

use super::Pin;
use super::napi::{named, own_of, processes, reported, threads};
use super::queue::{QueuePin, Was, cpus_of, list_of, refused};

/// Longest wait for the kernel to start NAPI's threads.
const SOON: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(1);
/// Reason if NAPI's threads of an interface cannot be told from those of another.
const UNKNOWN: &str = "its NAPI threads cannot be told from others of the same name";

/// A guard of all interrupts of an interface, which can be moved together. Dropping it restores everything: CPUs, and
/// whether NAPI has threads. Drop it while the port is open, because a veth's NAPI may end with the port.
#[derive(Debug)]
#[must_use = "dropping it restores the interrupts"]
pub struct InterruptGuard {
    name: String,
    folder: NetFolder,
    /// Interrupts of each queue, irqs before threads.
    queues: Vec<QueuePin>,
    /// True if this guard made NAPI of the interface threaded.
    is_threaded_by_us: bool,
    notes: Vec<String>,
}

impl InterruptGuard {
    /// Finds an interface's irqs. If it has none, the kernel moves its packets in soft interrupts of the sender's
    /// CPU; then this gives each NAPI instance a thread. The interface is looked up in the calling thread's network
    /// namespace, and its port must be open, because a veth may have no NAPI before.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if the interface has neither irqs nor NAPI, `E-PERM` without CAP_NET_ADMIN, `E-NODEV` if it
    /// does not exist, `E-CPU` if none of its irqs can be moved.
    pub fn of(interface: &str) -> Result<InterruptGuard> {
        let (found, mut guard) = InterruptGuard::look(interface)?;
        if guard.queues.is_empty() {
            guard.have_threads(&found)?;
        }
        Ok(guard)
    }

    /// Finds the interrupts that an interface already has, without starting threads: its irqs, and NAPI's threads if
    /// NAPI is threaded.
    ///
    /// # Errors
    /// Those of [`InterruptGuard::of`].
    pub fn found(interface: &str) -> Result<InterruptGuard> {
        let (_, guard) = InterruptGuard::look(interface)?;
        if guard.queues.is_empty() {
            return Err(guard.unsupported(match guard.is_threaded() {
                true => UNKNOWN,
                false => "it has no irq, and its NAPI has no threads",
            }));
        }
        Ok(guard)
    }

    fn look(interface: &str) -> Result<(Interface, InterruptGuard)> {
        let found = Interface::open(interface)?;
        let mut guard =
            InterruptGuard::at(Path::new("/proc"), NetFolder::open(&found)?, interface)?;
        if guard.is_threaded() {
            let named = || named(Path::new("/proc"), interface);
            let threads = reported(&found).or(own_of(named(), found.rx_queues()? as usize));
            guard.take(threads)?;
        }
        Ok((found, guard))
    }

    /// Returns true if NAPI of the interface has threads.
    fn is_threaded(&self) -> bool {
        self.folder.read("threaded").is_some_and(|now| now != "0")
    }

    /// Finds an interface's irqs in the given `/proc` and the interface's folder in sysfs.
    fn at(proc: &Path, folder: NetFolder, interface: &str) -> Result<InterruptGuard> {
        let mut guard = InterruptGuard {
            name: interface.to_owned(),
            queues: Vec::new(),
            is_threaded_by_us: false,
            notes: balancer(proc).into_iter().collect(),
            folder,
        };
        let mut fixed = Ok(());
        for (irq, queue) in irqs(proc, &guard.folder) {
            // Write the irq's present CPUs again, as a trial: the kernel refuses that too if the controller cannot
            // move the irq.
            let path = list_of(proc, irq);
            let list = fs::read_to_string(&path).map(|list| list.trim().to_owned());
            match list.and_then(|list| fs::write(&path, &list).map(|()| list)) {
                Ok(list) => guard.add(proc, queue, Was::Irq(irq, list)),
                Err(e) => {
                    guard.notes.push(format!("irq {irq} of {interface} stays on its CPUs: {e}"));
                    fixed = Err(refused(interface, irq, &e));
                }
            }
        }
        if guard.queues.is_empty() { fixed.map(|()| guard) } else { Ok(guard) }
    }

    /// Adds an irq to the other irqs of its queue; a NAPI thread gets an entry of its own.
    fn add(&mut self, proc: &Path, queue: usize, was: Was) {
        let is_same = |pin: &&mut QueuePin| {
            pin.queue == queue
                && matches!((&was, &pin.found[..]), (Was::Irq(..), [Was::Irq(..), ..]))
        };
        if let Some(pin) = self.queues.iter_mut().find(is_same) {
            return pin.found.push(was);
        }
        let (proc, interface) = (PathBuf::from(proc), self.name.clone());
        self.queues.push(QueuePin { proc, interface, queue, found: vec![was] });
    }

    /// Adds NAPI's threads, or a note if they are not known.
    fn take(&mut self, threads: Option<Vec<i32>>) -> Result<()> {
        let Some(threads) = threads else {
            self.notes.push(format!("NAPI of {} stays on its CPUs: {UNKNOWN}", self.name));
            return Ok(());
        };
        for (queue, thread) in threads.into_iter().enumerate() {
            let was = Was::Thread(thread, thread::allowed_cpus_of(thread)?);
            self.add(Path::new("/proc"), queue, was);
        }
        Ok(())
    }

    /// Describes the interrupts that are moved, for a reader.
    #[must_use]
    pub fn moved(&self) -> String {
        let join = |all: Vec<String>| all.join(",");
        let threads = join(self.threads().iter().map(i32::to_string).collect());
        let irqs = join(self.irqs().iter().map(u32::to_string).collect());
        match (irqs.as_str(), threads.as_str()) {
            ("", threads) => format!("NAPI threads {threads} of {}", self.name),
            (irqs, "") => format!("irqs {irqs} of {}", self.name),
            (irqs, threads) => format!("irqs {irqs} and NAPI threads {threads} of {}", self.name),
        }
    }

    /// Returns the interrupts of each queue, which can be placed separately. The guard restores them.
    #[must_use]
    pub fn queues(&self) -> &[QueuePin] {
        &self.queues
    }

    /// Returns the original state of everything that the guard may change.
    pub fn was(&self) -> impl Iterator<Item = &Was> {
        self.queues.iter().flat_map(|pin| &pin.found)
    }

    /// Returns the ids of NAPI's threads, if the guard moves threads.
    #[must_use]
    pub fn threads(&self) -> Vec<i32> {
        let thread =
            |was: &Was| if let Was::Thread(thread, _) = was { Some(*thread) } else { None };
        self.was().filter_map(thread).collect()
    }

    fn irqs(&self) -> Vec<u32> {
        let irq = |was: &Was| if let Was::Irq(irq, _) = was { Some(*irq) } else { None };
        self.was().filter_map(irq).collect()
    }

    /// Returns notes on what limits the move: a program that balances interrupts, and irqs that
    /// cannot be moved.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Restores a setting of an interface that a killed program has left, in the calling thread's namespace. An
    /// interrupt that no longer exists is skipped, and so is an irq or a thread of another interface.
    ///
    /// # Errors
    /// `E-NODEV` if the interface does not exist, `E-PERM` without CAP_NET_ADMIN, `E-CPU` if the interrupt cannot be
    /// moved, `E-UNSUPPORTED` if the interface has NAPI only while a port is open.
    pub fn put_back(interface: &str, was: &Was) -> Result<()> {
        let found = Interface::open(interface)?;
        put_back_in(Path::new("/proc"), &NetFolder::open(&found)?, interface, was)
    }

    fn unsupported(&self, why: &str) -> Error {
        unsupported(&self.name, why)
    }

    fn have_threads(&mut self, interface: &Interface) -> Result<()> {
        let why = match self.folder.read("threaded").as_deref() {
            Some("0") => None,
            Some(_) => Some(UNKNOWN),
            None => Some("it has no irq, and NAPI has no threads before Linux 5.12"),
        };
        if let Some(why) = why {
            return Err(self.unsupported(why));
        }
        let others = threads(interface);
        match self.folder.write("threaded", "1") {
            Ok(()) => self.is_threaded_by_us = true,
            Err(e) => return Err(not_threaded(&self.name, &e)),
        }
        let (until, queues) = (Instant::now() + SOON, interface.rx_queues()? as usize);
        loop {
            let mut threads = threads(interface);
            threads.retain(|thread| !others.contains(thread));
            if !threads.is_empty() && threads.len() <= queues {
                return self.take(Some(threads));
            }
            if Instant::now() >= until {
                return Err(self.unsupported(match threads.len() {
                    0 => "it has no irq and no NAPI",
                    _ => UNKNOWN,
                }));
            }
            // The kernel starts the threads some time later, without a notification.
            let _ = poll_readable(&[], Some(STEP));
        }
    }
}

/// Restores a setting of the interface with this folder, if its irq or thread still belongs to it.
fn put_back_in(proc: &Path, folder: &NetFolder, interface: &str, was: &Was) -> Result<()> {
    let is_there = match was {
        Was::NotThreaded => {
            return folder.write("threaded", "0").map_err(|e| not_threaded(interface, &e));
        }
        Was::Irq(irq, _) => irqs(proc, folder).iter().any(|(now, _)| now == irq),
        // Not only among the reported threads: the kernel may not report them to this process, and the record is of
        // this interface.
        Was::Thread(thread, _) => named(proc, interface).iter().any(|(now, _)| now == thread),
    };
    if !is_there {
        return Ok(());
    }
    let (proc, interface, found) = (proc.to_owned(), interface.to_owned(), vec![was.clone()]);
    QueuePin { proc, interface, queue: 0, found }.restore()
}

fn unsupported(interface: &str, why: &str) -> Error {
    let what = format!("cannot move the interrupts of {interface}");
    let fix = format!("open its port first; see: ip -d link show {interface}");
    Error::new(Code::Unsupported, what, why).fix(fix)
}

fn not_threaded(interface: &str, e: &std::io::Error) -> Error {
    // Source: net/core/dev.c, `dev_set_threaded`.
    if e.kind() == std::io::ErrorKind::Unsupported {
        return unsupported(interface, "it has no irq and no NAPI");
    }
    let what = format!("cannot change whether NAPI of {interface} has threads");
    Error::new(Code::Permission, what, e.to_string()).fix(Capabilities::NET_ADMIN.remedy())
}

impl Pin for InterruptGuard {
    fn name(&self) -> String {
        format!("interrupts of {}", self.name)
    }

    /// Moves the interrupts of all queues, or none.
    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>> {
        let mut moved: Vec<(&QueuePin, Vec<Was>)> = Vec::new();
        for pin in &self.queues {
            match pin.move_all(cpus) {
                Ok(before) => moved.push((pin, before)),
                Err(e) => {
                    moved.iter().for_each(|(pin, before)| pin.set_all(before));
                    return Err(e);
                }
            }
        }
        let before: Vec<Was> = moved.into_iter().flat_map(|(_, before)| before).collect();
        Ok(cpus_of(&before))
    }

    /// Restores the interrupts of all queues, also after one that cannot be restored.
    fn put_back(&mut self, _before: &[usize]) -> Result<()> {
        self.queues.iter().map(QueuePin::restore).fold(Ok(()), Result::and)
    }
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        for pin in &self.queues {
            let _ = pin.restore();
        }
        if self.is_threaded_by_us {
            let _ = self.folder.write("threaded", "0");
        }
    }
}

/// Returns the irqs of an interface's device with their queues: the device's own MSI irqs, or those of the device
/// below a virtio device, or the shared interrupt line. Irqs without a handler are left out.
fn irqs(proc: &Path, folder: &NetFolder) -> Vec<(u32, usize)> {
    let messages = || ["device/msi_irqs", "device/../msi_irqs"].map(|at| folder.names(at));
    let line = || ["device/irq", "device/../irq"].into_iter().filter_map(|at| folder.read(at));
    let found = messages().into_iter().find(|names| !names.is_empty());
    let names = found.unwrap_or_else(|| line().collect());
    let known = fs::read_to_string(proc.join("interrupts")).unwrap_or_default();
    let irqs = names.iter().filter_map(|name| name.parse().ok());
    let mut irqs: Vec<(u32, usize)> =
        irqs.filter_map(|irq| Some((irq, handled(&known, irq)?))).collect();
    irqs.sort_unstable_by_key(|(irq, queue)| (*queue, *irq));
    irqs
}

/// Returns the queue of an irq from /proc/interrupts, if the irq carries packets and does not only report
/// configuration changes. Drivers put the queue's number at the end of the irq's name; an irq without a number has
/// queue 0.
fn handled(text: &str, irq: u32) -> Option<usize> {
    let number = irq.to_string();
    let of_irq = |line: &&str| line.split(':').next().is_some_and(|n| n.trim() == number);
    let line = text.lines().find(of_irq).filter(|line| !line.ends_with("-config"))?;
    let name = line.split_whitespace().last()?;
    // Example of a name: mlx5_comp3@pci:0000:3b:00.0
    let (name, is_cut) = name.split_once('@').map_or((name, false), |(name, _)| (name, true));
    let before = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_a_queue = is_cut || before.ends_with(['-', '.', '_']);
    Some(name[before.len()..].parse().ok().filter(|_| is_a_queue).unwrap_or(0))
}

/// Returns a note about the program that balances interrupts, if it runs.
fn balancer(proc: &Path) -> Option<String> {
    let (process, _) = processes(proc, "irqbalance").into_iter().next()?;
    Some(format!(
        "irqbalance (process {process}) may move interrupts again: systemctl stop irqbalance"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_irq_that_carries_packets_is_told_from_others() {
        let text = "    CPU0 CPU1\n 37:  0 0 PCI-MSIX-0000:00:03.0 0-edge virtio2-config\n \
                    38:  0 9 PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0\nNMI: 0 0 x\n";
        assert_eq!([37, 38, 3, 39].map(|irq| handled(text, irq)), [None, Some(0), None, None]);
        assert_eq!(handled("", 1), None);
        for (name, queue) in [
            ("virtio2-output.1", 1),
            ("eth0-TxRx-13", 13),
            ("eth3", 0),
            ("ens5-Tx-Rx-2", 2),
            ("mlx5_comp3@pci:0000:3b:00.7", 3),
            ("e1000-99999999999999999999", 0),
        ] {
            assert_eq!(handled(&format!(" 5:  1 2 PCI-MSIX 1-edge {name}\n"), 5), Some(queue));
        }
    }

    /// Returns how often these irqs occurred on each CPU.
    fn came(irqs: &[u32]) -> Vec<u64> {
        let text = fs::read_to_string("/proc/interrupts").unwrap();
        // The first line names the CPUs that are online.
        let cpus = text.lines().next().unwrap().split_whitespace().count();
        let mut sums = vec![0; cpus];
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let number = words.next().and_then(|n| n.trim_end_matches(':').parse().ok());
            if irqs.iter().any(|irq| Some(*irq) == number) {
                sums.iter_mut().zip(words).for_each(|(sum, n)| *sum += n.parse::<u64>().unwrap());
            }
        }
        sums
    }

    /// Moves the interrupts of a real device, and restores them: only for a device that is named with an address
    /// reached through it, `LINERATE_TEST_IRQ=eth0/192.0.2.1`, as root.
    #[test]
    fn the_irqs_of_a_real_device_fire_where_they_were_moved_and_are_put_back() {
        let named = std::env::var("LINERATE_TEST_IRQ").unwrap_or_default();
        let all = thread::allowed_cpus().unwrap();
        let (Some((device, address)), [first, .., last]) = (named.split_once('/'), &all[..]) else {
            return println!("skipped: LINERATE_TEST_IRQ=DEVICE/ADDRESS, on two CPUs, is not set");
        };
        let mut guard = InterruptGuard::of(device).unwrap();
        let lists = |guard: &InterruptGuard| -> Vec<String> {
            let list = |irq: &u32| fs::read_to_string(list_of(Path::new("/proc"), *irq)).unwrap();
            guard.irqs().iter().map(list).collect()
        };
        let (before, irqs) = (lists(&guard), guard.irqs());
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
        let now: Vec<String> = irqs
            .iter()
            .map(|irq| fs::read_to_string(list_of(Path::new("/proc"), *irq)).unwrap())
            .collect();
        assert_eq!(now, before);
    }

    /// Creates folders like the kernel's: a device with two queues, two irqs for each and one for changes, and
    /// irqbalance.
    fn machine(name: &str) -> PathBuf {
        let at = std::env::temp_dir().join(format!("linerate-{name}-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = at.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let mut interrupts = "    CPU0 CPU1\n".to_owned();
        for (irq, name) in
            [(40, "config"), (41, "input.0"), (42, "output.0"), (43, "input.1"), (44, "output.1")]
        {
            interrupts += &format!(" {irq}: 0 0 PCI-MSIX-0000 0-edge virtio7-{name}\n");
            write(&format!("net/device/msi_irqs/{irq}"), "msix\n");
            write(&format!("proc/irq/{irq}/smp_affinity_list"), &format!("{}\n", irq % 2));
        }
        write("net/device/msi_irqs/99", "msix\n");
        write("proc/interrupts", &interrupts);
        write("proc/812/comm", "irqbalance\n");
        for (thread, id) in [(70, 12), (71, 9), (72, 10)] {
            write(&format!("proc/{thread}/comm"), &format!("napi/eth0-{id}\n"));
        }
        at
    }

    #[test]
    fn irqs_are_moved_by_queue_and_each_is_put_back_where_it_was() {
        let at = machine("irqs");
        let proc = at.join("proc");
        let list = |irq: u32| fs::read_to_string(list_of(&proc, irq)).unwrap().trim().to_owned();
        let lists = || [40, 41, 42, 43, 44].map(list);
        let folder = || NetFolder::at(&at.join("net")).unwrap();
        let mut guard = InterruptGuard::at(&proc, folder(), "eth0").unwrap();
        assert_eq!(guard.moved(), "irqs 41,42,43,44 of eth0");
        assert!(guard.notes()[0].starts_with("irqbalance (process 812)"), "{:?}", guard.notes());
        let mut queues = guard.queues().to_vec();
        let names: Vec<_> = queues.iter().map(|pin| (pin.queue(), pin.name())).collect();
        assert_eq!(names, [(0, "irq 41,42 of eth0".into()), (1, "irq 43,44 of eth0".into())]);
        assert_eq!(queues[1].pin(&[5]).unwrap(), [0, 1]);
        assert_eq!(lists(), ["0", "1", "0", "5", "5"]);
        queues[1].put_back(&[0, 1]).unwrap();
        assert_eq!(lists(), ["0", "1", "0", "1", "0"]);
        assert_eq!(guard.pin(&[2, 3]).unwrap(), [0, 1]);
        assert_eq!(lists(), ["0", "2,3", "2,3", "2,3", "2,3"]);
        // Both irqs of a queue are moved, or none: a CPU may have a free vector for the first one only.
        let (folder_of, away) = (proc.join("irq/44"), at.join("away"));
        fs::rename(&folder_of, &away).unwrap();
        assert_eq!(queues[1].pin(&[6]).unwrap_err().code, Code::Cpu);
        fs::rename(&away, &folder_of).unwrap();
        assert_eq!(lists(), ["0", "2,3", "2,3", "2,3", "2,3"]);
        // The same of all queues together; and what can be restored is, beside an irq that cannot.
        fs::rename(&folder_of, &away).unwrap();
        assert_eq!(guard.pin(&[6]).unwrap_err().code, Code::Cpu);
        fs::rename(&away, &folder_of).unwrap();
        assert_eq!(lists(), ["0", "2,3", "2,3", "2,3", "2,3"]);
        let (folder_of, away) = (proc.join("irq/41"), at.join("away"));
        fs::rename(&folder_of, &away).unwrap();
        assert_eq!(guard.put_back(&[0, 1]).unwrap_err().code, Code::Cpu);
        fs::rename(&away, &folder_of).unwrap();
        assert_eq!(lists(), ["0", "2,3", "0", "1", "0"]);
        drop(guard);
        assert_eq!(lists(), ["0", "1", "0", "1", "0"]);
        // An irq that cannot be moved is left out, with a note; if none can be moved, that is an error.
        fs::remove_file(list_of(&proc, 44)).unwrap();
        let guard = InterruptGuard::at(&proc, folder(), "eth0").unwrap();
        assert_eq!(guard.moved(), "irqs 41,42,43 of eth0");
        assert!(guard.notes()[1].starts_with("irq 44 of eth0 stays on its CPUs: "));
        fs::remove_dir_all(proc.join("irq")).unwrap();
        let e = InterruptGuard::at(&proc, folder(), "eth0").unwrap_err();
        assert!(e.code == Code::Cpu && e.what.contains("of eth0"), "{e}");
        fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn threads_that_are_not_known_stay_and_the_irqs_are_moved() {
        let at = machine("both");
        let folder = NetFolder::at(&at.join("net")).unwrap();
        let mut guard = InterruptGuard::at(&at.join("proc"), folder, "eth0").unwrap();
        guard.take(own_of(named(&at.join("proc"), "eth0"), 2)).unwrap();
        assert_eq!(guard.moved(), "irqs 41,42,43,44 of eth0");
        assert_eq!(guard.notes()[1], format!("NAPI of eth0 stays on its CPUs: {UNKNOWN}"));
        guard.take(Some(vec![thread::id()])).unwrap();
        assert_eq!(guard.threads(), [thread::id()]);
        drop(guard);
        fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn recorded_state_is_restored_although_other_threads_have_the_interface_s_name() {
        let at = machine("undo");
        let (proc, net) = (at.join("proc"), at.join("net"));
        let folder = NetFolder::at(&net).unwrap();
        let restore = |was| put_back_in(&proc, &folder, "eth0", &was).unwrap();
        fs::write(net.join("threaded"), "1").unwrap();
        restore(Was::NotThreaded);
        assert_eq!(fs::read_to_string(net.join("threaded")).unwrap(), "0");
        let list = |irq: u32| fs::read_to_string(list_of(&proc, irq)).unwrap().trim().to_owned();
        restore(Was::Irq(41, "7".into()));
        // This irq reports changes of the configuration: it is never moved.
        restore(Was::Irq(40, "7".into()));
        assert_eq!([list(40), list(41), list(42)], ["0", "7", "0"]);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let (own, all) = (thread::id(), thread::allowed_cpus().unwrap());
                let was = || Was::Thread(own, all[..1].to_vec());
                restore(was());
                assert_eq!(thread::allowed_cpus().unwrap(), all, "a thread of another name");
                let comm = proc.join(format!("{own}/comm"));
                fs::create_dir(comm.parent().unwrap()).unwrap();
                fs::write(comm, "napi/eth0-77\n").unwrap();
                restore(was());
                assert_eq!(thread::allowed_cpus().unwrap(), all[..1]);
            });
            thread.join().unwrap();
        });
        fs::remove_dir_all(at).unwrap();
    }

    #[test]
    fn an_interface_without_interrupts_says_so() {
        for of in [InterruptGuard::of, InterruptGuard::found] {
            assert_eq!(of("no-such-dev0").unwrap_err().code, Code::NoDevice);
        }
    }
}
