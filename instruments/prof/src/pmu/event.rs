//! An event as a user types it, and as the kernel wants it.

use std::fmt;

use linerate_sys::{Code, Error, Result};
use serde::Serialize;

use super::table::{self, Entry};
use super::{Family, family};
use crate::sample::Trigger;

/// `type` of `perf_event_attr`: generic events that each kernel driver maps to its CPU.
pub(super) const TYPE_HARDWARE: u32 = 0;
/// Events of the kernel, which need no counter.
pub(super) const TYPE_SOFTWARE: u32 = 1;
/// Generic events of the caches.
pub(super) const TYPE_CACHE: u32 = 3;
/// The CPU's own code.
pub(super) const TYPE_RAW: u32 = 4;

/// A quantity of a CPU, by one name for all models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Quantity {
    /// Cycles of the core's clock while it was not halted.
    Cycles,
    /// Instructions retired.
    Instructions,
    /// Cache lines brought into the core's L2.
    L2LinesIn,
    /// Cache lines that left the core's L2 to make room.
    L2LinesOut,
    /// Cache lines that came out of another core's cache.
    LinesFromOtherCore,
    /// Accesses that the first data cache had no line for.
    L1dMisses,
    /// Accesses that the last cache before memory had no line for.
    LlcMisses,
}

/// An event to count or to sample by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Event {
    /// As one asks for it: `cycles`, `L2_LINES_OUT`, `task-clock`, `r1643`.
    pub name: String,
    /// `type` of `perf_event_attr`.
    pub type_: u32,
    /// `config` of `perf_event_attr`.
    pub config: u64,
    /// The CPU's own code, as in `r1643`; `None` for an event of the kernel's.
    pub raw: Option<String>,
    /// The quantity it stands for; `None` for a raw code that the user chose and for the kernel's events.
    pub quantity: Option<Quantity>,
}

impl Event {
    /// The event called `text`, on this machine: a name of [`Quantity`], of a software event, or a
    /// raw code `rNNNN`. Case does not matter.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` for a quantity that this family of CPU has no event for, with the reason and
    /// what there is instead, and for a name that nobody knows.
    pub fn parse(text: &str) -> Result<Event> {
        Event::parse_on(family::here(), text)
    }

    /// The same on a machine of `family`.
    ///
    /// # Errors
    /// As [`Event::parse`].
    pub fn parse_on(family: Family, text: &str) -> Result<Event> {
        let text = text.trim();
        if let Some(quantity) = Quantity::named(text) {
            return Event::of_on(family, quantity);
        }
        if let Some(event) = software(text) {
            return Ok(event);
        }
        raw(text).ok_or_else(|| {
            let known = Quantity::ALL.map(Quantity::as_str).join(", ");
            let software = SOFTWARE.map(|(name, ..)| name).join(", ");
            Error::new(Code::Unsupported, format!("cannot count {text:?}"), "no such event")
                .fix(format!("one of {known}, {software}, or a raw code such as r1643"))
        })
    }

    /// The event that counts `quantity` on this machine.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if its family of CPU has none.
    pub fn of(quantity: Quantity) -> Result<Event> {
        Event::of_on(family::here(), quantity)
    }

    fn of_on(family: Family, quantity: Quantity) -> Result<Event> {
        table::entry(family, quantity).map(|entry| entry.event()).map_err(|why| {
            let instead = Fallback::of(quantity);
            Error::new(Code::Unsupported, format!("cannot count {quantity}"), why).fix(format!(
                "count by a raw code of your CPU's manual (rNNNN); instead: {instead}"
            ))
        })
    }

    /// `type` and `config` of `perf_event_attr`.
    #[must_use]
    pub const fn attr(&self) -> (u32, u64) {
        (self.type_, self.config)
    }

    /// Returns true if the kernel counts it without a counter of the CPU.
    #[must_use]
    pub const fn is_software(&self) -> bool {
        // 2 is a tracepoint, 5 a breakpoint: none takes one of the counters that we are short of.
        !matches!(self.type_, TYPE_HARDWARE | TYPE_CACHE | TYPE_RAW)
    }

