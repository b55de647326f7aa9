//! A change that a run leaves if it is killed: its kind, as a record has it, and how it is undone.

use std::fmt;
use std::time::Duration;

use linerate::{Change, Code, Registry};
use linerate_ctl::affinity::{InterruptGuard, Was};
use linerate_sys::netif::{DeviceOffload, Interface, NapiHold, Rss};

use super::record::record_locked;
use crate::screen::Screen;

/// Words of the offloads.
const CHECKSUMS: &str = "checksum-offload";
const VLAN_INSERTION: &str = "txvlan-offload";
const VLAN_REMOVAL: &str = "rxvlan-offload";
/// Mark of a table that was the device's default.
const DEFAULT: &str = "/default";

/// The kind of a change, as it is written at the end of a record's line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Left {
    Offload(DeviceOffload),
    Interrupts(Was),
    /// The hold is one of `sets`: the last one, or the one before it if the run was killed
    /// meanwhile.
    Hold {
        sets: Vec<NapiHold>,
        before: NapiHold,
    },
    Rss {
        set: Rss,
        before: Rss,
    },
}

/// The outcome of undoing a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Undone {
    /// The setting is as it was before the run.
    Restored,
    /// Another program has changed this setting since, so it stays as it is.
    Changed(&'static str),
    /// This irq or thread no longer exists.
    Gone(String),
    /// The setting is neither the run's nor the former one; the remedy restores it.
    Unknown(String),
}

impl Left {
    pub(super) fn of(word: &str) -> Option<Left> {
        match word {
            CHECKSUMS => Some(Left::Offload(DeviceOffload::Checksums)),
            VLAN_INSERTION => Some(Left::Offload(DeviceOffload::VlanInsertion)),
            VLAN_REMOVAL => Some(Left::Offload(DeviceOffload::VlanRemoval)),
            word => match word.split_once('=') {
                Some(("hold", holds)) => Left::of_holds(holds),
                Some(("rss", divisions)) => Left::of_divisions(divisions),
                _ => Was::read(word).map(Left::Interrupts),
            },
        }
    }

    /// Reads holds: `250000/1=0/0` is one of 250,000 ns and 1 poll, in place of none;
    /// `250000/1,0/0=20000/2` is that or none, in place of one of 20,000 ns and 2 polls.
    fn of_holds(text: &str) -> Option<Left> {
        let hold = |text: &str| {
            let (time_ns, polls) = text.split_once('/')?;
            Some(NapiHold { time_ns: time_ns.parse().ok()?, polls: polls.parse().ok()? })
        };
        let (sets, before) = text.split_once('=')?;
        let sets = sets.split(',').map(hold).collect::<Option<_>>()?;
        Some(Left::Hold { sets, before: hold(before)? })
    }

    /// Reads two divisions: `0,0/=0,1/6d5a` is a table of two entries that lead to queue 0, with
    /// any key, in place of a table that leads to queues 0 and 1, with a key of two bytes. A table
    /// that was the device's default has `/default` behind the key, but not in older records.
    fn of_divisions(text: &str) -> Option<Left> {
        let division = |text: &str| {
            let (table, key) = text.split_once('/')?;
            let mut rss = Rss::default();
            rss.is_default = key.ends_with(DEFAULT);
            let key = key.strip_suffix(DEFAULT).unwrap_or(key);
            rss.table = table.split(',').map(|queue| queue.parse().ok()).collect::<Option<_>>()?;
            let bytes = key.as_bytes().chunks(2).map(|two| {
                let digits = two.iter().all(u8::is_ascii_hexdigit) && two.len() == 2;
                u8::from_str_radix(std::str::from_utf8(two).ok().filter(|_| digits)?, 16).ok()
            });
            rss.key = bytes.collect::<Option<_>>()?;
            Some(rss)
        };
        let (set, before) = text.split_once('=')?;
        Some(Left::Rss { set: division(set)?, before: division(before)? })
    }

    /// Returns the record of a change that a port is about to make, with the interface's name;
    /// `None` if opening the port will fail, because its present state cannot be read.
    pub(super) fn by(change: Change) -> Option<(String, Left)> {
        match change {
            Change::Offload { interface, which } => Some((interface, Left::Offload(which))),
            Change::Hold { interface, time } => {
                let before = Interface::open(&interface).and_then(|found| NapiHold::now(&found));
                let left = Left::Hold { sets: vec![napi_hold(time)], before: before.ok()? };
                Some((interface, left))
            }
            Change::Rss { interface, table, key } => {
                let before = Interface::open(&interface).and_then(|found| found.rss()).ok()?;
                let mut set = Rss::default();
                (set.table, set.key) = (table, key);
                Some((interface, Left::Rss { set, before }))
            }
        }
    }

