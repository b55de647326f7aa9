//! What /proc says, taken, written, read back and drawn; and that timing a region allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write;
use std::net::UdpSocket;
use std::time::Duration;

use linerate_prof::proc::{
    Column, Feed, Options, Rate, Rates, Replay, Sample, Sampler, Source, Summary, Writer, plot,
};
use linerate_prof::region::{Region, timed};

/// The system's allocator, counting what the calling thread asks of it.
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
        timed(&mut poll, || std::hint::black_box(n));
        drop(poll.guard());
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(poll.count(), 30_000);
    // That the counter counts.
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}

/// Takes `samples` of this machine, with packets over the loopback between them, as a file.
fn taken(samples: u64, packets: usize) -> (Summary, Vec<u8>) {
    let period = Duration::from_millis(20);
    let sources = vec![Source::Softirqs, Source::Stat, Source::NetDev, Source::SoftnetStat];
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
}

/// A minute of a burst, a device that comes late and a counter that starts anew.
fn burst() -> String {
    let column = |name: &str| format!(r#"{{"name":"{name}","unit":"packets","kind":"counter"}}"#);
    let names = ["net/dev/eth0/rx_packets", "net/dev/eth0/tx_packets"].map(column).join(",");
    let head = r#"{"schema":"linerate-series/1","period_ns":1000000000}"#;
    let mut text = format!("{head}\n{{\"columns\":[{names}]}}\n");
    let (mut rx, mut tx) = (1_000_000u64, 5_000u64);
    for second in 0..=60u64 {
        let busy = (20..40).contains(&second);
        rx += if busy { 812_000 + 9_000 * (second % 5) } else { 41_000 + 3_000 * (second % 7) };
        tx = if second == 30 { 0 } else { tx + 350_000 + 2_500 * (second % 11) };
        if second == 10 {
            let late = column("net/dev/veth0/rx_packets");
            writeln!(text, "{{\"columns\":[{late}]}}").unwrap();
        }
        let veth = (second >= 10).then(|| format!(",{}", 120_000 * (second - 10)));
        let (t_ns, veth) = (second * 1_000_000_000, veth.unwrap_or_default());
        let own = r#""late_ns":0,"missed":0,"own_ns":1"#;
        let values = format!("[{rx},{tx}{veth}]");
        writeln!(text, r#"{{"sample":{{"t_ns":{t_ns},{own},"values":{values}}}}}"#).unwrap();
    }
    text
}

#[test]
fn a_picture_has_a_line_for_each_column_a_legend_units_and_breaks_at_a_gap() {
    let text = burst();
    let mut replay = Replay::open(text.as_bytes()).unwrap();
    let chosen = |column: &Column| column.name.ends_with("_packets");
    let svg = plot::svg(&mut replay, "Packets, and a device that came later", chosen).unwrap();
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("series.svg");
    std::fs::write(&path, &svg).unwrap();
    assert_eq!(replay.complaints_total(), 0);
    for said in ["time, s", "packets/s", "net/dev/eth0/rx_packets", "net/dev/veth0/rx_packets"] {
        assert!(svg.contains(said), "{said} is not in {}", path.display());
    }
    // A line for what came, two for what went and began anew; and one of each in the legend.
    let lines = |colour: &str| {
        let stroke = format!("stroke=\"{colour}\"");
        svg.split('<').filter(|tag| tag.starts_with("polyline") && tag.contains(&stroke)).count()
    };
    assert_eq!((lines("#0072B2"), lines("#D55E00"), lines("#009E73")), (2, 3, 2));
    assert!(!svg.contains("NaN"));
}

#[test]
fn a_name_from_a_file_is_text_in_the_picture_and_no_longer_than_its_place() {
    let evil = burst().replace("eth0", &format!("<script>{}", "x".repeat(200)));
    let svg = plot::svg(&mut Replay::open(evil.as_bytes()).unwrap(), "<b>", |_| true).unwrap();
    assert!(!svg.contains("<script") && !svg.contains("<b>") && svg.contains("&lt;script"));
    assert!(!svg.contains(&"x".repeat(61)));
}

/// Whether every tag is closed and every letter and entity one that XML has.
fn is_well_formed(xml: &str) -> bool {
    let allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    let entities = ["amp;", "lt;", "gt;", "quot;", "apos;", "#"];
    let entity = |text: &str| entities.iter().any(|entity| text.starts_with(entity));
    let mut open = Vec::new();
    for tag in xml.split('<').skip(1) {
        let Some((tag, _)) = tag.split_once('>') else { return false };
        let name = tag.split([' ', '\n', '/']).next().unwrap_or_default();
        match tag.strip_prefix('/') {
            Some(closed) if open.pop() != Some(closed) => return false,
            None if !tag.ends_with('/') => open.push(name),
            _ => {}
        }
    }
    open.is_empty() && xml.chars().all(allowed) && xml.split('&').skip(1).all(entity)
}

#[test]
fn a_picture_is_well_formed_whatever_its_names_and_title_are() {
    assert!(is_well_formed("<a x=\"1\"><b/>&lt;</a>") && !is_well_formed("<a><b></a>"));
    let title = "\u{1b}[2J \u{8}</svg> & \u{ffff}\u{202e}";
    for name in ["eth0", "<&>'", "é\u{5d0}"] {
        let text = burst().replace("eth0", name);
        let mut replay = Replay::open(text.as_bytes()).unwrap();
        let svg = plot::svg(&mut replay, title, |_| true).unwrap();
        assert!(is_well_formed(&svg), "{name:?}: {svg}");
        assert!(!svg.contains('\u{202e}'));
    }
}

#[test]
fn a_picture_of_nothing_is_refused_and_one_of_a_machine_at_rest_is_drawn() {
    let text = burst();
    let of = |text: &str, choose: fn(&Column) -> bool| {
        plot::svg(&mut Replay::open(text.as_bytes()).unwrap(), "at rest", choose)
    };
    assert!(of(&text, |_| false).is_err());
    let one_sample: String = text.lines().take(3).map(|line| format!("{line}\n")).collect();
    assert!(of(&one_sample, |_| true).is_err());
    let same = one_sample.lines().nth(2).unwrap().replace("\"t_ns\":0", "\"t_ns\":9");
    let svg = of(&format!("{one_sample}{same}\n"), |_| true).unwrap();
    assert!(svg.contains("2 columns were 0 throughout"), "{svg}");
}