    /// Returns the name by which perf(1) knows it.
    #[must_use]
    pub fn perf_name(&self) -> String {
        match (self.type_, self.config) {
            (TYPE_HARDWARE, 3) => "cache-misses".to_owned(),
            (TYPE_CACHE, _) => "L1-dcache-load-misses".to_owned(),
            _ => self.raw.clone().unwrap_or_else(|| self.name.clone()),
        }
    }

    /// Returns the measurement to use where it cannot be counted.
    #[must_use]
    pub const fn fallback(&self) -> Fallback {
        match self.quantity {
            Some(quantity) => Fallback::of(quantity),
            None => Fallback::Nothing,
        }
    }

    /// Returns its entry of the table; `None` if the table has none.
    #[must_use]
    pub fn entry(&self) -> Option<Entry> {
        table::entry(family::here(), self.quantity?).ok()
    }
}

/// To sample by it.
impl From<&Event> for Trigger {
    fn from(event: &Event) -> Trigger {
        let mut trigger = Trigger::new(event.name.clone(), event.type_, event.config);
        trigger.raw.clone_from(&event.raw);
        trigger
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.raw {
            Some(raw) if *raw != self.name => write!(f, "{} ({raw})", self.name),
            _ => f.write_str(&self.name),
        }
    }
}

impl Quantity {
    /// All, in the order in which they are listed.
    pub const ALL: [Quantity; 7] = [
        Quantity::Cycles,
        Quantity::Instructions,
        Quantity::L2LinesIn,
        Quantity::L2LinesOut,
        Quantity::LinesFromOtherCore,
        Quantity::L1dMisses,
        Quantity::LlcMisses,
    ];

    /// As a user types it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Quantity::Cycles => "cycles",
            Quantity::Instructions => "instructions",
            Quantity::L2LinesIn => "L2_LINES_IN",
            Quantity::L2LinesOut => "L2_LINES_OUT",
            Quantity::LinesFromOtherCore => "LINES_FROM_OTHER_CORE",
            Quantity::L1dMisses => "L1D_MISSES",
            Quantity::LlcMisses => "LLC_MISSES",
        }
    }

    /// The quantity of that name, by itself or as `perf` calls it.
    fn named(text: &str) -> Option<Quantity> {
        let lower = text.to_ascii_lowercase().replace('-', "_");
        Some(match lower.as_str() {
            "cpu_cycles" => Quantity::Cycles,
            "l1_dcache_load_misses" | "l1d_misses" => Quantity::L1dMisses,
            "cache_misses" | "llc_load_misses" => Quantity::LlcMisses,
            name => *Quantity::ALL.iter().find(|q| q.as_str().eq_ignore_ascii_case(name))?,
        })
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Another instrument for the same question. Its figure is printed under its own name, never under
/// the counter's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// For cycles: CPU time, in ticks of the time stamp counter. It takes no part in the core's
    /// changes of clock.
    CpuTimeInTscTicks,
    /// For instructions: those that callgrind counts. User space only, and exact.
    CallgrindInstructions,
    /// For lines taken from another core: the pool's matrix of frees, core × core. It sees the
    /// frames' hand-overs, not every line.
    PoolMatrix,
    /// Nothing; the figure is `n/a`.
    Nothing,
}

impl Fallback {
    /// Returns the stand-in for a counter of `quantity`.
    #[must_use]
    pub const fn of(quantity: Quantity) -> Fallback {
        match quantity {
            Quantity::Cycles => Fallback::CpuTimeInTscTicks,
            Quantity::Instructions => Fallback::CallgrindInstructions,
            Quantity::LinesFromOtherCore => Fallback::PoolMatrix,
            Quantity::L2LinesIn
            | Quantity::L2LinesOut
            | Quantity::L1dMisses
            | Quantity::LlcMisses => Fallback::Nothing,
        }
    }

