//! The rate of an honest client beside a hundred hostile ones, which act at the same time and all
//! the time.
//!
//! ```text
//!                           this process                   a process in a cgroup, one worker
//!   honest client ────────────────────────────────────────► port 0
//!   40 hostile clients that ask for admission ────────────► port 0, which is taken
//!   50 hostile clients that act without admission ────────► port 0
//!   10 hostile clients that are admitted, and then act ───► port 1
//! ```
//!
//! All of them share the CPUs, so the hostile clients take CPU time from the honest one even if
//! they cost its server nothing. For comparison they also act on another process with the same
//! ports. The difference of the two rates is what the server loses.
//!
//! `cargo test -p linerate-port --lib -- --ignored --nocapture memif::tests::crowd`

use std::fs;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use linerate_sys::wait::poll_readable;
use rustix::time::{ClockId, clock_gettime};

use super::cgroup::{MEMORY, Victim, be_hostile, is_victim};
use super::neighbours::{LONG, Random, admitted_while, connect, pool, serve};
use super::*;
use crate::queue::{Queue, Want};

const CLIENTS: usize = 100;
const ROUNDS: usize = 21;
/// Short, because which CPUs two programs get changes over seconds.
const WINDOW: Duration = Duration::from_millis(300);
/// Smallest acceptable rate beside hostile clients, as a share of the rate alone and of the rate
/// while they act on another process. A worker that does some work for each connection is far
/// below.
const FLOORS: [f64; 2] = [0.9, 0.9];

/// The ports of a server in a process of its own.
struct Server {
    names: [String; 2],
    victim: Victim,
    /// The client of the first port.
    client: Queue,
}

impl Server {
    fn start(pool: &Pool) -> Option<Server> {
        let names = [name(), name()];
        let port = |name| format!("memif:{name},role=server,{MEMORY}");
        let test = "crowd::rate_of_an_honest_client_beside_a_hundred_hostile_ones";
        let victim = Victim::start(test, &names.each_ref().map(port).join(" "))?;
        let text = format!("memif:{},zerocopy=no", names[0]);
        let client = serve(&text, pool, |queue, _| queue.health() == Health::Up);
        Some(Server { names, victim, client })
    }

    fn end(self) {
        drop(self.client);
        self.victim.end();
    }
}

/// The hostile clients, and the number of the server on which they act.
struct Crowd {
    target: AtomicUsize,
    /// Number of clients that act now.
    acting: AtomicUsize,
    connections: AtomicU64,
    admitted: AtomicU64,
}

/// The targets: two servers, and two that are none.
const HERE: usize = 0;
const ELSEWHERE: usize = 1;
const NOBODY: usize = 2;
const THE_END: usize = 3;

