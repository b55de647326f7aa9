//! The experiments built into the program, those in files, and their list.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use linerate_port::nearest;
use linerate_show::table::{Cell, Column, Table};
use linerate_show::words::{WIDTH, wrapped};
use serde::{Serialize, Serializer};

use super::Experiment;
use super::file::FILE_MAX;
use super::here::{Here, lasting};
use crate::Result;
use crate::scenario::Place;
use crate::settings::{in_file, wrong};

macro_rules! ours {
    ($($id:literal),* $(,)?) => {
        [$(($id, include_str!(concat!("../../experiments/", $id, ".toml")))),*]
    };
}

/// Name and text of each built-in experiment.
pub static BUILTIN: [(&str, &str); 26] = ours![
    "batch",
    "batch-fault",
    "batch-bus",
    "shape",
    "bounce",
    "pool",
    "pool-bursts",
    "fabric",
    "fabric-bursts",
    "fabric-device",
    "fabric-steady",
    "skbinit",
    "coalesce",
    "coalesce-bus",
    "receive",
    "smoltcp",
    "peers-buffers",
    "veth",
    "veth-load",
    "send-cap",
    "memif-peers",
    "noise",
    "noise-host",
    "versions",
    "versions-load",
    "scale",
];

/// Returns a built-in experiment by its name.
///
/// # Errors
/// `E-EXPERIMENT` if there is none, with those that there are.
pub fn builtin(id: &str) -> Result<Experiment> {
    let ids = BUILTIN.iter().map(|(id, _)| *id);
    let Some((_, text)) = BUILTIN.iter().find(|(name, _)| *name == id) else {
        let shown: String = id.chars().take(80).collect();
        let near = nearest(&shown, ids.clone());
        return Err(wrong(0, format!("there is no experiment {shown:?}")).fix(match near {
            Some(near) => format!("did you mean {near:?}? A file of your own has a . or / in it"),
            None => format!("there are: {}, or a file of your own", list(ids)),
        }));
    };
    Experiment::parse(text, id)
}

fn list<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    ids.collect::<Vec<_>>().join(", ")
}

impl Experiment {
    /// Finds a built-in experiment by its name, or a file by its path: a path has a `.` or a `/` in
    /// it.
    ///
    /// # Errors
    /// `E-EXPERIMENT`: there is none, it cannot be read, or what is wrong in it, with its line.
    pub fn find(name_or_path: &str) -> Result<Experiment> {
        if !name_or_path.contains(['.', '/']) {
            return builtin(name_or_path);
        }
        let text = text(Path::new(name_or_path)).map_err(|e| in_file(e, name_or_path))?;
        Experiment::parse(&text, name_or_path)
    }
}

/// Returns the text of a file, up to the size limit of an experiment.
fn text(path: &Path) -> Result<String> {
    let failed = |e: io::Error| {
        wrong(0, format!("cannot be read: {e}"))
            .fix("name a file that this user may read; linerate lab list prints the experiments")
    };
    // Refuse other kinds of files: reading a pipe would block, and a device may have no end.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(wrong(0, "is no file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    String::from_utf8(bytes).map_err(|e| {
        let good = e.as_bytes().get(..e.utf8_error().valid_up_to()).unwrap_or_default();
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        wrong(line, "is not UTF-8")
    })
}

/// A list with a line for each experiment: its post, its cells, its time, and whether it can run on
/// this machine.
#[derive(Debug)]
pub struct List<'a> {
    /// The experiments to list.
    pub experiments: &'a [Experiment],
    /// The place for which experiments are checked.
    pub place: &'a Place,
}

const COLUMNS: [Column; 6] = [
    Column::new("id", "ID", ""),
    Column::new("reproduces", "POST", ""),
    Column::new("cells", "CELLS", ""),
    Column::new("time", "TIME", ""),
    Column::new("quick", "QUICK", ""),
    Column::new("here", "HERE", ""),
];

/// One line of the list.
#[derive(Debug, Serialize)]
struct Line<'a> {
    id: &'a str,
    title: &'a str,
    reproduces: Option<&'a str>,
    cells: usize,
    quick_cells: usize,
    /// The longest planned time; `None` if it is not known.
    planned_s: Option<f64>,
    quick_planned_s: Option<f64>,
    here: Here,
}

