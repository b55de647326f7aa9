//! Parsers of single lines of `perf script`.

use super::UNKNOWN;
use crate::conditions::Conditions;
use crate::profile::Space;
use crate::read::lines::excerpt;
use crate::read::token;

/// A line that begins with the running program and the time.
#[derive(Debug, PartialEq)]
pub(super) enum Head<'a> {
    /// The first line of a sample.
    Sample(Sample<'a>),
    /// Samples that the kernel could not deliver.
    Lost(u64),
    /// Another record, which `perf script` prints on request.
    Record,
}

/// First line of a sample.
#[derive(Debug, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) event: &'a str,
    /// Events for which the sample stands.
    pub(super) period: Option<u64>,
    /// Frame of the sample, if it is on the same line.
    pub(super) frame: Option<Frame<'a>>,
}

/// A frame of a sample's call chain.
#[derive(Debug, PartialEq)]
pub(super) struct Frame<'a> {
    pub(super) symbol: &'a str,
    /// Start address of a kernel function. Absent for programs, which are mapped at varying
    /// addresses.
    pub(super) start: Option<u64>,
    pub(super) object: Option<&'a str>,
    pub(super) space: Space,
}

impl Frame<'_> {
    pub(super) const UNKNOWN: Frame<'static> =
        Frame { symbol: UNKNOWN, start: None, object: None, space: Space::Unknown };
}

/// Parses `comm pid [cpu] time: …`; `None` for another kind of line.
///
/// # Errors
/// What is wrong, if it begins as that and does not go on so.
pub(super) fn head(line: &str) -> Option<Result<Head<'_>, String>> {
    let rest = after_time(line)?.trim_start();
    Some(match rest.strip_prefix("PERF_RECORD_") {
        Some(record) => Ok(lost(record).map_or(Head::Record, Head::Lost)),
        None => what_happened(rest).map(Head::Sample),
    })
}

/// Returns the number of lost samples in a record: `LOST lost 7`, or `LOST_SAMPLES lost 7`.
fn lost(record: &str) -> Option<u64> {
    let (kind, rest) = record.split_once(char::is_whitespace)?;
    let count = rest.trim().strip_prefix("lost ")?;
    matches!(kind, "LOST" | "LOST_SAMPLES").then(|| token::count(count).ok())?
}

/// Returns the text after the time. A program's name may contain blanks, so the time is searched
/// for, together with the process number before it.
fn after_time(line: &str) -> Option<&str> {
    let mut before = ["", ""];
    for (at, token) in tokens(line) {
        let [pid_or_none, pid_or_cpu] = before;
        let pid = if is_cpu(pid_or_cpu) { pid_or_none } else { pid_or_cpu };
        if is_time(token) && is_pid(pid) {
            return line.get(at + token.len()..);
        }
        before = [pid_or_cpu, token];
    }
    None
}

/// Returns the words of a line with their positions.
fn tokens(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let at = move |token: &str| token.as_ptr() as usize - line.as_ptr() as usize;
    line.split_whitespace().map(move |token| (at(token), token))
}

/// Returns true for a CPU's number in brackets: `[001]`.
fn is_cpu(token: &str) -> bool {
    let number = token.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    number.is_some_and(|number| token::count(number).is_ok())
}

/// Returns true for the number of a process, with or without its thread (`8297`, `8297/8298`), and
/// for -1, which perf prints for an unknown process.
fn is_pid(token: &str) -> bool {
    let is_one = |one: &str| one == "-1" || token::count(one).is_ok();
    match token.split_once('/') {
        Some((pid, tid)) => is_one(pid) && is_one(tid),
        None => is_one(token),
    }
}

/// Returns true for a time in seconds: `22984.992094:`.
fn is_time(token: &str) -> bool {
    token.strip_suffix(':').is_some_and(|time| token::load(time).is_ok())
}