impl Crowd {
    /// Runs client `number` until the end.
    fn run(&self, number: u64, servers: [&[String; 2]; 2]) {
        // The clients get less weight than the honest pair: otherwise a hundred threads would leave
        // it a fiftieth of the CPUs, whatever the server does.
        rustix::process::setpriority_process(None, 19).unwrap();
        let (mut random, mut i) = (Random(number + 1), number / 10);
        loop {
            let target = self.target.load(Ordering::Acquire);
            match servers.get(target) {
                None if target == THE_END => return,
                None => std::thread::sleep(Duration::from_millis(20)),
                Some(names) => {
                    self.acting.fetch_add(1, Ordering::AcqRel);
                    while self.target.load(Ordering::Acquire) == target {
                        self.act(number, i, names, target, &mut random);
                        i += 1;
                    }
                    self.acting.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    }

    /// Makes all clients act on `target`, and waits until they do.
    fn turn_to(&self, target: usize) {
        for target in [NOBODY, target] {
            let wanted = if target == NOBODY { 0 } else { CLIENTS };
            self.target.store(target, Ordering::Release);
            let start = Instant::now();
            while self.acting.load(Ordering::Acquire) != wanted {
                assert!(start.elapsed() < 2 * LONG, "not all clients act, or some still do");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Acts as client `number` for the `i`th time.
    fn act(&self, number: u64, i: u64, names: &[String; 2], target: usize, random: &mut Random) {
        let goes_on = || {
            let goes_on = self.target.load(Ordering::Acquire) == target;
            self.connections.fetch_add(u64::from(goes_on), Ordering::Relaxed);
            goes_on
        };
        let channel = match number % 10 {
            0 => admitted_while(&names[1], "", goes_on),
            1..=4 => admitted_while(&names[0], "", goes_on),
            _ => goes_on().then(|| connect(&names[0])),
        };
        let Some(channel) = channel else { return };
        self.admitted.fetch_add(u64::from(number % 10 < 5), Ordering::Relaxed);
        be_hostile(&channel, i, random);
        // After all that a client sends, or if it is silent, it stays until the server ends the
        // connection.
        while self.target.load(Ordering::Acquire) == target && channel.recv(&mut Vec::new()).is_ok()
        {
            let _ = poll_readable(&[channel.as_fd()], Some(Duration::from_millis(100)));
        }
    }
}

/// The end of the clients, also when the test fails: its scope waits for them.
struct End<'a>(&'a Crowd);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.target.store(THE_END, Ordering::Release);
    }
}

/// CPU time: of the honest client, its server's worker, its server's other threads, and the hostile
/// clients; then the number of packets and of attempts to connect.
type Counts = [f64; 6];

/// Returns the CPU time of the threads of a process, in seconds: of those of memif, and of the
/// others.
pub fn cpu_of(process: u32) -> [f64; 2] {
    let mut cpu = [0.0; 2];
    for task in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let read = |name| fs::read_to_string(task.as_ref().unwrap().path().join(name));
        let (Ok(comm), Ok(stat)) = (read("comm"), read("schedstat")) else { continue };
        let ns: f64 = stat.split(' ').next().unwrap().parse().unwrap();
        cpu[usize::from(!comm.starts_with("memif-"))] += ns / 1e9;
    }
    cpu
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Exchanges packets with the server for a window of time while the crowd acts on `target`; returns
/// the counts of that time.
fn window(server: &mut Server, crowd: &Crowd, target: usize) -> Counts {
    crowd.turn_to(target);
    let counts = |packets: u64| -> Counts {
        let [control, worker] = cpu_of(server.victim.child.id());
        let own = seconds(ClockId::ThreadCPUTime);
        let hostile = seconds(ClockId::ProcessCPUTime) - own;
        let connections = crowd.connections.load(Ordering::Relaxed) as f64;
        [own, worker, control, hostile, packets as f64, connections]
    };
    let before = counts(0);
    let packets = echoed(&mut server.client, WINDOW);
    let after = counts(packets);
    std::array::from_fn(|at| after[at] - before[at])
}

/// Returns the number of packets that come back within `time`.
fn echoed(queue: &mut Queue, time: Duration) -> u64 {
    let (mut batch, start, mut back) = (Batch::with_capacity(32), Instant::now(), 0);
    while start.elapsed() < time {
        while let Some(skb) = queue.local().alloc_copy(&[1; 60]) {
            if batch.push(skb).is_err() {
                break;
            }
        }
        queue.xmit(&mut batch);
        batch.clear();
        queue.wait_for(Want::Frames, Some(Duration::from_millis(1))).unwrap();
        back += queue.rx(&mut batch) as u64;
        batch.clear();
    }
    back
}

/// Prints the means over windows of one kind; returns the packets of each window.
fn report(what: &str, windows: &[Counts]) -> Vec<f64> {
    let wall = WINDOW.as_secs_f64() * windows.len() as f64;
    let [client, worker, control, hostile, packets, connections] =
        [0, 1, 2, 3, 4, 5].map(|at| windows.iter().map(|window| window[at]).sum::<f64>() / wall);
    eprintln!(
        "{what}: {packets:.0} packets/s and {connections:.0} connections/s. CPUs in use: client {client:.2}, \
         worker {worker:.2}, its control threads {control:.2}, hostile clients {hostile:.2}; packets per \
         CPU second of client and worker: {:.0}",
        packets / (client + worker)
    );
    windows.iter().map(|window| window[4]).collect()
}

/// Reports the rate of an honest client with 100 hostile ones, as a share of its rate alone and of
/// its rate while they act on another process.
#[test]
#[ignore = "a campaign of a minute, which reports a rate"]
fn rate_of_an_honest_client_beside_a_hundred_hostile_ones() {
    if is_victim() {
        return;
    }
    let pool = pool();
    let Some(mut here) = Server::start(&pool) else { return };
    let Some(elsewhere) = Server::start(&pool) else { return };
    let (names, other) = (here.names.clone(), elsewhere.names.clone());
    let crowd = Crowd {
        target: AtomicUsize::new(NOBODY),
        acting: AtomicUsize::new(0),
        connections: AtomicU64::new(0),
        admitted: AtomicU64::new(0),
    };
    let rounds: Vec<[Counts; 3]> = std::thread::scope(|scope| {
        for number in 0..CLIENTS as u64 {
            let (crowd, servers) = (&crowd, [&names, &other]);
            scope.spawn(move || crowd.run(number, servers));
        }
        let _end = End(&crowd);
        let mut round =
            || [NOBODY, ELSEWHERE, HERE].map(|target| window(&mut here, &crowd, target));
        (0..ROUNDS).map(|_| round()).collect()
    });
    let kind = |at: usize| rounds.iter().map(|round| round[at]).collect::<Vec<_>>();
    let alone = report("alone", &kind(0));
    let elsewhere_rate = report("while they act on another process", &kind(1));
    let beside = report("while they act on its server", &kind(2));
    eprintln!("{} hostile clients were admitted", crowd.admitted.load(Ordering::Relaxed));
    for (what, base, floor) in
        [("alone", alone, FLOORS[0]), ("beside the same elsewhere", elsewhere_rate, FLOORS[1])]
    {
        let mut shares: Vec<f64> =
            beside.iter().zip(&base).map(|(beside, base)| beside / base.max(1.0)).collect();
        shares.sort_by(f64::total_cmp);
        let [low, median, high] = [1, 2, 3].map(|quarter| shares[quarter * (ROUNDS - 1) / 4]);
        eprintln!("{median:.3} of the rate {what}, quartiles {low:.3} and {high:.3}");
        assert!(median > floor, "{median:.3} of the rate {what}, {floor} required");
    }
    assert!(crowd.admitted.load(Ordering::Relaxed) > 0 && here.client.health() == Health::Up);
    here.end();
    elsewhere.end();
}
