//! The text of `perf script`: a line for each sample. If call chains were recorded, the sample's
//! chain follows, innermost function first.
//!
//! ```text
//! spin  8297 [001] 22984.992094:    5025125 cpu-clock:
//!                  114a burn+0x11 (/tmp/spin)
//!                  1199 main+0x17 (/tmp/spin)
//!
//! spin  8304 22986.220389:    1003009 cpu-clock:      5630bdc7915b burn+0x22 (/tmp/spin)
//! ```
//!
//! Each event is a profile, each sample counts 1 in the row of its innermost function. The number
//! before the event is how many of them the sample stands for: the profile's period, if constant.
//! Source: perf-script(1), the fields that it prints by default.

use std::collections::HashMap;
use std::io::{self, BufRead};

use super::lines::{Line, Lines, excerpt, unquoted};
use super::listing::cut_off;
use super::rows::{Budget, ListedRow, Rows, Stacks};
use super::{Form, LINE_TOO_LONG, Read};
use crate::conditions::Conditions;
use crate::profile::{Event, Origin, Profile, Space, Unit};

mod line;

use line::{Frame, Head, Sample};

pub(super) fn read(input: impl BufRead) -> io::Result<Read> {
    read_within(input, Budget::default())
}

fn read_within(input: impl BufRead, budget: Budget) -> io::Result<Read> {
    let mut lines = Lines::new(input);
    let mut script = Script {
        read: Read::new(Form::PerfScript),
        budget,
        conditions: Conditions::default(),
        lost: 0,
        events: Vec::new(),
        by_name: HashMap::new(),
        chain: Chain::default(),
        state: State::Between,
    };
    while let Some((number, line)) = lines.next()? {
        match line {
            Line::Text(text) => script.line(number, unquoted(text)),
            Line::TooLong => {
                script.read.complain(number, LINE_TOO_LONG);
                script.chain.push(&Frame::UNKNOWN);
            }
        }
    }
    Ok(script.finish())
}

/// Returns true if the line, without quotation marks, is the first of a sample.
pub(super) fn is_sample(line: &str) -> bool {
    matches!(line::head(line), Some(Ok(Head::Sample(_))))
}

/// The name for a function, or a frame of a chain, that perf could not name.
const UNKNOWN: &str = "[unknown]";

#[derive(Debug)]
struct Script {
    read: Read,
    budget: Budget,
    conditions: Conditions,
    lost: u64,
    events: Vec<OfEvent>,
    /// Index of each event by its name.
    by_name: HashMap<String, usize>,
    /// The call chain of the sample being read.
    chain: Chain,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between samples: the next line should be the first of a sample.
    Between,
    /// Lines of a call chain follow, for a sample of the event with that index.
    In(usize),
    /// The sample's first line is invalid, so that the lines after it are skipped.
    Skipping,
}

/// The samples of one event.
#[derive(Debug, Default)]
struct OfEvent {
    name: String,
    rows: Rows,
    stacks: Stacks,
    cut_chains: u64,
    /// The lowest and the highest number of events for which a sample stands.
    periods: Option<(u64, u64)>,
}

impl Script {
    fn line(&mut self, number: u64, text: &str) {
        if text.is_empty() {
            return self.end_sample();
        }
        // Read comments only before the first sample, because a program may be named `#`.
        if let Some(comment) = text.strip_prefix('#')
            && self.events.is_empty()
            && (comment.is_empty() || comment.starts_with(' '))
        {
            return line::header(comment, &mut self.conditions);
        }
        // Try the line as a sample's first line before a frame, because a program's name may be
        // hexadecimal, such as `a`.
        match line::head(text) {
            Some(Ok(Head::Sample(sample))) => self.sample(number, &sample),
            Some(Ok(Head::Lost(lost))) => self.lost = self.lost.saturating_add(lost),
            Some(Ok(Head::Record)) => {}
            Some(Err(why)) => {
                self.end_sample();
                self.state = State::Skipping;
                self.read.complain(number, why);
            }
            None => self.function(number, text),
        }
    }

