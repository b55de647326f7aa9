//! State of an interface (up, down or gone), tracked without a wake-up while it is up.
//!
//! The state leaves "up" when a call on the device fails. Then, and while the interface is down,
//! the interface itself is queried, at most once in [`QUERY_INTERVAL`]. "Gone" is final: an
//! interface made again under the same name is another one.
//!
//! The descriptor of a TAP still works after its interface was moved to another network namespace,
//! where the interface cannot be queried. Then the descriptor decides: a refused call means down,
//! an error on the descriptor means gone.

use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::netif::{FLAG_RUNNING, FLAG_UP, HARDWARE_ETHERNET, HARDWARE_LOOPBACK, Interface};

use crate::queue::Health;

/// Interval at which an interface that is down is queried.
const QUERY_INTERVAL: Duration = Duration::from_millis(100);
/// Remedy after an interface was deleted. An open port never uses an interface that is made again
/// under the same name.
const OPEN_AGAIN: &str =
    "start the program again, or open the port again, as soon as the interface exists";
/// Length of an Ethernet header and one VLAN tag.
pub(crate) const LINK_HEADER_BYTES: usize = 18;

/// The state of an interface.
pub(crate) struct Link {
    interface: Interface,
    /// True if the device also works after its interface has moved to another namespace.
    by_descriptor: bool,
    health: Health,
    /// Time of the next query, while the interface is down.
    query_at: Option<Instant>,
    /// True if the state has changed and the change is not reported yet.
    news: bool,
}

impl Link {
    /// Opens an interface by its name; fails if it is not up.
    ///
    /// # Errors
    /// Those of [`Interface::open`], and the state of an interface that is not up.
    pub fn open(name: &str) -> Result<Link> {
        let link = Link::made(Interface::open(name)?, false);
        link.health.clone().check().map(|()| link)
    }

    /// Reads the state of an interface whose descriptor outlives a move to another namespace.
    pub fn of_descriptor(interface: Interface) -> Link {
        Link::made(interface, true)
    }

    fn made(interface: Interface, by_descriptor: bool) -> Link {
        let health = Health::Up;
        let mut link = Link { interface, by_descriptor, health, query_at: None, news: false };
        link.look();
        link
    }

    /// Records that the device refused a packet, as devices do that are down. An interface that
    /// cannot be queried, because it is in another namespace, counts as down.
    pub fn refused(&mut self) {
        self.look();
        if self.is_up() && self.by_descriptor && self.interface.flags().is_err() {
            self.turn(Health::Down(down(&self.interface)));
        }
    }

    /// Records that the descriptor has lost its interface.
    pub fn lost(&mut self) {
        self.fail("the interface was deleted", &format!("{OPEN_AGAIN}: ip -br link"));
    }

    /// Records that the device is no longer bound to its interface, although an interface with its
    /// index exists: one that was moved away and is back, because a new one gets another index.
    pub fn moved(&mut self) {
        let why = "the interface was moved to another network namespace and back, so the kernel \
                   unbound the port's socket";
        self.fail(why, "start the program again, or open the port again");
    }

    /// Records that the port's program is no longer on the interface, although one with its index
    /// exists.
    pub fn replaced(&mut self) {
        let why = "the port's XDP program is not attached any more: the interface was deleted or \
                   moved, and another one has its index, or the program was detached";
        self.fail(why, &format!("{OPEN_AGAIN}: ip -br link"));
    }

    fn fail(&mut self, why: &str, fix: &str) {
        let what = format!("cannot use {}", self.interface.name());
        self.turn(Health::Failed(Error::new(Code::NoDevice, what, why).fix(fix)));
    }

    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    pub fn health(&self) -> &Health {
        &self.health
    }

