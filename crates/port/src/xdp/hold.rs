//! The hold of the interface's NAPI: the kernel leaves the device alone between two polls, so that
//! one wake-up of the port brings several packets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linerate_skb::{Code, Error, Result};
use linerate_sys::netif::{Interface, NapiHold, NapiHoldGuard};

use super::config::Config;
use crate::doctor::Findings;
use crate::doctor::interface::InterfaceInfo;
use crate::driver::Change;
use crate::host::filter::Filter;
use crate::moderation::{DeviceHold, HoldControl};
use crate::units;

/// The shortest hold.
const SHORTEST: Duration = Duration::from_micros(1);
/// The longest hold: a device with a ring of 1024 then loses packets from 100,000 a second on.
const LONGEST: Duration = Duration::from_millis(10);

/// The range of a hold, for errors.
const RANGE: &str = "a time from 1us to 10ms";

/// Reads the value of `hold=`.
pub(super) fn time(text: &str) -> std::result::Result<Duration, String> {
    match units::duration(text)? {
        time if (SHORTEST..=LONGEST).contains(&time) => Ok(time),
        _ => Err(RANGE.into()),
    }
}

/// Returns the requested hold, unless the port receives nothing.
pub(super) fn wanted(config: &Config) -> Option<Duration> {
    config.hold.filter(|_| config.filter != Filter::Nothing)
}

/// The hold of a port's interface, for all its packets. Dropping it restores the former hold.
#[derive(Debug)]
pub(super) struct Held {
    guard: Mutex<NapiHoldGuard>,
    /// The interface's index.
    index: u32,
}

/// Holds `interface` as the port's text asks; without that the hold stays as it is until it is
/// changed. `None` if the port cannot change it.
pub(super) fn open(config: &Config, interface: &Interface) -> Result<Option<Arc<Held>>> {
    let guard = match wanted(config) {
        Some(time) => Some(NapiHold::of_time(time).hold(interface)?),
        None if config.filter == Filter::Nothing => None,
        None => NapiHoldGuard::of(interface).ok(),
    };
    let index = interface.index();
    Ok(guard.map(|guard| Arc::new(Held { guard: Mutex::new(guard), index })))
}

impl Held {
    fn guard(&self) -> MutexGuard<'_, NapiHoldGuard> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HoldControl for Held {
    fn hold(&self) -> Option<DeviceHold> {
        self.guard().now().map(shown)
    }

    fn interface(&self) -> Option<u32> {
        Some(self.index)
    }

    fn check(&self, hold: DeviceHold) -> Result<()> {
        let guard = self.guard();
        match former_of(&guard, hold) {
            Some(_) => Ok(()),
            None => napi_of(hold).map(drop),
        }
    }

    fn set_hold(&self, hold: DeviceHold) -> Result<()> {
        let mut guard = self.guard();
        match former_of(&guard, hold) {
            Some(former) => guard.set(former),
            None => guard.set(napi_of(hold)?),
        }
    }
}

/// Returns the hold that the first change replaced, if `hold` is that: it is restored exactly, also
/// one out of the range of a port.
fn former_of(guard: &NapiHoldGuard, hold: DeviceHold) -> Option<NapiHold> {
    guard.former().filter(|former| shown(*former) == hold)
}

/// Returns the settings of NAPI for a hold.
fn napi_of(hold: DeviceHold) -> Result<NapiHold> {
    let bad = |code, why: String, fix| {
        Err(Error::new(code, format!("cannot set the hold {hold}"), why).fix(fix))
    };
    match hold.time {
        _ if hold.frames.is_some() => {
            let fix = "leave frames= out; moderation fixed has it";
            bad(Code::Unsupported, "NAPI counts no packets".into(), fix)
        }
        Duration::ZERO => Ok(NapiHold::default()),
        time if (SHORTEST..=LONGEST).contains(&time) => Ok(NapiHold::of_time(time)),
        _ => {
            let why = format!("the hold of an xdp port is off, or {RANGE}");
            bad(Code::PortSyntax, why, "hold 250us is usual")
        }
    }
}

/// Returns the hold of NAPI as that of a device.
fn shown(napi: NapiHold) -> DeviceHold {
    DeviceHold { time: napi.time().unwrap_or_default(), frames: None }
}

/// Returns the change that [`open`] will make.
pub(super) fn change(config: &Config) -> Option<Change> {
    let (interface, time) = (config.interface.clone(), wanted(config)?);
    Some(Change::Hold { interface, time })
}

/// Describes the hold of an interface, also one that another program has set.
pub(super) fn describe(interface: &Interface) -> Option<String> {
    let hold = NapiHold::now(interface).ok()?;
    hold.time().map(|_| format!("held for {hold} by NAPI"))
}

