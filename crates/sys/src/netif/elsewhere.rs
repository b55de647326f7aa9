//! The search for an absent interface in other network namespaces, where it usually is.
//!
//! Only namespaces with a name, of `ip netns`, are looked into; those of containers have none.
//!
//! Source: ip-netns(8), setns(2).

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread::{Builder, scope};

use super::{FIND_INTERFACE, Interface};
use crate::error::{Code, Error, Result};
use crate::netns::enter;

/// The folder in which `ip netns` keeps its named namespaces.
const NAMED: &str = "/run/netns";
/// Most namespaces that are searched.
const NAMESPACES_MAX: usize = 256;

/// The results of a search in the named namespaces; searched ones without the interface are left
/// out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    /// Namespaces that have the interface.
    with: Vec<String>,
    /// Namespaces that this process cannot enter.
    closed: Vec<String>,
}

impl Interface {
    /// Finds an interface as [`Interface::open`] does; if it is absent, the error names the other
    /// network namespaces that have an interface of that name. A new thread enters these one by
    /// one, so the calling thread stays in its namespace.
    ///
    /// # Errors
    /// As [`Interface::open`].
    pub fn find(name: &str) -> Result<Interface> {
        Interface::open(name).map_err(|e| Interface::locate(name, e))
    }

    /// Returns the error `e` of an interface that is absent, or was moved away while it was open,
    /// with the other network namespaces that have an interface of that name. Other errors stay as
    /// they are, and so does the error if this namespace has such an interface again.
    ///
    /// Cost: a thread that enters each named namespace; not for the data path.
    #[must_use]
    pub fn locate(name: &str, e: Error) -> Error {
        locate_in(Path::new(NAMED), name, e)
    }
}

/// Returns the error as [`Interface::locate`] does, by the namespaces in `folder`.
fn locate_in(folder: &Path, name: &str, e: Error) -> Error {
    // Another remedy is that of an interface whose fate is known: deleted, or moved away and back.
    let is_absent = e.code == Code::NoDevice && e.fix.ends_with(FIND_INTERFACE);
    match is_absent && Interface::open(name).is_err() {
        true => with_namespaces(e, &look(folder, name)),
        false => e,
    }
}

/// Searches the namespaces in `folder` for the interface.
fn look(folder: &Path, interface: &str) -> Named {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.take(NAMESPACES_MAX).collect();
    if names.is_empty() {
        return Named::default();
    }
    names.sort_unstable();
    let look_into_each = || {
        let mut named = Named::default();
        for name in names {
            match File::open(folder.join(&name)).map(|file| enter(file.as_fd())) {
                Ok(Ok(())) if Interface::open(interface).is_ok() => named.with.push(name),
                Ok(Ok(())) => {}
                _ => named.closed.push(name),
            }
        }
        named
    };
    scope(|scope| {
        let thread = Builder::new().spawn_scoped(scope, look_into_each);
        thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
    })
}

/// Returns the error for an absent interface, with the namespaces where the interface is, or may
/// be.
fn with_namespaces(e: Error, named: &Named) -> Error {
    if let [first, ..] = &named.with[..] {
        let why = format!(
            "it is not here, and one of that name is in namespace {}",
            named.with.join(", ")
        );
        return Error { why, ..e }.fix(format!("ip netns exec {first} PROGRAM …"));
    }
    if named.closed.is_empty() {
        return e;
    }
    let names = named.closed.join(", ");
    let why = format!("{}; it may be in network namespace {names}", e.why);
    Error { why, ..e }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{UnshareFlags, unshare_unsafe};

    use super::*;
    use linerate_testing::{in_netns, ip};

    #[test]
    fn an_interface_elsewhere_is_found_by_the_name_of_its_namespace() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            let folder =
                std::env::temp_dir().join(format!("linerate-named-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            let link = |name: &str, to: &str| {
                std::os::unix::fs::symlink(to, folder.join(name)).unwrap();
            };
            let thread = rustix::thread::gettid().as_raw_nonzero();
            link("east", &format!("/proc/self/task/{thread}/ns/net"));
            link("gone", "/nonexistent");
            let found = look(&folder, "v0");
            let lacks = look(&folder, "v9");
            let absent = || Error::new(Code::NoDevice, "cannot use v0", "gone").fix(FIND_INTERFACE);
            let back = absent().fix("open the port again");
            let here = locate_in(&folder, "v0", absent());
            let lost = absent().fix(format!("open the port again: {FIND_INTERFACE}"));
            let (there, known) = std::thread::scope(|scope| {
                let body = || {
                    // SAFETY: NEWNET only changes which interfaces this thread sees.
                    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
                    let locate = |e| locate_in(&folder, "v0", e);
                    ([locate(absent()), locate(lost)], locate(back.clone()))
                };
                scope.spawn(body).join().unwrap()
            });
            fs::remove_dir_all(&folder).unwrap();
            assert_eq!((here, known), (absent(), back), "it is here, or its fate is known");
            assert!(there.iter().all(|e| e.fix == "ip netns exec east PROGRAM …"), "{there:?}");
            let closed = vec!["gone".to_owned()];
            assert_eq!(found, Named { with: vec!["east".into()], closed: closed.clone() });
            assert_eq!(lacks, Named { with: vec![], closed });
        });
    }

    #[test]
    fn the_error_of_an_absent_interface_says_where_it_is_or_may_be() {
        let absent = || Error::new(Code::NoDevice, "cannot use v0", "absent").fix(FIND_INTERFACE);
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let with = |with: &[&str], closed: &[&str]| {
            with_namespaces(absent(), &Named { with: list(with), closed: list(closed) })
        };
        let e = with(&["east", "west"], &["lab"]);
        assert_eq!(e.why, "it is not here, and one of that name is in namespace east, west");
        assert_eq!(e.fix, "ip netns exec east PROGRAM …");
        let e = with(&[], &["lab"]);
        assert_eq!(
            (e.why.as_str(), e.fix.as_str()),
            ("absent; it may be in network namespace lab", FIND_INTERFACE)
        );
        assert_eq!(with(&[], &[]), absent());
    }
}