    /// Adds the line's function to the current chain, if it has one.
    fn function(&mut self, number: u64, text: &str) {
        let frame = if self.state == State::Between { None } else { line::frame(text) };
        match frame {
            Some(Ok(frame)) => self.chain.push(&frame),
            Some(Err(why)) => {
                self.chain.push(&Frame::UNKNOWN);
                self.read.complain(number, why);
            }
            None => self.read.prose_lines += 1,
        }
    }

    fn sample(&mut self, number: u64, sample: &Sample<'_>) {
        self.end_sample();
        let Some(at) = self.event(sample.event) else {
            let name = excerpt(sample.event);
            let why = match sample.event.len() {
                ..=EVENT_MAX_BYTES => format!("a sample of yet another event, {name}"),
                length => format!("the event's name, {name}, has {length} bytes"),
            };
            self.state = State::Skipping;
            return self.read.complain(number, why);
        };
        self.state = State::In(at);
        if let (Some(event), Some(period)) = (self.events.get_mut(at), sample.period) {
            let (least, most) = event.periods.unwrap_or((period, period));
            event.periods = Some((least.min(period), most.max(period)));
        }
        if let Some(frame) = &sample.frame {
            self.chain.push(frame);
            self.chain.one_line = true;
            self.end_sample();
        }
    }

    /// Returns the index of the event with that name; `None` if there are too many events, or the
    /// name is too long.
    fn event(&mut self, name: &str) -> Option<usize> {
        if name.len() > EVENT_MAX_BYTES {
            return None;
        }
        if let Some(&at) = self.by_name.get(name) {
            return Some(at);
        }
        self.budget.profiles = self.budget.profiles.checked_sub(1)?;
        self.by_name.insert(name.to_owned(), self.events.len());
        self.events.push(OfEvent { name: name.to_owned(), ..OfEvent::default() });
        Some(self.events.len() - 1)
    }

    /// Counts the sample that was just read, if there was one.
    fn end_sample(&mut self) {
        if let State::In(at) = self.state
            && let Some(event) = self.events.get_mut(at)
        {
            event.count(&mut self.budget, &self.chain);
        }
        self.state = State::Between;
        self.chain = Chain::default();
    }

    fn finish(mut self) -> Read {
        self.end_sample();
        // A recording of which all samples were lost is still a recording: keep their number.
        if self.events.is_empty() && self.lost > 0 && self.read.complaints_total == 0 {
            self.events.push(OfEvent { name: UNKNOWN.to_owned(), ..OfEvent::default() });
        }
        for event in self.events {
            let mut profile = event.into_profile();
            profile.conditions = self.conditions.clone();
            self.read.profiles.push(profile);
        }
        let several = self.read.profiles.len() > 1;
        if let Some(first) = self.read.profiles.first_mut() {
            first.lost = self.lost;
            if self.lost > 0 && several {
                let say = "of which event the lost samples were, is not said: all are counted here";
                first.remarks.push(say.to_owned());
            }
        }
        if let Some(say) = self.read.left_out() {
            for profile in &mut self.read.profiles {
                profile.remarks.push(say.clone());
            }
        }
        self.read
    }
}

impl OfEvent {
    fn count(&mut self, budget: &mut Budget, chain: &Chain) {
        let object = chain.object.as_deref();
        let symbol = chain.names.first().map_or(UNKNOWN, String::as_str);
        let found = ListedRow { symbol, address: chain.start, object, count: 1, load: None };
        if let Some(row) = self.rows.add(budget, found) {
            row.space = chain.space;
        }
        if chain.names.is_empty() || chain.one_line {
            return;
        }
        self.cut_chains += u64::from(chain.cut);
        let cut = chain.cut.then_some("[cut off]");
        let names = chain.names.iter().rev().map(String::as_str);
        self.stacks.add(budget, cut.into_iter().chain(names));
    }