impl<'a> List<'a> {
    fn lines(&self) -> Vec<Line<'a>> {
        let line = |one: &'a Experiment| Line {
            id: &one.id,
            title: &one.title,
            reproduces: one.post.as_deref(),
            cells: one.cells.len(),
            quick_cells: one.cells(true).count(),
            planned_s: one.planned(false).map(|time| time.as_secs_f64()),
            quick_planned_s: one.planned(true).map(|time| time.as_secs_f64()),
            here: one.here(self.place),
        };
        self.experiments.iter().map(line).collect()
    }
}

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines();
        let mut table = Table::new("experiments", "", &COLUMNS);
        for (line, one) in lines.iter().zip(self.experiments) {
            table.row(vec![
                Cell::text(line.id),
                Cell::text(line.reproduces.unwrap_or("-")),
                Cell::Count(line.cells as u64),
                time(one.planned(false)),
                time(one.planned(true)),
                Cell::text(line.here.in_short()),
            ]);
        }
        writeln!(f, "{table}")?;
        let widest = lines.iter().map(|line| line.id.len()).max().unwrap_or(0);
        for line in &lines {
            let first = format!("  {:widest$}  ", line.id);
            f.write_str(&wrapped(line.title, &first, &" ".repeat(first.len().min(WIDTH / 2))))?;
        }
        for line in &lines {
            for obstacle in &line.here.obstacles {
                f.write_str("\n")?;
                write!(f, "{}", wrapped(&format!("{}: {obstacle}", line.id), "! ", "  "))?;
            }
        }
        f.write_str(
            "\nTIME and QUICK are the most time in windows: a cell ends when its interval is narrow enough.\n\
             Set-ups, and the repetition of pairs that were disturbed, are in addition.\n",
        )?;
        if self.experiments.iter().any(|one| one.planned(false).is_none()) {
            f.write_str("n/a: a window takes as long as its program does.\n")?;
        }
        Ok(())
    }
}