/// Reports the hold of the interface; returns false if the port cannot hold it as its text asks.
pub(super) fn examine(config: &Config, of: &InterfaceInfo, found: &mut Findings) -> bool {
    let name = of.interface.name();
    if let Some(held) = describe(&of.interface) {
        found.ok(format!("{name} is {held}: gro_flush_timeout and napi_defer_hard_irqs"));
    }
    let now = wanted(config).map(|_| NapiHold::now(&of.interface));
    if let Some(Err(e)) = &now {
        found.miss(e);
    }
    !matches!(now, Some(Err(_)))
}

#[cfg(test)]
mod tests {
    use linerate_skb::Pool;

    use super::super::queue::tests::open as opened;
    use super::*;
    use crate::QueueOps;
    use crate::host::testing::{in_netns_with_xdp, ip};
    use crate::{Moderation, Port};

    #[test]
    fn times_that_make_no_sense_are_refused() {
        assert_eq!(time("250us"), Ok(Duration::from_micros(250)));
        for bad in ["0us", "11ms", "999ns", "1h", "250", "", "-1us"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn interface_is_held_while_the_port_is_open() {
        in_netns_with_xdp(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            ip("link set v1 up");
            let v0 = Interface::open("v0").unwrap();
            let now = || NapiHold::now(&v0).unwrap().time();
            let port = Port::open("xdp:v0,hold=300us").unwrap();
            assert_eq!(now(), Some(Duration::from_micros(300)));
            assert!(
                port.obtained().mode.contains(", held for 300 us by NAPI"),
                "{}",
                port.obtained()
            );
            let modes = |port: Port| {
                port.into_queues().iter_mut().map(|q| q.moderated().mode).collect::<Vec<_>>()
            };
            assert_eq!(modes(port), [Moderation::Napi]);
            assert_eq!(now(), None);
            let port = Port::open("xdp:v0,hold=300us,moderation=busy").unwrap();
            assert_eq!(modes(port), [Moderation::Busy]);
            let port = Port::open("xdp:v0,hold=300us,write").unwrap();
            assert_eq!(now(), None, "a port that only sends holds nothing");
            assert!(port.obtained().refused.iter().any(|why| why.starts_with("hold: ")));
        });
    }

    /// S1.2.
    #[test]
    fn hold_is_changed_while_the_port_is_open_and_restored_with_its_end() {
        in_netns_with_xdp(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            let v0 = Interface::open("v0").unwrap();
            let former = NapiHold::of_time(Duration::from_micros(70));
            former.set(&v0).unwrap();
            for text in ["v0", "v0,hold=300us"] {
                let pool = Pool::builder().frames(4096).build().unwrap();
                let queue = opened(text, &pool);
                let weak = queue.hold_control().unwrap();
                let hold = weak.upgrade().unwrap();
                assert_eq!(hold.interface(), Some(v0.index()));
                for text in ["1ms", "off", "20us"] {
                    let asked: DeviceHold = text.parse().unwrap();
                    hold.set_hold(asked).unwrap();
                    assert_eq!(hold.hold(), Some(asked));
                    let now = NapiHold::now(&v0).unwrap().time();
                    assert_eq!(now.unwrap_or_default(), asked.time);
                }
                let bad = ["11ms", "500ns", "1ms,frames=8"];
                let codes = [Code::PortSyntax, Code::PortSyntax, Code::Unsupported];
                for (bad, code) in bad.into_iter().zip(codes) {
                    let e = hold.set_hold(bad.parse().unwrap()).unwrap_err();
                    assert_eq!(e.code, code, "{bad}: {e}");
                }
                drop(hold);
                drop(queue);
                assert!(weak.upgrade().is_none());
                assert_eq!(NapiHold::now(&v0).unwrap(), former, "{text}");
            }
            let sender = opened("v0,write", &Pool::builder().frames(4096).build().unwrap());
            assert!(sender.hold_control().is_none(), "a port that only sends holds nothing");
        });
    }

    #[test]
    fn former_hold_that_a_port_cannot_have_is_set_again() {
        in_netns_with_xdp(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            let v0 = Interface::open("v0").unwrap();
            for (time_ns, polls) in [(20_000_000, 3), (500, 1), (50_000, 0)] {
                let former = NapiHold { time_ns, polls };
                former.set(&v0).unwrap();
                let queue = opened("v0", &Pool::builder().frames(4096).build().unwrap());
                let hold = queue.hold_control().unwrap().upgrade().unwrap();
                let shown = hold.hold().unwrap();
                hold.set_hold("1ms".parse().unwrap()).unwrap();
                hold.set_hold(shown).unwrap();
                assert_eq!(NapiHold::now(&v0).unwrap(), former);
            }
        });
    }

    #[test]
    fn port_that_cannot_be_opened_leaves_the_interface_as_it_was() {
        in_netns_with_xdp(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            let v0 = Interface::open("v0").unwrap();
            let first = Port::open("xdp:v0").unwrap();
            Port::open("xdp:v0,hold=1ms").unwrap_err();
            assert_eq!(NapiHold::now(&v0).unwrap().time(), None);
            drop(first);
        });
    }
}