/// Parses `period event: frame`, where period and frame are optional.
fn what_happened(rest: &str) -> Result<Sample<'_>, String> {
    let (first, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let counted = !first.is_empty() && first.bytes().all(|b| b.is_ascii_digit());
    let period = if counted { Some(token::count(first)?) } else { None };
    let rest = if counted { after.trim_start() } else { rest };
    let (event, place) = match rest.split_once(": ") {
        Some((event, place)) => (event, place.trim_start()),
        None => match rest.strip_suffix(':') {
            Some(event) => (event, ""),
            None => return Err(format!("{} is not an event", excerpt(rest))),
        },
    };
    // Blanks may separate the terms of an event: cpu/event=0x24, umask=0x1/.
    if event.is_empty() || (event.contains(char::is_whitespace) && !event.contains('/')) {
        return Err(format!("{} is not an event", excerpt(event)));
    }
    // A tracepoint prints its arguments here instead of a frame; they are ignored.
    let frame = frame(place).and_then(Result::ok);
    Ok(Sample { event, period, frame })
}

/// Parses `address symbol+offset (object)`, where all but the address is optional; `None` for
/// another kind of line.
///
/// # Errors
/// What is wrong with the address.
pub(super) fn frame(line: &str) -> Option<Result<Frame<'_>, String>> {
    let (address, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if address.is_empty() || !address.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    Some(token::address(address).map(|address| place(address, rest.trim())))
}

fn place(address: u64, rest: &str) -> Frame<'_> {
    let (symbol, object) = match object_at_end(rest) {
        Some((symbol, object)) => (symbol, Some(object)),
        None => (rest, None),
    };
    let (symbol, offset) = match symbol.rsplit_once("+0x") {
        Some((name, offset)) if !name.is_empty() => (name, u64::from_str_radix(offset, 16).ok()),
        _ => (symbol, None),
    };
    let space = space_of(address, object);
    let in_kernel = space == Space::Kernel;
    Frame {
        symbol: if symbol.is_empty() { UNKNOWN } else { symbol },
        start: offset.filter(|_| in_kernel).and_then(|offset| address.checked_sub(offset)),
        object: object.filter(|name| !matches!(*name, UNKNOWN | "inlined" | "")).map(named),
        space,
    }
}

/// Splits `symbol (object)`, both of which may contain brackets.
fn object_at_end(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_suffix(')')?;
    let mut depth = 1_u32;
    for (at, c) in inner.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            let symbol = inner.get(..at)?;
            let apart = symbol.is_empty() || symbol.ends_with(char::is_whitespace);
            return apart.then_some((symbol.trim_end(), inner.get(at + 1..)?));
        }
    }
    None
}

/// Returns one name for the kernel, whether perf read its symbols from kallsyms or from an image.
fn named(object: &str) -> &str {
    let image = object.rsplit('/').next().is_some_and(|file| file.starts_with("vmlinux"));
    if image || object.starts_with("[kernel.") { "[kernel]" } else { object }
}

fn space_of(address: u64, object: Option<&str>) -> Space {
    // On 64-bit CPUs the upper half of the addresses is the kernel's.
    if address >= 1 << 63 {
        return Space::Kernel;
    }
    let Some(object) = object else { return Space::Unknown };
    match object {
        // Kernel code that is mapped into programs, and code that programs generate at run time.
        "[vdso]" | "[vsyscall]" | "[heap]" | "[stack]" | "[anon]" | "//anon" => Space::User,
        UNKNOWN | "inlined" | "" => Space::Unknown,
        _ if named(object) == "[kernel]" || object.starts_with('[') => Space::Kernel,
        _ => Space::User,
    }
}

