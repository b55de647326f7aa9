//! The three affinities: each of them, and all together, change where their code runs, and are
//! restored.
//!
//! ```text
//!   sender ─ veth ─► NAPI's thread ─► worker ─► ring ─► application
//!                    interrupt        poller            process
//! ```

use std::io::ErrorKind;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linerate::affinity::{InterruptGuard, Pin, PinGuard, ThreadPin, WorkerPin};
use linerate::placement::EngineGauge;
use linerate::{Batch, Code, Engine, Port, Running, Stage, Turn, Worker};
use linerate_port::clock::cpu_time;
use linerate_port::thread::{allowed_cpus, allowed_cpus_of};
use linerate_sys::netif::{Interface, NetFolder};
use linerate_tests::command::linerate;
use linerate_tests::netns::Netns;
use linerate_tests::topology::wait_for_carrier;
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{available, may_pin, or_skip};
use perf_event::events::Software;
use perf_event::{Builder, Counter};
use rustix::process::Signal;

/// Packets after which each part has run where it is now.
const PACKETS: u64 = 1_000;
/// Moves of interrupt, worker and application under load.
const MOVES: usize = 10_000;

/// Creates a pair of interfaces with names that no other test has, because the names of NAPI's
/// threads are not per namespace.
fn pair(ends: [&str; 2]) -> Result<Netns, String> {
    let netns = Netns::new()?;
    netns.try_ip(&format!("link add dev {} type veth peer name {}", ends[0], ends[1]))?;
    for end in ends {
        netns.ip(&format!("link set dev {end} up"));
    }
    for end in ends {
        wait_for_carrier(&netns, end);
    }
    Ok(netns)
}

/// A stage that counts the packets that reach the application.
struct Count(Option<Arc<AtomicU64>>);

impl Stage for Count {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        if let Some(count) = &self.0 {
            count.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
    }
}

/// Turns a worker on a thread of the test; returns the thread's pin, its id and its handle.
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

/// Starts to trace where `thread` runs: returns a counter of its run time for each of `cpus`, which
/// the kernel updates at each switch of threads.
///
/// # Errors
/// The reason to skip: the kernel refuses to trace.
fn traced(thread: i32, cpus: &[usize]) -> Result<Vec<Counter>, String> {
    let counter = |cpu: &usize| {
        let mut time = Builder::new(Software::TASK_CLOCK);
        time.observe_pid(thread).one_cpu(*cpu).include_kernel().enabled(true).build()
    };
    cpus.iter().map(counter).collect::<std::io::Result<_>>().map_err(|e| {
        let reasons = [ErrorKind::PermissionDenied, ErrorKind::NotFound, ErrorKind::Unsupported];
        let is_reason = reasons.contains(&e.kind());
        assert!(is_reason, "this is no reason to skip: {e}");
        format!("a thread cannot be traced: {e}")
    })
}

/// Returns the CPUs of `all` on which a thread has run since its trace began.
fn ran_on(counters: Vec<Counter>, all: &[usize]) -> Vec<usize> {
    let has_run = |mut counter: Counter| counter.read().unwrap() > 0;
    let ran = counters.into_iter().map(has_run).zip(all);
    ran.filter_map(|(has_run, cpu)| has_run.then_some(*cpu)).collect()
}

/// Returns the packets that the kernel has dropped on an interface, of either direction.
fn dropped(interface: &str) -> u64 {
    let folder = folder(interface);
    let count = |file: &str| folder.read(file).unwrap().parse::<u64>().unwrap();
    count("statistics/rx_dropped") + count("statistics/tx_dropped")
}

/// Returns the sysfs value that tells if NAPI of an interface has threads.
fn threaded(netns: &Netns, interface: &str) -> String {
    netns.run(|| folder(interface).read("threaded").unwrap())
}

fn folder(interface: &str) -> NetFolder {
    NetFolder::open(&Interface::open(interface).unwrap()).unwrap()
}

/// Makes NAPI of an interface threaded.
///
/// # Errors
/// The reason to skip: the kernel is older than Linux 5.12, or /sys is read-only.
fn have_threads(interface: &str) -> Result<(), String> {
    match folder(interface).write("threaded", "1") {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ReadOnlyFilesystem) => {
            Err(format!("NAPI has no threads: {e}"))
        }
        Err(e) => panic!("this is no reason to skip: {e}"),
        Ok(()) => Ok(()),
    }
}