    fn into_profile(self) -> Profile {
        let constant = self.periods.filter(|(least, most)| least == most).map(|(period, _)| period);
        let event = Event { name: self.name, unit: Unit::Samples, period: constant, raw: None };
        let mut profile = Profile::new(event, Origin::Listing);
        let (rows, of_rows) = self.rows.into_rows();
        let (stacks, of_stacks) = self.stacks.into_stacks();
        (profile.rows, profile.stacks) = (rows, stacks);
        if let Some((least, most)) = self.periods.filter(|(least, most)| least != most) {
            let say = format!("a sample stands for {least} to {most} events, and counts 1 here");
            profile.remarks.push(say);
        }
        if self.cut_chains > 0 {
            let say = format!("{} call chains are cut off at their outer end", self.cut_chains);
            profile.remarks.push(say);
        }
        if of_rows.is_some() {
            cut_off(&mut profile, true);
        }
        profile.remarks.extend(of_rows.into_iter().chain(of_stacks));
        profile
    }
}

/// The functions of one sample, from the innermost to the outermost.
#[derive(Debug, Default)]
struct Chain {
    names: Vec<String>,
    bytes: usize,
    /// Object of the innermost frame, if known, its start address if in the kernel, and its space.
    object: Option<String>,
    start: Option<u64>,
    space: Space,
    /// True if the chain had more functions than are stored.
    cut: bool,
    /// True for a sample printed without its callers, which has no chain.
    one_line: bool,
}

impl Chain {
    fn push(&mut self, frame: &Frame<'_>) {
        self.bytes += frame.symbol.len();
        if self.names.len() >= FRAMES_MAX || self.bytes > CHAIN_MAX_BYTES {
            self.cut = true;
            return;
        }
        if self.names.is_empty() {
            self.object = frame.object.map(str::to_owned);
            (self.start, self.space) = (frame.start, frame.space);
        }
        self.names.push(frame.symbol.to_owned());
    }
}

/// The longest name of an event, four times that of any in the kernel.
const EVENT_MAX_BYTES: usize = 1024;

/// The longest chain: eight times the kernel's default (kernel.perf_event_max_stack).
const FRAMES_MAX: usize = 1024;