fn time(planned: Option<Duration>) -> Cell {
    Cell::Text(planned.map_or("n/a".into(), lasting))
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_seq(self.lines())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use linerate_seeds::Part;
    use proptest::prelude::*;

    #[test]
    fn every_built_in_experiment_is_read_and_has_its_files_name() {
        for (id, _) in BUILTIN {
            let one = builtin(id).unwrap();
            assert_eq!(one.id, id);
            assert!(one.device.is_some(), "{id}: which device do its packets pass?");
        }
        let there = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/experiments")).unwrap();
        assert_eq!(there.count(), BUILTIN.len(), "a file that is not built in");
    }

    #[test]
    fn no_expectation_of_a_built_in_experiment_is_hidden_by_others_in_every_cell() {
        for (id, _) in BUILTIN {
            let one = builtin(id).unwrap();
            for metric in &one.metrics {
                let found = one.cells.iter().filter_map(|cell| metric.expected_at(&cell.at));
                let found: Vec<_> = found.collect();
                let hidden = metric.expected.iter().find(|expected| !found.contains(expected));
                assert_eq!(hidden, None, "{id}: {}", metric.name);
            }
        }
    }

    /// S1.11: from 80 % of the link the post has 2.2 times the packets an interrupt.
    #[test]
    fn coalesce_bus_expects_more_packets_an_interrupt_from_80_per_cent_of_the_link() {
        let one = builtin("coalesce-bus").unwrap();
        let metric = one.metrics.iter().find(|metric| metric.name == "packets_per_irq").unwrap();
        let mut found = 0;
        for cell in &one.cells {
            let level = |name: &str| &cell.at.iter().find(|(factor, _)| factor == name).unwrap().1;
            let Some(expected) = metric.expected_at(&cell.at) else { continue };
            let from_pct = if level("load").parse::<u32>().unwrap() < 80 { 50.0 } else { 120.0 };
            assert_eq!((expected.change_pct.0, level("toll").as_str()), (from_pct, "post"));
            found += 1;
        }
        assert_eq!(found, 24, "eight loads, three modes");
    }

    #[test]
    fn a_quick_run_of_each_is_planned_to_end_within_a_minute() {
        for (id, _) in BUILTIN {
            let planned = builtin(id).unwrap().planned(true);
            assert!(planned.is_none_or(|time| time <= Duration::from_mins(1)), "{id}: {planned:?}");
        }
    }

    #[test]
    fn experiment_whose_programs_set_the_time_has_no_planned_time() {
        let planned = |id: &str| builtin(id).unwrap().planned(true);
        assert_eq!(planned("peers-buffers"), None);
        assert!(planned("pool").is_some() && planned("noise").is_some());
    }

    #[test]
    fn every_expectation_has_a_source() {
        let all = BUILTIN.iter().map(|(id, _)| builtin(id).unwrap());
        let expected: Vec<_> = all.flat_map(|one| one.metrics).flat_map(|m| m.expected).collect();
        assert!(!expected.is_empty());
        assert!(expected.iter().all(|one| one.source.len() >= "post 000".len()), "{expected:?}");
    }

    /// Returns the tests of post 002's matrix, as its table has them: group, bytes and processes.
    fn tests_of_post_002() -> Vec<[String; 3]> {
        let report = linerate_seeds::Post::named("002").unwrap().report().unwrap();
        let is_it = |part: &&Part| matches!(part, Part::Table(table) if table.name == "tests");
        let table = serde_json::to_value(report.parts.iter().find(is_it).unwrap()).unwrap();
        let rows = table["rows"].as_array().unwrap().iter();
        let text = |value: &serde_json::Value| value.to_string().trim_matches('"').to_owned();
        rows.map(|row| ["test", "size_bytes", "processes"].map(|key| text(&row[key]))).collect()
    }

    /// S2.26: one command runs each test of the post's matrix with a doorbell for each packet and
    /// with batches.
    #[test]
    fn batch_has_each_test_of_post_002_for_every_device_placement_and_cap() {
        let mut posted = tests_of_post_002();
        posted.sort();
        for (id, factors) in [("batch", 8), ("batch-bus", 1), ("batch-fault", 5)] {
            let one = builtin(id).unwrap();
            let mut tests = std::collections::BTreeMap::<Vec<String>, Vec<[String; 3]>>::new();
            for (_, cell) in one.cells(false) {
                let level = |factor: &str| {
                    cell.at.iter().find(|(name, _)| name == factor).unwrap().1.clone()
                };
                let told =
                    |side: &Settings, name: &str| side.get(name).map(|set| set.value.to_string());
                for (name, factor) in [("message", "size"), ("connections", "procs")] {
                    assert_eq!(told(&cell.b, name), Some(level(factor)), "{id}: {:?}", cell.at);
                }
                let is_delayed = told(&cell.b, "nodelay").as_deref() == Some("false");
                assert_eq!(is_delayed, level("test") == "TCP", "{id}: {:?}", cell.at);
                let caps = [&cell.a, &cell.b].map(|side| told(side, "tx_batch").unwrap());
                assert!(caps[0] == "1" && ["64", "auto"].contains(&&*caps[1]), "{id}: {caps:?}");
                for (name, value) in [("senders", "processes"), ("sysctl", "post-002")] {
                    assert_eq!(told(&cell.a, name).as_deref(), Some(value), "{id}: {:?}", cell.at);
                }
                let group = if is_delayed { "TCP" } else { "TCP No Delay" };
                let own = ["test", "size", "procs"];
                let others = cell.at.iter().filter(|(name, _)| !own.contains(&&**name));
                let others = others.map(|(_, level)| level.clone()).collect();
                tests.entry(others).or_default().push([
                    group.into(),
                    level("size"),
                    level("procs"),
                ]);
            }
            assert_eq!(tests.len(), factors, "{id}: {:?}", tests.keys());
            for (others, mut tests) in tests {
                tests.sort();
                assert_eq!(tests, posted, "{id}: {others:?}");
            }
        }
    }

    #[test]
    fn hot_lists_of_two_lengths_have_pools_of_one_size() {
        let mut compared = 0;
        for id in ["pool", "pool-bursts", "fabric-bursts", "fabric-device"] {
            let one = builtin(id).unwrap();
            for (_, cell) in one.cells(false) {
                let [of_a, of_b] = [&cell.a, &cell.b].map(|side| {
                    let value = |name| side.get(name).map(|setting| setting.value.clone());
                    (value("hot_list"), value("pool_frames"))
                });
                if of_a.0 != of_b.0 {
                    assert!(of_a.1.is_some() && of_a.1 == of_b.1, "{id}: {:?}", cell.at);
                    compared += 1;
                }
            }
        }
        assert!(compared > 20, "{compared}");
    }

    #[test]
    fn frames_and_hot_list_are_changed_alone_under_either_of_the_other_and_both() {
        let one = builtin("pool").unwrap();
        let of = |side: &Settings| {
            let [buffers, list] = ["buffers", "hot_list"].map(|name| side.get(name).unwrap());
            let rest = side.iter().filter(|(name, _)| !["buffers", "hot_list"].contains(name));
            let rest: Vec<_> = rest.map(|(name, set)| (name.to_owned(), &set.value)).collect();
            (format!("{:?} {:?}", buffers.value, list.value), format!("{rest:?}"))
        };
        let cells = one.cells(false).map(|(_, cell)| [of(&cell.a), of(&cell.b)]);
        let mut changes = std::collections::HashMap::new();
        for [(a, rest_of_a), (b, rest_of_b)] in cells {
            assert_eq!(rest_of_a, rest_of_b, "nothing else differs");
            *changes.entry(format!("{a} -> {b}")).or_insert(0) += 1;
        }
        let side = |buffers: &str, list: i64| format!("Text({buffers:?}) Int({list})");
        for [(a, of_a), (b, of_b)] in [
            [("general", 128), ("frames", 128)],
            [("general", 1024), ("frames", 1024)],
            [("general", 128), ("general", 1024)],
            [("frames", 128), ("frames", 1024)],
            [("general", 128), ("frames", 1024)],
        ] {
            let change = format!("{} -> {}", side(a, of_a), side(b, of_b));
            assert_eq!(changes.get(&change), Some(&6), "{change}: {changes:?}");
        }
    }

    #[test]
    fn initialisation_is_compared_on_one_cpu_and_across_two_even_in_a_quick_run() {
        let one = builtin("skbinit").unwrap();
        for quick in [true, false] {
            let mut frees_on = Vec::new();
            for (_, cell) in one.cells(quick).filter(|(_, cell)| cell.scenario == "churn") {
                let [old, new] = [&cell.a, &cell.b].map(|side| {
                    let (init, rest): (Vec<_>, Vec<_>) =
                        side.iter().partition(|(name, _)| *name == "init");
                    let rest = rest.iter().map(|(name, set)| format!("{name} {:?}", set.value));
                    (format!("{:?}", init[0].1.value), rest.collect::<Vec<_>>())
                });
                let inits = [old.0.as_str(), new.0.as_str()];
                assert_eq!(inits, [r#"Text("at_free")"#, r#"Text("at_alloc")"#]);
                assert_eq!(old.1, new.1, "nothing else differs");
                frees_on.push(format!("{:?}", cell.a.get("free").unwrap().value));
            }
            for free in [r#"Text("local")"#, r#"Text("remote")"#] {
                assert!(frees_on.iter().any(|on| on == free), "{free}: {frees_on:?}");
            }
        }
        let told: Vec<_> = one.metrics.iter().map(|metric| metric.formula.to_string()).collect();
        for part in ["init_ticks_warm", "allocator_ticks", "miss_ticks"] {
            assert!(told.iter().any(|formula| formula == part), "{part}: {told:?}");
        }
    }

    #[test]
    fn unknown_experiment_is_refused_with_a_suggestion() {
        let e = Experiment::find("skbinits").unwrap_err();
        assert_eq!(e.why, "there is no experiment \"skbinits\"");
        assert!(e.fix.starts_with("did you mean \"skbinit\"?"), "{}", e.fix);
        let e = Experiment::find("./no-such.toml").unwrap_err();
        assert!(e.why.starts_with("./no-such.toml: cannot be read: "), "{}", e.why);
        assert!(e.fix.ends_with("linerate lab list prints the experiments"), "{}", e.fix);
        assert_eq!(Experiment::find("/dev/zero").unwrap_err().why, "/dev/zero: is no file");
    }

    #[test]
    fn a_file_that_is_no_text_is_told_with_its_line() {
        let path = std::env::temp_dir().join(format!("linerate-{}.toml", std::process::id()));
        std::fs::write(&path, b"version = 1\nid = \"\xff\"\n").unwrap();
        let e = Experiment::find(path.to_str().unwrap()).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(e.why.ends_with(".toml:2: is not UTF-8"), "{}", e.why);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_byte_changed_or_lost_makes_the_reader_panic(
            which in 0..BUILTIN.len(), at in 0..20_000_usize, lost in 0..30_usize, byte in any::<u8>()
        ) {
            let mut bytes = BUILTIN[which].1.as_bytes().to_vec();
            let at = at % bytes.len();
            let end = (at + lost).min(bytes.len());
            bytes.splice(at..end, [byte]);
            let _ = Experiment::parse(&String::from_utf8_lossy(&bytes), "f");
        }
    }
}
