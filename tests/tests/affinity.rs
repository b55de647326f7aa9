//! The three affinities: each alone, and all together, changes where its code runs, and is put back.
//!
//! ```text
//!   sender ─ veth ─► NAPI's thread ─► worker ─► ring ─► application
//!                    interrupt        poller            process
//! ```

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linerate::affinity::{InterruptGuard, Pin, Pinned, ThreadPin, WorkerPin};
use linerate::{Batch, Code, Engine, Port, Running, Stage, Turn, Worker};
use linerate_port::thread::allowed_cpus;
use linerate_tests::netns::Netns;
use linerate_tests::or_skip;
use linerate_tests::topology::wait_for_carrier;
use linerate_tests::wait::{SOON, until_true};

/// Packets after which each part has run where it is now.
const PACKETS: u64 = 1_000;

/// Makes a pair whose names no other test has: those of NAPI's threads have no namespace.
fn pair() -> Result<Netns, String> {
    let netns = Netns::new()?;
    netns.try_ip("link add dev affin0 type veth peer name affin1")?;
    for end in ["affin0", "affin1"] {
        netns.ip(&format!("link set dev {end} up"));
    }
    wait_for_carrier(&netns, "affin0");
    wait_for_carrier(&netns, "affin1");
    Ok(netns)
}

/// Counts what reaches the application.
struct Count(Option<Arc<AtomicU64>>);

impl Stage for Count {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        if let Some(count) = &self.0 {
            count.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
    }
}

/// Turns a worker on a thread of the test's own; returns the thread's number, too.
fn turning(mut worker: Worker, ends: &Arc<AtomicBool>) -> (ThreadPin, i32, JoinHandle<()>) {
    let (ends, (tell, told)) = (ends.clone(), channel());
    let thread = thread::spawn(move || {
        tell.send((ThreadPin::current(), linerate_sys::thread::id())).unwrap();
        while !ends.load(Ordering::Relaxed) {
            let turned = worker.turn(Instant::now());
            worker.park(turned, Some(Duration::from_millis(20))).unwrap();
        }
    });
    let (pin, id) = told.recv().unwrap();
    (pin, id, thread)
}

/// Returns the CPU on which a thread last ran.
fn last_cpu(thread: i32) -> usize {
    let own = fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    let stat = own.or_else(|_| fs::read_to_string(format!("/proc/{thread}/stat"))).unwrap();
    // The 39th field; the second, the name, is the only one with a bracket.
    stat.rsplit(')').next().unwrap().split_whitespace().nth(36).unwrap().parse().unwrap()
}

/// Returns whether NAPI of an interface has threads, as its namespace's sysfs says.
fn threaded(netns: &Netns, interface: &str) -> String {
    netns.run(|| {
        let interface = linerate_sys::netif::Interface::open(interface).unwrap();
        linerate_sys::netif::NetFolder::open(&interface).unwrap().read("threaded").unwrap()
    })
}

/// Sends to the pair's other end until it is dropped.
fn send() -> Running {
    let engine = Engine::builder().port("source", "gen:,rate=20kpps,burst=8");
    let engine = engine.port("out", "packet:affin1").wire("source", "out");
    engine.build().unwrap().start().unwrap()
}

#[test]
fn each_affinity_moves_its_own_code_alone_and_together_and_is_put_back() {
    let netns = or_skip!(pair());
    or_skip!(netns.run(|| Port::open("xdp:affin0").map(drop)));
    let all = allowed_cpus().unwrap();
    let [one, other] = [all[0], all[all.len() - 1]];
    if one == other {
        eprintln!("skipped: with one CPU there is nothing to choose");
        return;
    }
    let (count, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let of_stage = count.clone();
    let engine = netns.run(move || {
        let engine = Engine::builder()
            .port("dev", "xdp:affin0")
            .port("near", "ring:app")
            .port("far", "ring:app")
            .port("end", "sink:,blind")
            .wire("dev", "near")
            .wire("far", "end");
        let is_app = move |worker| (worker == 1).then(|| of_stage.clone());
        engine.stage(move |cx| Count(is_app(cx.worker()))).build().unwrap()
    });
    let mut workers = engine.into_workers();
    let (app, poller) = (workers.pop().unwrap(), workers.pop().unwrap());
    let mut poller_pin = WorkerPin::new(&poller.control(), 0);
    let (_, poller_id, poller) = turning(poller, &ends);
    let (mut app_pin, app_id, app) = turning(app, &ends);
    let mut irq = or_skip!(netns.run(|| InterruptGuard::of("affin0")));
    println!("{}, notes {:?}", irq.moved(), irq.notes());
    let napi = irq.threads();
    assert_eq!(napi.len(), 1, "{napi:?}");
    let was = linerate_sys::thread::allowed_cpus_of(napi[0]).unwrap();
    let sending = netns.run(send);
    // All in one place; each alone in the other; together there.
    for [at_irq, at_poller, at_app] in
        [[one; 3], [other, one, one], [one, other, one], [one, one, other], [other; 3]]
    {
        let _ = irq.pin(&[at_irq]).unwrap();
        let _ = poller_pin.pin(&[at_poller]).unwrap();
        let _ = app_pin.pin(&[at_app]).unwrap();
        let before = count.load(Ordering::Relaxed);
        let came = || count.load(Ordering::Relaxed) >= before + PACKETS;
        until_true("packets at the application", SOON, came);
        let ran = [napi[0], poller_id, app_id].map(last_cpu);
        assert_eq!(ran, [at_irq, at_poller, at_app]);
    }
    let e = irq.pin(&[4000]).unwrap_err();
    assert!(e.code == Code::Cpu && e.why.contains("there is no CPU"), "{e}");
    // Everything is as it was. Before Linux 6.17 the threads stay, and sleep.
    assert_eq!(was, all);
    drop(irq);
    assert_eq!(threaded(&netns, "affin0"), "0");
    if let Ok(now) = linerate_sys::thread::allowed_cpus_of(napi[0]) {
        assert_eq!(now, was);
    }
    let before = count.load(Ordering::Relaxed);
    until_true("packets without it", SOON, || count.load(Ordering::Relaxed) > before + PACKETS);
    drop(sending.stop(SOON));
    ends.store(true, Ordering::Relaxed);
    poller.join().unwrap();
    app.join().unwrap();
}

#[test]
fn a_worker_s_guard_puts_it_back() {
    let engine = Engine::builder().port("a", "gen:,rate=1kpps").port("b", "sink:").wire("a", "b");
    let running = engine.build().unwrap().start().unwrap();
    let (control, all) = (running.control(), allowed_cpus().unwrap());
    let pinned = Pinned::new(WorkerPin::new(&control, 0), &all[..1]).unwrap();
    assert_eq!((pinned.before(), running.stats().workers()[0].pinned), (&all[..], Some(all[0])));
    drop(pinned);
    let now = control.set_cpus(0, &all).unwrap().wait(SOON).unwrap();
    assert_eq!(now.before, all);
    let e = Pinned::new(WorkerPin::new(&control, 1), &all).unwrap_err();
    assert_eq!(e.code, Code::Topology);
    running.stop(SOON).check().unwrap();
}

#[test]
fn an_interface_with_no_interrupts_to_move_is_refused_with_the_reason() {
    let netns = or_skip!(Netns::new());
    let e = netns.run(|| InterruptGuard::of("lo").unwrap_err());
    assert!(e.code == Code::Unsupported && e.why.starts_with("it has no irq"), "{e}");
    // What it tried is undone.
    assert_eq!(threaded(&netns, "lo"), "0");
}