/// Returns the guard of interrupts that are NAPI's threads.
///
/// # Errors
/// As [`have_threads`].
fn unless_old(guard: linerate::Result<InterruptGuard>) -> Result<InterruptGuard, String> {
    guard.map_err(|e| {
        let reasons = ["before Linux 5.12", "Read-only file system"];
        let is_reason = reasons.iter().any(|words| e.why.contains(words));
        assert!(is_reason, "this is no reason to skip: {e:?}");
        e.to_string()
    })
}

/// Sends to the other end of a pair until the result is dropped.
fn send(to: &str) -> Running {
    let engine = Engine::builder().port("source", "gen:,rate=20kpps,burst=8");
    let engine = engine.port("out", &format!("packet:{to}")).wire("source", "out");
    engine.build().unwrap().start().unwrap()
}

#[test]
fn each_affinity_moves_its_own_code_alone_and_together_and_is_put_back() {
    or_skip!(may_pin());
    let netns = or_skip!(pair(["affin0", "affin1"]));
    or_skip!(available(netns.run(|| Port::open("xdp:affin0").map(drop))));
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
    let mut irq = or_skip!(netns.run(|| unless_old(InterruptGuard::of("affin0"))));
    println!("{}, notes {:?}", irq.moved(), irq.notes());
    let napi = irq.threads();
    assert_eq!(napi.len(), 1, "{napi:?}");
    drop(or_skip!(traced(poller_id, &all).and(traced(napi[0], &all))));
    let was = linerate_sys::thread::allowed_cpus_of(napi[0]).unwrap();
    let sending = netns.run(|| send("affin1"));
    // All in one place; each alone in the other; together there.
    for [at_irq, at_poller, at_app] in
        [[one; 3], [other, one, one], [one, other, one], [one, one, other], [other; 3]]
    {
        let _ = irq.pin(&[at_irq]).unwrap();
        let _ = poller_pin.pin(&[at_poller]).unwrap();
        let _ = app_pin.pin(&[at_app]).unwrap();
        let traces = [napi[0], poller_id, app_id].map(|thread| traced(thread, &all).unwrap());
        let before = count.load(Ordering::Relaxed);
        let came = || count.load(Ordering::Relaxed) >= before + PACKETS;
        until_true("packets at the application", SOON, came);
        // Each ran, and nowhere else.
        let ran = traces.map(|counters| ran_on(counters, &all));
        assert_eq!(ran, [at_irq, at_poller, at_app].map(|cpu| vec![cpu]));
    }
    let e = irq.pin(&[4000]).unwrap_err();
    assert!(e.code == Code::Cpu && e.why.contains("there is no CPU"), "{e}");
    // Everything is restored. Before Linux 6.17 the threads remain, and sleep.
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
fn ten_thousand_moves_of_interrupt_worker_and_application_lose_and_reorder_nothing() {
    or_skip!(may_pin());
    let netns = or_skip!(pair(["affin8", "affin9"]));
    or_skip!(available(netns.run(|| Port::open("xdp:affin8").map(drop))));
    let all = allowed_cpus().unwrap();
    if all.len() == 1 {
        return eprintln!("skipped: with one CPU there is nothing to choose");
    }
    let running = netns.run(|| {
        let engine = Engine::builder().port("dev", "xdp:affin8").port("near", "ring:app8");
        let engine = engine.port("far", "ring:app8").port("end", "sink:");
        engine.wire("dev", "near").wire("far", "end").build().unwrap().start().unwrap()
    });
    let mut irq = or_skip!(netns.run(|| unless_old(InterruptGuard::of("affin8"))));
    let control = running.control();
    let [mut poller, mut app] = [0, 1].map(|worker| WorkerPin::new(&control, worker));
    let sending = netns.run(|| send("affin9"));
    let losses =
        || ["affin8", "affin9"].map(|name| netns.run(|| dropped(name))).iter().sum::<u64>();
    let lost_before = losses();
    for i in 0..MOVES {
        let cpu = [all[i / 3 % all.len()]];
        let _ = match i % 3 {
            0 => irq.pin(&cpu).unwrap(),
            1 => poller.pin(&cpu).unwrap(),
            _ => app.pin(&cpu).unwrap(),
        };
        // Packets arrive between two moves.
        thread::sleep(Duration::from_micros(200));
    }
    let sent = sending.stop(SOON);
    let sent_packets = sent.ports[1].counts.tx_packets;
    thread::sleep(Duration::from_millis(100));
    let lost = losses() - lost_before;
    drop(irq);
    let received = running.stop(SOON);
    sent.check().unwrap();
    received.check().unwrap();
    let verified = received.ports[3].verified.unwrap();
    let faults = (verified.duplicated, verified.reordered, verified.corrupted);
    assert_eq!(faults, (0, 0, 0), "{verified:?}");
    // The kernel counts the packets for which it had no room; no other packet is missing. A veth
    // also counts those that the socket had no room for.
    let (missed, rx_missed) = (sent_packets - verified.packets, received.ports[0].counts.rx_missed);
    let is_counted = missed == lost || missed == lost + rx_missed;
    assert!(is_counted, "lost {lost}, missed {rx_missed}\n{received}\n{sent}");
    assert!(verified.packets > 2 * MOVES as u64 && 20 * missed <= sent_packets, "{received}");
}

#[test]
fn a_search_moves_napi_s_thread_with_the_worker_and_its_guard_puts_it_back() {
    or_skip!(may_pin());
    let netns = or_skip!(pair(["affin2", "affin3"]));
    let all = allowed_cpus().unwrap();
    if all.len() == 1 {
        return eprintln!("skipped: with one CPU there is nothing to choose");
    }
    let engine = netns.run(|| {
        let engine = Engine::builder().port("dev", "xdp:affin2").port("end", "sink:,blind");
        engine.wire("dev", "end").build()
    });
    let engine = or_skip!(available(engine));
    // An interface gets no threads without a request.
    let e = netns.run(|| InterruptGuard::found("affin2").unwrap_err());
    assert!(e.code == Code::Unsupported && e.why.contains("its NAPI has no threads"), "{e}");
    assert_eq!(threaded(&netns, "affin2"), "0");
    or_skip!(netns.run(|| have_threads("affin2")));
    let guard = netns.run(|| InterruptGuard::found("affin2").unwrap());
    let napi = guard.threads()[0];
    let (running, sending) = (engine.start().unwrap(), netns.run(|| send("affin3")));
    let (seen, over) = (Arc::<Mutex<Vec<Vec<usize>>>>::default(), Arc::default());
    let search = || {
        let gauge = EngineGauge::new(&running.control(), running.stats(), &over).interrupts(&guard);
        let seen = seen.clone();
        let meter = move || {
            seen.lock().unwrap().push(allowed_cpus_of(napi).unwrap());
            cpu_time().as_secs_f64() * 1e9
        };
        gauge.meter("ns", Box::new(meter)).search().unwrap()
    };
    // On a busy machine too few packets may pass at first.
    let mut report = search();
    until_true("enough packets to judge by", SOON, || {
        report.found.is_some() || {
            report = search();
            false
        }
    });
    println!("{report}");
    assert_eq!(report.names, ["worker 0".into(), format!("NAPI thread {napi} of affin2")]);
    let (seen, places) = (seen.lock().unwrap(), report.found.unwrap().places);
    assert!(seen.contains(&all) && all[..2].iter().all(|cpu| seen.contains(&vec![*cpu])));
    let placed = places[1].map_or(all.clone(), |cpu| vec![cpu]);
    assert_eq!(allowed_cpus_of(napi).unwrap(), placed);
    drop(guard);
    assert_eq!((allowed_cpus_of(napi).unwrap(), threaded(&netns, "affin2")), (all, "1".into()));
    drop(sending.stop(SOON));
    running.stop(SOON).check().unwrap();
}

/// Returns the output of `linerate doctor --undo` in a namespace.
fn undo(netns: &Netns) -> String {
    let mut command = Command::new(linerate());
    command.args(["doctor", "--undo"]);
    let told = netns.start(command).finish(SOON);
    assert_eq!(told.code(), 0, "{told:?}");
    told.stdout
}

#[test]
fn interrupts_that_a_killed_search_has_moved_are_put_back_by_doctor() {
    or_skip!(may_pin());
    let netns = or_skip!(pair(["affin4", "affin5"]));
    or_skip!(available(netns.run(|| Port::open("xdp:affin4").map(drop))));
    let all = allowed_cpus().unwrap();
    if all.len() == 1 {
        return eprintln!("skipped: with one CPU there is nothing to choose");
    }
    let sending = netns.run(|| send("affin5"));
    let forward = |port: &str, place: &str| {
        let mut command = Command::new(linerate());
        command.args(["forward", port, "sink:blind", "--place", place, "--for", "120s"]);
        netns.start(command)
    };
    // Threads that the run started are removed, at its end and by the undo after a kill.
    for signal in [Signal::TERM, Signal::KILL] {
        let run = forward("xdp:affin4", "napi");
        until_true("threads", SOON, || threaded(&netns, "affin4") == "1");
        run.signal(signal);
        let done = run.finish(SOON);
        assert!(done.stderr.contains("note: NAPI of affin4 gets threads"), "{done:?}");
        assert_eq!(threaded(&netns, "affin4") == "1", signal == Signal::KILL);
    }
    assert!(undo(&netns).contains("affin4: its NAPI has no threads again"));
    assert_eq!(threaded(&netns, "affin4"), "0");
    // Existing threads are moved and restored. A veth has NAPI while a port of xdp is open.
    let _open = netns.run(|| Port::open("xdp:affin4,icmp").unwrap());
    let run = forward("packet:affin4", "auto");
    until_true("a run", SOON, || run.stderr().contains("--place napi starts NAPI threads"));
    run.signal(Signal::TERM);
    let _ = run.finish(SOON);
    or_skip!(netns.run(|| have_threads("affin4")));
    let napi = netns.run(|| InterruptGuard::found("affin4").unwrap().threads()[0]);
    let is_moved = || allowed_cpus_of(napi).unwrap().len() == 1;
    for _ in 0..20 {
        let run = forward("packet:affin4", "auto");
        until_true("a thread that is moved", 3 * SOON, is_moved);
        run.signal(Signal::KILL);
        let done = run.finish(SOON);
        let told = format!("note: NAPI threads {napi} of affin4 may move to other CPUs");
        assert!(done.stderr.contains(&told), "{done:?}");
        // The run may have restored it just before.
        if is_moved() {
            let told = undo(&netns);
            assert!(told.contains(&format!("affin4: NAPI thread {napi} is on CPU")), "{told}");
            assert_eq!(allowed_cpus_of(napi).unwrap(), all);
            assert!(!undo(&netns).contains(&format!("NAPI thread {napi}")));
            drop(sending.stop(SOON));
            return;
        }
        let _ = undo(&netns);
    }
    panic!("no killed search has left a thread moved");
}

/// In another PID namespace, the kernel's numbers of NAPI's threads are not known, as before Linux
/// 6.8.
#[test]
fn threads_of_the_administrator_that_cannot_be_identified_stay_on() {
    let netns = or_skip!(pair(["affin6", "affin7"]));
    // A veth has NAPI while a port of xdp is open.
    let _open = or_skip!(available(netns.run(|| Port::open("xdp:affin6,icmp"))));
    or_skip!(netns.run(|| have_threads("affin6")));
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(linerate());
    command.args(["forward", "packet:affin6", "sink:blind", "--place", "napi", "--for", "300ms"]);
    let done = netns.start(command).finish(SOON);
    assert!(!done.stderr.contains("gets threads"), "{done:?}");
    assert!(done.stderr.contains("its NAPI threads cannot be told from others"), "{done:?}");
    assert_eq!(threaded(&netns, "affin6"), "1");
}

#[test]
fn interface_without_napi_is_not_advised_the_option_that_was_given() {
    let netns = or_skip!(Netns::new());
    netns.ip("link set dev lo up");
    for (place, fix) in [("napi", "(open its port first"), ("auto", "(--place napi starts")] {
        let mut command = Command::new(linerate());
        command.args(["forward", "packet:lo", "sink:blind", "--for", "300ms", "--place", place]);
        let done = netns.start(command).finish(SOON);
        assert!(done.stderr.contains(fix), "{done:?}");
    }
}

#[test]
fn a_worker_s_guard_puts_it_back() {
    or_skip!(may_pin());
    let engine = Engine::builder().port("a", "gen:,rate=1kpps").port("b", "sink:").wire("a", "b");
    let running = engine.build().unwrap().start().unwrap();
    let (control, all) = (running.control(), allowed_cpus().unwrap());
    let pinned = PinGuard::new(WorkerPin::new(&control, 0), &all[..1]).unwrap();
    assert_eq!((pinned.before(), running.stats().workers()[0].pinned), (&all[..], Some(all[0])));
    drop(pinned);
    let now = control.set_cpus(0, &all).unwrap().wait(SOON).unwrap();
    assert_eq!(now.before, all);
    let e = PinGuard::new(WorkerPin::new(&control, 1), &all).unwrap_err();
    assert_eq!(e.code, Code::Topology);
    running.stop(SOON).check().unwrap();
}

#[test]
fn an_interface_with_no_interrupts_to_move_is_refused_with_the_reason() {
    let netns = or_skip!(Netns::new());
    let e = netns.run(|| InterruptGuard::of("lo").unwrap_err());
    assert!(e.code == Code::Unsupported && e.why.starts_with("it has no irq"), "{e}");
    // The trial on `lo` is undone.
    assert_eq!(threaded(&netns, "lo"), "0");
}