    /// Returns the name that is printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Fallback::CpuTimeInTscTicks => "CPU time in ticks of the TSC",
            Fallback::CallgrindInstructions => "callgrind's count of instructions, user space only",
            Fallback::PoolMatrix => "the pool's core x core matrix of frees",
            Fallback::Nothing => "none",
        }
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kernel's events: name, `config`, other name. Source: `enum perf_sw_ids`, linux/perf_event.h.
pub(super) const SOFTWARE: [(&str, u64, &str); 5] = [
    ("cpu-clock", 0, "cpu-clock"),
    ("task-clock", 1, "task-clock"),
    ("page-faults", 2, "faults"),
    ("context-switches", 3, "cs"),
    ("cpu-migrations", 4, "migrations"),
];

fn software(text: &str) -> Option<Event> {
    let lower = text.to_ascii_lowercase().replace('_', "-");
    let (name, config, _) =
        SOFTWARE.into_iter().find(|(name, _, other)| *name == lower || *other == lower)?;
    let (name, raw, quantity) = (name.into(), None, None);
    Some(Event { name, type_: TYPE_SOFTWARE, config, raw, quantity })
}

/// `r` and 1 to 16 hexadecimal digits, as `perf` takes them.
fn raw(text: &str) -> Option<Event> {
    let digits = text.strip_prefix(['r', 'R'])?;
    // from_str_radix takes a sign, a code has none.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let config = u64::from_str_radix(digits, 16).ok()?;
    let name = raw_code(config);
    Some(Event { raw: Some(name.clone()), name, type_: TYPE_RAW, config, quantity: None })
}

/// `config` in the notation of `perf`.
pub(super) fn raw_code(config: u64) -> String {
    format!("r{config:04x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_as_typed_whatever_their_case() {
        let on = |text| Event::parse_on(Family::Amd1Ah, text).unwrap();
        assert_eq!(on("cycles").attr(), (TYPE_HARDWARE, 0));
        assert_eq!(on(" Instructions ").attr(), (TYPE_HARDWARE, 1));
        assert_eq!(on("lines_from_other_core").raw.as_deref(), Some("r1643"));
        assert_eq!(on("l2-lines-out").to_string(), "L2_LINES_OUT (rff66)");
        assert_eq!(on("task_clock").attr(), (TYPE_SOFTWARE, 1));
        assert_eq!(on("cs").name, "context-switches");
    }

    #[test]
    fn a_raw_code_is_given_to_the_cpu_as_it_stands() {
        let event = Event::parse("R10000DE65").unwrap();
        assert_eq!(event.attr(), (TYPE_RAW, 0x1_0000_de65));
        assert_eq!(event.to_string(), "r10000de65");
        assert_eq!(event.fallback(), Fallback::Nothing);
        for bad in ["r", "r+1", "r-1", "rxyz", "r11112222333344445", "1643", ""] {
            assert!(Event::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_sampled_by_is_what_is_counted() {
        let event = Event::parse_on(Family::Amd1Ah, "L2_LINES_OUT").unwrap();
        let trigger = Trigger::from(&event);
        assert_eq!((trigger.type_, trigger.config), event.attr());
        assert_eq!((trigger.name, trigger.raw), (event.name, event.raw));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let e = Event::parse("L3_LINES_UP").unwrap_err();
        assert_eq!(e.code, Code::Unsupported);
        assert!(e.fix.contains("L2_LINES_OUT") && e.fix.contains("page-faults"), "{e}");
    }

    #[test]
    fn a_quantity_without_an_event_is_refused_with_reason_and_fallback() {
        let e = Event::parse_on(Family::Unknown, "L2_LINES_OUT").unwrap_err();
        assert_eq!(e.code, Code::Unsupported);
        assert!(e.fix.contains("rNNNN") && e.fix.contains("instead: none"), "{e}");
    }
}
