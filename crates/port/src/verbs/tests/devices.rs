//! The suite on two RDMA devices that reach each other: those of a machine, or two of Soft-RoCE on
//! the ends of a veth.

use linerate_skb::{Code, Error};
use linerate_sys::verbs::Device;

use super::*;
use crate::registry;

/// The words of the reasons where there is no library, and where the kernel has no RDMA.
const LACKS: [&str; 2] = ["is not installed", "this kernel has no RDMA"];

/// Returns the names of two devices whose first ports are active; says why if there are none.
fn two() -> Option<[String; 2]> {
    let is_active = |name: &String| {
        Device::open(name).and_then(|device| device.port(1)).is_ok_and(|port| port.is_active)
    };
    let lacks =
        |e: &Error| e.code == Code::Unsupported && LACKS.iter().any(|no| e.why.contains(no));
    let names = linerate_testing::unless(Device::names(), lacks)?;
    let mut active = names.into_iter().filter(is_active);
    let two = active.next().zip(active.next());
    if two.is_none() {
        eprintln!("skipped: there are no two active RDMA devices");
    }
    two.map(|(near, far)| [near, far])
}

fn on_two(case: Case, options: &'static str) {
    let Some([near, far]) = two() else { return };
    let open = move |pool: &Pool| {
        let at = address();
        let mut far = registry::open(&format!("verbs:{far},listen={at}{options}"), pool)?;
        let mut near = registry::open(&format!("verbs:{near},connect={at}{options}"), pool)?;
        meet(pool, &mut [&mut near, &mut far]);
        Ok(Ends::Pair(near, far))
    };
    let rig = Rig::new(open).ring_frames(4096).patience(Duration::from_secs(60)).works_alone();
    case.on(if options.contains("datagrams") { rig.drops_unread() } else { rig });
}

mod datagrams {
    use super::*;

    crate::conformance!(|case: Case| on_two(case, ",datagrams,rx=512,tx=256"));
}

mod connections {
    use super::*;

    crate::conformance!(|case: Case| on_two(case, ",rx=256,tx=256"));
}

/// Opens two ports that have met on two devices.
fn on_devices(pool: &Pool, options: &str) -> Option<(Opened, Opened)> {
    let [near, far] = two()?;
    let at = address();
    let mut far = registry::open(&format!("verbs:{far},listen={at}{options}"), pool).unwrap();
    let mut near = registry::open(&format!("verbs:{near},connect={at}{options}"), pool).unwrap();
    meet(pool, &mut [&mut near, &mut far]);
    Some((near, far))
}

#[test]
fn a_batch_of_datagrams_and_of_packets_to_a_group_leaves_in_order() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let Some((mut near, mut far)) = on_devices(&pool, ",datagrams,group=239.76.0.1") else {
        return;
    };
    let mut mem = pool.local();
    let all = [(9, 1), (9, 2), (255, 3), (255, 4), (9, 5), (255, 6)];
    let packets = all.map(|(to, n)| packet(&mut mem, to, 1, 200, n));
    send(&mut near, &mut mem, packets);
    assert_eq!(receive(&mut far, &mut mem, 6), [1, 2, 3, 4, 5, 6]);
    assert_eq!(near.queues[0].counters().driver.doorbells, Some(4), "1 2 | 3 4 | 5 | 6");
    // A member does not receive what it has sent itself.
    let back = packet(&mut mem, 1, 9, 200, 7);
    send(&mut far, &mut mem, [back]);
    assert_eq!(receive(&mut near, &mut mem, 1), [7]);
}

#[test]
fn a_batch_on_a_connection_and_to_a_group_arrives_whole_with_a_doorbell_for_32() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let Some((mut near, mut far)) = on_devices(&pool, ",group=239.76.0.2") else {
        return;
    };
    let mut mem = pool.local();
    for n in 0..20 {
        let packets: Vec<_> = (0..64).map(|_| packet(&mut mem, 9, 1, 1500, n)).collect();
        send(&mut near, &mut mem, packets);
        assert_eq!(receive(&mut far, &mut mem, 64), [n; 64]);
    }
    assert_eq!(near.queues[0].counters().driver.doorbells, Some(40));
    let packets = [(9, 1), (255, 2), (9, 3)].map(|(to, n)| packet(&mut mem, to, 1, 200, n));
    send(&mut near, &mut mem, packets);
    let mut came = receive(&mut far, &mut mem, 3);
    came.sort_unstable();
    assert_eq!(came, [1, 2, 3], "a connection and a group are not ordered with each other");
}

#[test]
fn several_queues_of_devices_work_on_threads_of_their_own_while_peers_come_and_go() {
    let Some([near, far]) = two() else { return };
    // Connections only: a datagram may be lost.
    queues::stress(|text, pool| {
        let device = if text.starts_with("listen") { &far } else { &near };
        let spec = Spec::parse(&format!("verbs:{device},{text}"), &["verbs"]).unwrap();
        let config = Config::of(&spec).unwrap();
        let found = device::find(&config).unwrap();
        rdma_queues(&config, &found, pool, device::longest(&config, &found)).unwrap()
    });
}

#[test]
fn a_wait_ends_with_a_packet_of_a_device() {
    use std::os::fd::AsFd;

    let pool = Pool::builder().frames(8192).build().unwrap();
    let Some((mut near, mut far)) = on_devices(&pool, "") else { return };
    let mut mem = pool.local();
    for n in 0..50 {
        while !far.queues[0].arm(crate::Want::Frames) {
            far.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
        }
        let skb = packet(&mut mem, 9, 1, 60, n);
        send(&mut near, &mut mem, [skb]);
        let fd = [far.queues[0].as_fd()];
        let is_woken = linerate_sys::wait::poll_readable(&fd, Some(Duration::from_secs(20)));
        assert!(is_woken.unwrap(), "packet {n}");
        assert_eq!(receive(&mut far, &mut mem, 1), [n]);
    }
}