/// The most bytes of names in a chain.
const CHAIN_MAX_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Read {
        read(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_sample_counts_in_the_row_of_its_innermost_function() {
        let read = text(
            "a 1 1.0: 5 cycles:\n\t10 f+0x1 (/a)\n\t20 main+0x2 (/a)\n\n\
             a 1 1.1: 5 cycles:\n\t30 g+0x1 (/a)\n\t11 f+0x2 (/a)\n\n\
             a 1 1.2: 5 cycles:\n\t10 f+0x1 (/a)\n\t20 main+0x2 (/a)\n",
        );
        let profile = &read.profiles[0];
        let rows: Vec<_> = profile.rows.iter().map(|r| (r.symbol.as_str(), r.count)).collect();
        assert_eq!(rows, [("f", 2), ("g", 1)]);
        assert_eq!(profile.event.period, Some(5));
        let chain = |at: usize| (profile.stacks[at].frames.join(";"), profile.stacks[at].count);
        assert_eq!((chain(0), chain(1)), (("main;f".into(), 2), ("f;g".into(), 1)));
    }

    #[test]
    fn a_broken_sample_is_left_out_with_its_chain_and_the_rest_is_read() {
        let read = text(
            "a 1 1.0: 5 cycles:\n\t10 f (/a)\n\na 1 1.1: 5\n\t10 g (/a)\n\na 1 1.2: 5 cycles:\n\
             \t11112222333344445 h (/a)\n\t10 f (/a)\n",
        );
        let lines: Vec<_> = read.complaints.iter().map(|complaint| complaint.line).collect();
        assert_eq!(lines, [4, 8]);
        let rows: Vec<_> = read.profiles[0].rows.iter().map(|r| r.symbol.as_str()).collect();
        // The innermost function of the last one is not known; its caller is not it.
        assert_eq!(rows, ["f", UNKNOWN]);
        assert!(read.profiles[0].remarks[0].contains("the rest still read"));
    }

    #[test]
    fn a_sample_without_any_place_still_counts() {
        let read =
            text("a 1 1.0: syscalls:sys_enter_getppid:\na 1 1.1: syscalls:sys_enter_getppid:\n");
        assert_eq!(read.profiles[0].rows[0], crate::profile::Row::new(UNKNOWN, 2));
        assert!(read.profiles[0].stacks.is_empty());
    }

    #[test]
    fn lost_samples_are_not_lost() {
        let lost = "a 1 1.1: PERF_RECORD_LOST lost 7\n";
        let read = text(&format!("{lost}a 1 1.0: 5 cycles: 10 f (/a)\n{lost}"));
        assert_eq!((read.profiles[0].lost, read.profiles[0].remarks.len()), (14, 0));
        let read = text(&format!("{lost}a 1 1.0: x: 10 f (/a)\na 1 1.0: y: 10 f (/a)\n"));
        assert_eq!((read.profiles[0].lost, read.profiles[1].lost), (7, 0));
        assert!(read.profiles[0].remarks[0].contains("not said"));
        let alone = text(lost);
        assert_eq!((alone.profiles[0].lost, alone.profiles[0].counted()), (7, 0));
        assert!(text(&format!("{lost}a 1 1.0: 5\n")).profiles.is_empty(), "a broken sample");
    }

    #[test]
    fn functions_beyond_the_budget_are_one_row_and_events_are_complaints() {
        let budget = Budget { functions: 1, ..Budget::default() };
        let sample = |f: &str| format!("a 1 1.0: x: 10 {f} (/a)\n");
        let text = ["f", "g", "h", "f"].map(sample).concat();
        let profile = &read_within(text.as_bytes(), budget).unwrap().profiles[0];
        assert_eq!((profile.counted(), profile.cutoff), (4, Some(3)));
        assert!(profile.remarks[0].contains("less than 3 times"), "{:?}", profile.remarks);
        let all = read(text.as_bytes()).unwrap();
        assert_eq!(all.profiles[0].cutoff, None);
        let budget = Budget { profiles: 1, ..Budget::default() };
        let two = "a 1 1.0: x: 10 f (/a)\na 1 1.0: y: 10 f (/a)\na 1 1.0: x: 10 f (/a)\n";
        let read = read_within(two.as_bytes(), budget).unwrap();
        assert_eq!((read.profiles[0].counted(), read.complaints[0].line), (2, 2));
    }

    #[test]
    fn a_program_may_be_called_as_a_comment_begins_and_the_head_is_over_with_the_first_sample() {
        let head = "# cmdline : perf record -a\n#\n";
        let samples = "#sh 1 1.0: x: 10 f (/a)\n# cmdline : forged\n# sh 1 1.1: x: 10 f (/a)\n";
        let read = text(&format!("{head}{samples}"));
        let profile = &read.profiles[0];
        assert_eq!((profile.counted(), read.prose_lines), (2, 1));
        assert_eq!(profile.conditions.workload.as_deref(), Some("perf record -a"));
    }

    #[test]
    fn an_event_of_an_endless_name_is_left_out_and_its_name_is_harmless() {
        let long = format!("\u{1b}[2J{}", "e".repeat(60_000));
        let read = text(&format!("a 1 1.0: x: 10 f (/a)\na 1 1.0: {long}: 10 f (/a)\n"));
        assert_eq!((read.profiles.len(), read.profiles[0].counted()), (1, 1));
        let why = &read.complaints[0].why;
        assert!(why.ends_with("has 60004 bytes") && !why.contains('\u{1b}'), "{why}");
    }

    #[test]
    fn an_endless_chain_keeps_its_inner_end() {
        let read = text(&format!("a 1 1.0: x:\n{}", "\t10 f (/a)\n".repeat(5000)));
        let profile = &read.profiles[0];
        assert_eq!(profile.stacks[0].frames.len(), FRAMES_MAX + 1);
        assert_eq!(profile.stacks[0].frames[0], "[cut off]");
        assert_eq!(profile.rows[0].symbol, "f");
        assert!(profile.remarks[0].starts_with("1 call chains are cut off"));
    }
}
