//! Tests packet memory above RLIMIT_MEMLOCK. The limit is per process, so this test has its own
//! process.

use linerate_port::{Code, Port};
use linerate_skb::Pool;
use linerate_sys::xdp::is_limit_of_locked_memory;
use linerate_testing::{in_netns, ip, is_xdp_missing, unless};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// A port with rings so short that a small pool suffices.
const PORT: &str = "xdp:v0,ring=64";

/// Takes the privilege to lock more memory than the limit from this process.
fn may_lock_little() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
}

fn limit_to(current: Option<u64>, maximum: Option<u64>) {
    setrlimit(Resource::Memlock, Rlimit { current, maximum }).unwrap();
}

#[test]
fn memory_that_may_not_be_locked_is_refused_with_the_limit_and_what_lifts_it() {
    in_netns(|| {
        ip("link add v0 type veth peer name v1");
        for end in ["v0", "v1"] {
            ip(&format!("link set {end} up"));
        }
        if unless(Port::open("xdp:v0"), is_xdp_missing).is_some() {
            refused_until_lifted();
        }
    });
}

fn refused_until_lifted() {
    let hard = getrlimit(Resource::Memlock).maximum;
    may_lock_little();
    limit_to(Some(64 << 10), hard);
    let pool = Pool::builder().frames(512).build().unwrap();
    let refused = |remedy: &str| {
        let e = Port::open_with(PORT, &pool).unwrap_err();
        assert_eq!(e.code, Code::Memory, "{e:?}");
        assert!(e.what.contains("xdp:v0"), "{e:?}");
        assert!(e.why.contains("RLIMIT_MEMLOCK lets this user lock 64 KiB"), "{e:?}");
        assert!(e.fix.contains("a smaller pool") && e.fix.contains(remedy), "{e:?}");
        assert!(!ip("link show v0").contains("prog/xdp"), "its program stays");
        let ledger = pool.ledger();
        assert_eq!((ledger.difference(), ledger.in_flight), (0, 0), "{ledger}");
    };
    refused(if hard.is_none() { "ulimit -l unlimited" } else { "cap_ipc_lock" });
    limit_to(hard, hard);
    match Port::open_with(PORT, &pool) {
        Ok(port) => drop(port),
        Err(e)
            if hard.is_some_and(|most| most < 4 << 20)
                && e.code == Code::Memory
                && is_limit_of_locked_memory(&e.why) =>
        {
            eprintln!("skipped in part: {e}");
        }
        Err(e) => panic!("{e:?}"),
    }
    limit_to(Some(64 << 10), Some(64 << 10));
    refused("cap_ipc_lock");
    let mut sets = capabilities(None).unwrap();
    sets.effective.insert(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    drop(Port::open_with(PORT, &pool).unwrap());
}
