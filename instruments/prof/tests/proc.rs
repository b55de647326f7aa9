//! A series of /proc, taken, written and read back; and that timing a region allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::UdpSocket;
use std::time::Duration;

use linerate_prof::proc::{
    Feed, Options, Rate, Rates, Replay, Sample, Sampler, Source, Summary, Writer,
};
use linerate_prof::region::Region;

/// The system's allocator, with a count of the calling thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator as it came; the counter is a plain number
// of the thread, made without an allocation and never dropped.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise about `layout` is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` above, and so from the system, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn timing_a_region_allocates_nothing_after_it_was_made() {
    let mut poll = Region::new("poll");
    let before = ALLOCATIONS.get();
    for n in 0..10_000u64 {
        let entered = poll.enter();
        std::hint::black_box(n);
        poll.leave(entered);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    // That the counter counts.
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get() - before, 1);
    assert_eq!(poll.timing().count, 10_000);
}

/// Takes `samples` of this machine, with packets over the loopback between them; returns the
/// summary and the file.
fn taken(samples: u64, packets: usize) -> (Summary, Vec<u8>) {
    let period = Duration::from_millis(20);
    let sources = vec![
        Source::Interrupts,
        Source::Softirqs,
        Source::Stat,
        Source::NetDev,
        Source::SoftnetStat,
    ];
    let options = Options { period, sources, samples: Some(samples), ..Options::default() };
    let mut sampler = Sampler::start(options).unwrap();
    let mut file = Vec::new();
    let mut writer = Writer::start(&mut file, sampler.header()).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let summary = Summary::watching(&mut sampler, |columns, sample| {
        // The packets that are sent now are in the sample after this one.
        for _ in 0..packets {
            socket.send_to(&[0; 100], socket.local_addr().unwrap()).unwrap();
        }
        writer.write(columns, sample)
    });
    let end = writer.finish(sampler.end().unwrap()).unwrap();
    assert!(end.own_ns > sampler.end().unwrap().own_ns, "writing costs something");
    (summary.unwrap(), file)
}

#[test]
fn what_is_written_is_what_is_replayed_and_comes_to_the_same() {
    let (live, file) = taken(5, 0);
    let mut replay = Replay::open(&file[..]).unwrap();
    let again = Summary::of(&mut replay).unwrap();
    assert_eq!((again.end.samples, replay.complaints_total()), (5, 0));
    assert!(!again.cut_off);
    assert_eq!(again.header, live.header);
    assert_eq!(again.columns.len(), live.columns.len());
    // The table is made of nothing that the file does not hold. Only the cost differs: the file has
    // that of having been written.
    let table = |summary: &Summary| {
        let text = summary.to_string();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.into_iter().filter(|line| !line.starts_with("own cost")).collect::<Vec<_>>()
    };
    assert_eq!(table(&live), table(&again));
    assert!(live.to_string().contains("\n5 samples, every 20.0 ms"), "{live}");
    println!("{live}");
}

#[test]
fn a_series_whose_writer_was_killed_keeps_what_it_has_and_says_that_it_was_cut_off() {
    let (_, file) = taken(5, 0);
    let text = String::from_utf8(file).unwrap();
    let last = text.rfind("{\"sample\"").unwrap();
    let cut = &text[..last + 40];
    let mut replay = Replay::open(cut.as_bytes()).unwrap();
    let summary = Summary::of(&mut replay).unwrap();
    assert_eq!((summary.end.samples, summary.cut_off), (4, true));
    assert_eq!(replay.complaints()[0].line, cut.lines().count() as u64);
    assert!(summary.to_string().contains("cut off"));
}

#[test]
fn packets_over_the_loopback_are_in_the_rates_of_their_period() {
    const PACKETS: usize = 500;
    let (_, file) = taken(4, PACKETS);
    let mut replay = Replay::open(&file[..]).unwrap();
    let (mut rates, mut rate) = (Rates::default(), Rate::default());
    let (mut sample, mut intervals) = (Sample::default(), 0);
    while replay.next(&mut sample).unwrap() {
        let columns = replay.columns();
        let lo = columns.iter().position(|c| c.name == "net/dev/lo/rx_packets").unwrap();
        if rates.step(columns, &sample, &mut rate) {
            let packets = rate.values[lo].unwrap() * rate.span_ns as f64 / 1e9;
            // Others may use the loopback too.
            assert!(packets.round() >= PACKETS as f64, "{packets} in {} ns", rate.span_ns);
            intervals += 1;
        }
    }
    assert_eq!(intervals, 3);
    // Each file of the header is in it, and the packets are in the CPUs' soft interrupts, too.
    let names = || replay.columns().iter().map(|column| column.name.as_str());
    for file in ["interrupts/", "softirqs/", "stat/cpu/", "net/dev/", "net/softnet_stat/"] {
        assert!(names().any(|name| name.starts_with(file)), "{file}");
    }
    let received =
        names().zip(&rate.values).filter(|(name, _)| name.starts_with("softirqs/NET_RX/"));
    assert!(received.filter_map(|(_, rate)| *rate).sum::<f64>() > 0.0);
}