    pub fn is_up(&self) -> bool {
        self.health == Health::Up
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.health, Health::Failed(_))
    }

    /// Returns the time at which the interface must be queried next, for an alarm.
    pub fn query_at(&self) -> Option<Instant> {
        self.query_at
    }

    /// Returns true once after each change.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Returns true if the kernel reports that the interface has no carrier.
    ///
    /// Cost: two syscalls.
    pub fn lacks_carrier(&self) -> bool {
        self.interface.flags().is_ok_and(|flags| flags & FLAG_RUNNING == 0)
    }

    /// Returns a note if the interface has no carrier: the kernel drops packets that are sent, and
    /// reports them as sent.
    ///
    /// Cost: two syscalls.
    pub fn without_carrier(&self) -> Option<String> {
        let name = self.interface.name();
        self.lacks_carrier().then(|| {
            format!("carrier: there is none, and until there is one the kernel drops packets and reports them as sent: ip -d link show {name}")
        })
    }

    /// Returns true if the interface is down and must be queried: once in [`QUERY_INTERVAL`].
    ///
    /// Cost: nothing while it is up; else a clock read.
    #[inline]
    pub fn is_query_due(&self) -> bool {
        self.query_at.is_some_and(|at| Instant::now() >= at)
    }

    /// Queries the interface.
    ///
    /// Cost: two syscalls; three if it is down.
    pub fn look(&mut self) {
        if self.is_gone() {
            return;
        }
        let health = match self.interface.flags() {
            Ok(flags) if flags & FLAG_UP != 0 => Health::Up,
            Ok(_) => Health::Down(down(&self.interface)),
            // The interface is probably in another namespace: treat it as up until the device
            // refuses a packet.
            Err(e) if e.code == Code::NoDevice && self.by_descriptor => Health::Up,
            Err(mut e) if e.code == Code::NoDevice => {
                // Otherwise the error has the name of its namespace.
                if e.why.starts_with("SIOCGIF") {
                    e.why = "the interface was deleted, or moved to another namespace".into();
                    e.fix = format!("{OPEN_AGAIN}: {}", e.fix);
                }
                Health::Failed(e)
            }
            // The state is unknown: do not change it.
            Err(_) => self.health.clone(),
        };
        self.turn(health);
    }

    fn turn(&mut self, health: Health) {
        let down = matches!(health, Health::Down(_));
        self.query_at = if down { Instant::now().checked_add(QUERY_INTERVAL) } else { None };
        self.news |= health != self.health;
        self.health = health;
    }
}

/// Returns the error of an interface that is down, with the remedy; it has both names of a renamed
/// interface.
fn down(interface: &Interface) -> Error {
    let name = interface.present_name();
    let what = format!("cannot use {}", both_names(name.as_str(), interface.name().as_str()));
    Error::new(Code::DeviceDown, what, "the interface is down")
        .fix(format!("ip link set {name} up"))
}

/// Returns the present name of an interface, and behind it the name by which it was opened if it
/// was renamed since.
pub(crate) fn both_names(present: &str, opened: &str) -> String {
    if present == opened { present.into() } else { format!("{present} (it was {opened})") }
}

/// Refuses an interface whose packets do not begin with an Ethernet header; `what` names the failed
/// operation.
///
/// # Errors
/// `E-UNSUPPORTED`, and those of the query.
pub(crate) fn check_ethernet(interface: &Interface, what: impl FnOnce() -> String) -> Result<()> {
    let kind = interface.hardware()?.kind;
    if kind == HARDWARE_ETHERNET || kind == HARDWARE_LOOPBACK {
        return Ok(());
    }
    let why = format!("its packets have no Ethernet header (hardware type {kind})");
    Err(Error::new(Code::Unsupported, what(), why)
        .fix(format!("an interface of link/ether, see: ip link show {}", interface.name())))
}

/// Returns the length of the longest frame that `interface` carries, including a VLAN tag.
pub(crate) fn longest_frame(interface: &Interface) -> Result<usize> {
    Ok(interface.mtu_bytes()? as usize + LINK_HEADER_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{in_netns, ip, veth};

    #[test]
    fn an_interface_that_was_renamed_is_told_by_the_name_that_it_has() {
        in_netns(|| {
            veth(1500);
            let mut link = Link::open("v0").unwrap();
            let mut said = |change: &str| {
                ip(&format!("link set {change}"));
                link.look();
                match link.health() {
                    Health::Down(e) | Health::Failed(e) => format!("{}; {}", e.what, e.fix),
                    _ => "up".to_owned(),
                }
            };
            assert_eq!(said("v0 down"), "cannot use v0; ip link set v0 up");
            assert_eq!(said("v0 name x0"), "cannot use x0 (it was v0); ip link set x0 up");
            assert_eq!(said("x0 up"), "up");
        });
    }

    #[test]
    fn refusal_of_a_device_that_is_up_again_does_not_take_it_down() {
        in_netns(|| {
            veth(1500);
            let mut link = Link::of_descriptor(Interface::open("v0").unwrap());
            link.refused();
            assert_eq!(*link.health(), Health::Up);
            ip("link set v0 down");
            link.refused();
            assert!(matches!(link.health(), Health::Down(_)));
            ip("link set v0 up");
            link.look();
            assert!(link.is_up());
            // For this namespace an interface in another one is gone, too.
            ip("link del v0");
            link.refused();
            assert!(matches!(link.health(), Health::Down(_)));
        });
    }
}