/// Parses a line of the header that `perf script --header` prints: the conditions of the recording.
pub(super) fn header(comment: &str, conditions: &mut Conditions) {
    let Some((key, value)) = comment.split_once(':') else { return };
    let (key, value) = (key.trim(), value.trim());
    match key {
        "os release" => conditions.kernel = Some(format!("Linux {value}")),
        "cpudesc" => conditions.cpu = Some(value.to_owned()),
        "nrcpus online" => conditions.cpus = value.parse().ok(),
        "cmdline" => conditions.workload = Some(value.to_owned()),
        "perf version" => conditions.tool = Some(format!("perf {value}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(line: &str) -> (&str, Option<u64>, Option<&str>) {
        let Head::Sample(sample) = head(line).unwrap().unwrap() else { panic!("{line}") };
        (sample.event, sample.period, sample.frame.map(|frame| frame.symbol))
    }

    #[test]
    fn a_sample_is_known_by_its_time_whatever_the_program_is_called_or_without_its_name() {
        let cases = [
            ("spin  8297 22984.992094:    5025125 cpu-clock:", "cpu-clock", Some(5_025_125)),
            ("8297 22984.992094:    5025125 cpu-clock:", "cpu-clock", Some(5_025_125)),
            ("tmux: server 8297/8299 [001] 2.5: 7 cycles:u:", "cycles:u", Some(7)),
            (
                "kworker/0:1 12 [000] 2.5: sched:sched_switch: a:1 ==> b:2",
                "sched:sched_switch",
                None,
            ),
            (
                "a -1 [000] 2.5: 1 cpu/event=0x24, umask=0x1/:",
                "cpu/event=0x24, umask=0x1/",
                Some(1),
            ),
        ];
        for (line, name, period) in cases {
            assert_eq!(event(line), (name, period, None), "{line}");
        }
        let one =
            "swapper 0 [000] 2.5: 10 cpu-clock:  ffffffff821f2c2b halt+0xb ([kernel.kallsyms])";
        assert_eq!(event(one), ("cpu-clock", Some(10), Some("halt")));
    }

    #[test]
    fn malformed_sample_line_is_reported() {
        for (line, why) in [
            ("spin 8297 22984.992094:    5025125", "\"\" is not an event"),
            ("spin 8297 22984.992094:", "\"\" is not an event"),
            ("spin 8297 1.5: 99999999999999999999 cycles:", "does not fit"),
            ("spin 8297 1.5: -5 cycles:", "\"-5 cycles\" is not an event"),
        ] {
            assert!(head(line).unwrap().unwrap_err().contains(why), "{line}");
        }
        for line in ["at 1.5: nothing", "", "spin 8297 [x] 1.5: 7 cycles:"] {
            assert_eq!(head(line), None, "{line}");
        }
    }

    #[test]
    fn a_place_has_a_symbol_an_object_and_a_side() {
        let case = |line: &'static str| {
            let frame = frame(line).unwrap().unwrap();
            (frame.symbol, frame.object, frame.space, frame.start)
        };
        let kernel = "ffffffff821f2c2b halt+0xb ([kernel.kallsyms])";
        let start = Some(0xffff_ffff_821f_2c20);
        assert_eq!(case(kernel), ("halt", Some("[kernel]"), Space::Kernel, start));
        let module = "ffffffffc0001010 e1000_clean+0x10 ([e1000])";
        assert_eq!(case(module).1, Some("[e1000]"));
        let cpp = "114a std::f(int const&, char)+0x1a (/usr/lib/a b (deleted))";
        let object = Some("/usr/lib/a b (deleted)");
        assert_eq!(case(cpp), ("std::f(int const&, char)", object, Space::User, None));
        assert_eq!(case("7fff1 [unknown] ([vdso])"), (UNKNOWN, Some("[vdso]"), Space::User, None));
        assert_eq!(case("0 [unknown] ([unknown])"), (UNKNOWN, None, Space::Unknown, None));
        assert_eq!(case("1154 f (inlined)"), ("f", None, Space::Unknown, None));
        assert_eq!(case("1154 f(int)"), ("f(int)", None, Space::Unknown, None));
        assert_eq!(case("1154"), (UNKNOWN, None, Space::Unknown, None));
        assert_eq!(case("1154 a+0xzz (b)").0, "a");
        assert!(frame("11112222333344445 f (b)").unwrap().is_err());
        assert_eq!(frame("main.c:12"), None);
    }

    #[test]
    fn lost_samples_are_counted_as_perf_says() {
        let found = |line: &'static str| head(line).unwrap().unwrap();
        assert_eq!(found("spin 8297 1.5: PERF_RECORD_LOST lost 12"), Head::Lost(12));
        assert_eq!(found("spin 8297 1.5: PERF_RECORD_LOST_SAMPLES lost 3"), Head::Lost(3));
        assert_eq!(found("spin 8297 1.5: PERF_RECORD_COMM exec: spin:8297/8297"), Head::Record);
    }
}
