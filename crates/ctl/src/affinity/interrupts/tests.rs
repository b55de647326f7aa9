//! Tests of the guard on folders like the kernel's, and on a real device if one is named.

use super::*;
use linerate_testing::{Scratch, unless};

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

/// Moves the interrupts of a real device, and restores them: only for a device that is named with
/// an address reached through it, `LINERATE_TEST_IRQ=eth0/192.0.2.1`, as root.
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
    // Each queue alone: its irqs move, and those of the others stay.
    for pin in guard.queues().to_vec() {
        let own: Vec<u32> = pin.found().iter().filter_map(irq_of).collect();
        let others = |guard: &InterruptGuard| -> Vec<String> {
            let lists = irqs.iter().zip(lists(guard)).filter(|(irq, _)| !own.contains(irq));
            lists.map(|(_, list)| list).collect()
        };
        let (stay, mut one) = (others(&guard), pin);
        let _ = one.pin(&[*last]).unwrap();
        assert_eq!(others(&guard), stay, "{}", one.name());
        let (then, until) = (came(&own), Instant::now() + Duration::from_secs(20));
        // Of several queues, others may get the interrupts.
        while came(&own)[*last] < then[*last] + 10 && guard.queues().len() == 1 {
            assert!(Instant::now() < until, "{}: {then:?} to {:?}", one.name(), came(&own));
            let _ = socket.send_to(b"x", (address, 9));
            let _ = poll_readable(&[], Some(STEP));
        }
        one.put_back(&[]).unwrap();
        println!("{} alone on CPU {last}: {then:?} to {:?}", one.name(), came(&own));
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

/// Returns the number of an irq.
fn irq_of(was: &Was) -> Option<u32> {
    match was {
        Was::Irq(irq, _) => Some(*irq),
        _ => None,
    }
}

/// Creates folders like the kernel's: a device with two queues, two irqs for each and one for
/// changes, and irqbalance.
fn machine() -> Scratch {
    let at = Scratch::new();
    let write = |file: &str, text: &str| drop(at.file(file, text));
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
    let at = machine();
    let proc = at.0.join("proc");
    let list = |irq: u32| fs::read_to_string(list_of(&proc, irq)).unwrap().trim().to_owned();
    let lists = || [40, 41, 42, 43, 44].map(list);
    let folder = || NetFolder::at(&at.0.join("net")).unwrap();
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
    let (folder_of, away) = (proc.join("irq/44"), at.0.join("away"));
    fs::rename(&folder_of, &away).unwrap();
    assert_eq!(queues[1].pin(&[6]).unwrap_err().code, Code::Cpu);
    fs::rename(&away, &folder_of).unwrap();
    assert_eq!(lists(), ["0", "2,3", "2,3", "2,3", "2,3"]);
    // The same of all queues together; and what can be restored is, beside an irq that cannot.
    fs::rename(&folder_of, &away).unwrap();
    assert_eq!(guard.pin(&[6]).unwrap_err().code, Code::Cpu);
    fs::rename(&away, &folder_of).unwrap();
    assert_eq!(lists(), ["0", "2,3", "2,3", "2,3", "2,3"]);
    let (folder_of, away) = (proc.join("irq/41"), at.0.join("away"));
    fs::rename(&folder_of, &away).unwrap();
    assert_eq!(guard.put_back(&[0, 1]).unwrap_err().code, Code::Cpu);
    fs::rename(&away, &folder_of).unwrap();
    assert_eq!(lists(), ["0", "2,3", "0", "1", "0"]);
    drop(guard);
    assert_eq!(lists(), ["0", "1", "0", "1", "0"]);
    let mut guard = InterruptGuard::at(&proc, folder(), "eth0").unwrap();
    let _ = guard.pin(&[6]).unwrap();
    fs::rename(&folder_of, &away).unwrap();
    guard.end().unwrap();
    fs::rename(&away, &folder_of).unwrap();
    assert_eq!(lists(), ["0", "6", "0", "1", "0"], "an irq that is gone needs nothing");
    let (mut guard, file) =
        (InterruptGuard::at(&proc, folder(), "eth0").unwrap(), list_of(&proc, 41));
    let _ = guard.pin(&[6]).unwrap();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(guard.end().unwrap_err().code, Code::Cpu);
    fs::remove_dir(&file).unwrap();
    fs::write(&file, "1\n").unwrap();
    assert_eq!(lists(), ["0", "1", "0", "1", "0"], "what could be restored is");
    // An irq that cannot be moved is left out, with a note; if none can be moved, that is an error.
    fs::remove_file(list_of(&proc, 44)).unwrap();
    let guard = InterruptGuard::at(&proc, folder(), "eth0").unwrap();
    assert_eq!(guard.moved(), "irqs 41,42,43 of eth0");
    assert!(guard.notes()[1].starts_with("irq 44 of eth0 stays on its CPUs: "));
    fs::remove_dir_all(proc.join("irq")).unwrap();
    let e = InterruptGuard::at(&proc, folder(), "eth0").unwrap_err();
    assert!(e.code == Code::Cpu && e.what.contains("of eth0"), "{e}");
}

#[test]
fn guard_restores_only_what_it_has_moved_and_no_other_program_since() {
    let at = machine();
    let proc = at.0.join("proc");
    let list = |irq: u32| fs::read_to_string(list_of(&proc, irq)).unwrap().trim().to_owned();
    let lists = || [41, 42, 43, 44].map(list);
    let guard = || {
        let folder = NetFolder::at(&at.0.join("net")).unwrap();
        InterruptGuard::at(&proc, folder, "eth0").unwrap()
    };
    let (ends, drops) = (guard(), guard());
    fs::write(list_of(&proc, 41), "7\n").unwrap();
    ends.end().unwrap();
    drop(drops);
    assert_eq!(lists(), ["7", "0", "1", "0"], "they were never moved");
    let guard = guard();
    // A clone moves one queue, as the search does.
    let _ = guard.queues()[1].clone().pin(&[2, 3]).unwrap();
    for (irq, by_another) in [(42, "6\n"), (43, "5\n"), (44, "2-3\n")] {
        fs::write(list_of(&proc, irq), by_another).unwrap();
    }
    guard.end().unwrap();
    // Two lists of the same CPUs are equal.
    assert_eq!(lists(), ["7", "6", "5", "0"]);
}

#[test]
fn threads_that_are_not_known_stay_and_the_irqs_are_moved() {
    let at = machine();
    let folder = NetFolder::at(&at.0.join("net")).unwrap();
    let mut guard = InterruptGuard::at(&at.0.join("proc"), folder, "eth0").unwrap();
    guard.take(own_of(named(&at.0.join("proc"), "eth0"), 2)).unwrap();
    assert_eq!(guard.moved(), "irqs 41,42,43,44 of eth0");
    assert_eq!(guard.notes()[1], format!("NAPI of eth0 stays on its CPUs: {UNKNOWN}"));
    guard.take(Some(vec![thread::id()])).unwrap();
    assert_eq!(guard.threads(), [thread::id()]);
    drop(guard);
}

#[test]
fn recorded_state_is_restored_although_other_threads_have_the_interface_s_name() {
    let at = machine();
    let (proc, net) = (at.0.join("proc"), at.0.join("net"));
    let folder = NetFolder::at(&net).unwrap();
    let restore = |was| put_back_in(&proc, &folder, ["lan0", "eth0"], &was).unwrap();
    fs::write(net.join("threaded"), "1").unwrap();
    assert!(restore(Was::NotThreaded));
    assert_eq!(fs::read_to_string(net.join("threaded")).unwrap(), "0");
    let list = |irq: u32| fs::read_to_string(list_of(&proc, irq)).unwrap().trim().to_owned();
    assert!(restore(Was::Irq(41, "7".into())));
    // This irq reports changes of the configuration: it is never moved.
    assert!(!restore(Was::Irq(40, "7".into())));
    assert_eq!([list(40), list(41), list(42)], ["0", "7", "0"]);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (own, all) = (thread::id(), thread::allowed_cpus().unwrap());
            let was = || Was::Thread(own, all[..1].to_vec());
            assert!(!restore(was()));
            assert_eq!(thread::allowed_cpus().unwrap(), all, "a thread of another name");
            let comm = proc.join(format!("{own}/comm"));
            fs::create_dir(comm.parent().unwrap()).unwrap();
            // The interface is called lan0 now; its threads have the former name.
            fs::write(comm, "napi/eth0-77\n").unwrap();
            let restored = put_back_in(&proc, &folder, ["lan0", "eth0"], &was());
            let Some(restored) = unless(restored, thread::is_filtered) else { return };
            assert!(restored);
            assert_eq!(thread::allowed_cpus().unwrap(), all[..1]);
        });
        thread.join().unwrap();
    });
}

#[test]
fn an_interface_without_interrupts_says_so() {
    for of in [InterruptGuard::of, InterruptGuard::found] {
        assert_eq!(of("no-such-dev0").unwrap_err().code, Code::NoDevice);
    }
}