    /// Returns true if a port on the other end of a veth makes the change.
    pub(super) fn is_for_other_end(&self) -> bool {
        matches!(self, Left::Offload(DeviceOffload::Checksums | DeviceOffload::VlanInsertion))
    }

    /// Describes the changed state of the interface, and its restored state.
    pub(super) fn descriptions(&self) -> (String, String) {
        match self {
            Left::Offload(which) => {
                (format!("its {which} is off"), format!("its {which} is on again"))
            }
            Left::Interrupts(Was::Irq(irq, cpus)) => {
                (format!("irq {irq} is moved"), format!("irq {irq} is on CPU {cpus} again"))
            }
            Left::Interrupts(Was::NotThreaded) => {
                ("its NAPI has threads".into(), "its NAPI has no threads again".into())
            }
            Left::Interrupts(Was::Thread(thread, cpus)) => {
                let cpus: Vec<_> = cpus.iter().map(usize::to_string).collect();
                let again = format!("NAPI thread {thread} is on CPU {} again", cpus.join(","));
                (format!("NAPI thread {thread} is moved"), again)
            }
            Left::Hold { before, .. } => {
                let again = match before.time() {
                    Some(_) => format!("NAPI holds it for {before} again"),
                    None => "NAPI no longer holds it".into(),
                };
                ("its hold is that of a port".into(), again)
            }
            Left::Rss { .. } => {
                ("its RSS table is that of a port".into(), "its RSS table is the former one".into())
            }
            Left::Interrupts(_) => {
                ("an interrupt moved".into(), "its interrupt is on its former CPU again".into())
            }
        }
    }

    /// Returns false if the interface is restored already, or was changed since; `None` if that is
    /// not known, as for interrupts, whose state is not read. `is_killed` is true if the run ended
    /// without restoring it.
    pub(super) fn is_left(
        &self,
        interface: &Interface,
        is_killed: bool,
    ) -> linerate::Result<Option<bool>> {
        Ok(match self {
            Left::Offload(which) => Some(!interface.offload(*which)?),
            Left::Hold { sets, before } => {
                let now = NapiHold::now(interface)?;
                Some(now != *before && is_of_run(now, sets, *before))
            }
            Left::Rss { set, before } => is_left_of(&interface.rss()?, set, before, is_killed),
            Left::Interrupts(_) => None,
        })
    }

    /// Undoes the change, unless another program has changed the setting since. `former` is the
    /// name that the interface had, which NAPI's threads keep.
    pub(super) fn undo(
        &self,
        interface: &Interface,
        former: &str,
        screen: &Screen,
    ) -> linerate::Result<Undone> {
        let name = interface.name();
        match self {
            Left::Offload(which) if interface.offload(*which) == Ok(true) => Ok(Undone::Restored),
            Left::Offload(which) => {
                screen.change(&format!("restoring the {which} of {name}\n"));
                interface.set_offload(*which, true).map(|()| Undone::Restored)
            }
            Left::Hold { sets, before } => match NapiHold::now(interface)? {
                now if now == *before => Ok(Undone::Restored),
                now if is_of_run(now, sets, *before) => {
                    screen.change(&format!("restoring the hold of {name}\n"));
                    before.set(interface).map(|()| Undone::Restored)
                }
                _ => Ok(Undone::Changed("hold")),
            },
            Left::Rss { set, before } => {
                let now = interface.rss()?;
                if let Some(back) = set.undone(before, &now) {
                    screen.change(&format!("restoring the RSS table of {name}\n"));
                    back.set(interface)?;
                }
                Ok(match is_of_neither(&now, set, before) {
                    true => Undone::Unknown(by_hand(name.as_str(), set, before)),
                    false => Undone::Restored,
                })
            }
            Left::Interrupts(was) => {
                screen.change(&format!("restoring the interrupts of {name}: {was}\n"));
                put_back(name.as_str(), former, was, screen)
            }
        }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Left::Offload(DeviceOffload::Checksums) => f.write_str(CHECKSUMS),
            Left::Offload(DeviceOffload::VlanInsertion) => f.write_str(VLAN_INSERTION),
            Left::Offload(DeviceOffload::VlanRemoval) => f.write_str(VLAN_REMOVAL),
            Left::Interrupts(was) => was.fmt(f),
            Left::Hold { sets, before } => {
                let hold = |hold: &NapiHold| format!("{}/{}", hold.time_ns, hold.polls);
                let sets: Vec<_> = sets.iter().map(hold).collect();
                write!(f, "hold={}={}", sets.join(","), hold(before))
            }
            Left::Rss { set, before } => {
                let division = |rss: &Rss| {
                    let key: String = rss.key.iter().map(|byte| format!("{byte:02x}")).collect();
                    let default = if rss.is_default { DEFAULT } else { "" };
                    format!("{}/{key}{default}", list(&rss.table))
                };
                write!(f, "rss={}={}", division(set), division(before))
            }
        }
    }
}

/// Returns the hold that a port sets for a time, 0 for none.
pub(super) fn napi_hold(time: Duration) -> NapiHold {
    if time.is_zero() { NapiHold::default() } else { NapiHold::of_time(time) }
}

/// Returns true if the time and the number of polls are each one that the run found or set. A run
/// that is killed between the writes of the two leaves one of each.
pub(super) fn is_of_run(now: NapiHold, sets: &[NapiHold], before: NapiHold) -> bool {
    let mut known = sets.to_vec();
    known.push(before);
    known.iter().any(|hold| hold.time_ns == now.time_ns)
        && known.iter().any(|hold| hold.polls == now.polls)
}

/// Returns true if a part of the division that the run has set is now neither the run's nor the
/// former one.
pub(super) fn is_of_neither(now: &Rss, set: &Rss, before: &Rss) -> bool {
    // The default is another table after a change of the number of queues.
    let is_former = now.table == before.table || (now.is_default && before.is_default);
    let is_other_table = now.table != set.table && !is_former;
    let is_other_key = now.key != set.key && now.key != before.key;
    (!set.table.is_empty() && is_other_table) || (!set.key.is_empty() && is_other_key)
}

/// Returns true if a part of the division is the one that the run has set, and not the former one;
/// `None` if one is neither, so that the device may have stored another one than the run set, or if
/// a killed run has written a table that equals the default.
pub(super) fn is_left_of(now: &Rss, set: &Rss, before: &Rss, is_killed: bool) -> Option<bool> {
    match set.undone(before, now) {
        Some(back) if !back.key.is_empty() || back.table != now.table => Some(true),
        // An equal table may be written or be the default: nothing tells which. A run that was not
        // killed has set the default again.
        Some(_) if is_killed => None,
        _ if is_of_neither(now, set, before) => None,
        _ => Some(false),
    }
}

/// Returns the remedy that restores the former division of an interface by hand.
pub(super) fn by_hand(name: &str, set: &Rss, before: &Rss) -> String {
    let bytes: Vec<String> = before.key.iter().map(|byte| format!("{byte:02x}")).collect();
    let key = if set.key.is_empty() { String::new() } else { format!(" hkey {}", bytes.join(":")) };
    let queues = before.table.iter().max().map_or(0, |queue| queue.saturating_add(1));
    let is_even = (0..queues).cycle().zip(&before.table).all(|(even, queue)| even == *queue);
    let of_key = match key.as_str() {
        "" => String::new(),
        key => format!("ethtool -X {name}{key} && "),
    };
    let (table, command) = match is_even {
        // A table that is written no longer follows the number of queues, also if it is even.
        _ if before.is_default => (String::new(), format!("{of_key}ethtool -X {name} default")),
        true => (String::new(), format!("ethtool -X {name}{key} equal {queues}")),
        false => (format!(" ({}{key})", list(&before.table)), format!("ethtool -x {name}")),
    };
    format!(
        "restore the former table{table} by hand, or remove the record to keep the present one: \
         {command}"
    )
}

fn list(queues: &[u32]) -> String {
    queues.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Restores an interrupt of the interface `name`, which had the name `former`. The caller has
/// locked the folder of records.
fn put_back(name: &str, former: &str, was: &Was, screen: &Screen) -> linerate::Result<Undone> {
    let is_there = match InterruptGuard::put_back(name, former, was) {
        // A veth has NAPI only while a port is open: open one to restore the setting.
        Err(e) if e.code == Code::Unsupported => {
            let drivers = Registry::default();
            let driver = drivers.of_links().ok_or(e)?;
            let text = format!("{}:{name},{}", driver.name(), driver.on_machine().link_trial);
            // Dropped after the port, which restores at its end what it has changed.
            let _record = record_locked(
                true,
                "while its interrupts are restored",
                [text.as_str()],
                &drivers,
                screen,
            );
            let _open = linerate::Port::open(&text)?;
            InterruptGuard::put_back(name, former, was)
        }
        done => done,
    }?;
    Ok(match was {
        _ if is_there => Undone::Restored,
        Was::Irq(irq, _) => Undone::Gone(format!("irq {irq}")),
        Was::Thread(thread, _) => Undone::Gone(format!("NAPI thread {thread}")),
        _ => Undone::Gone("its interrupt".into()),
    })
}
