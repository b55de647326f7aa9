//! An event, in the form that users type and in the form that the kernel expects.

use std::fmt;

use linerate_sys::{Code, Error, Result};
use serde::Serialize;

use super::table::{self, Family};

named! {
    /// A quantity of a CPU, under the same name for all models.
    #[derive(Serialize)]
    pub enum Quantity {
        /// Cycles of the core's clock during which the core was not halted.
        Cycles = "cycles",
        /// Instructions retired.
        Instructions = "instructions",
        /// Cache lines brought into the core's L2.
        L2LinesIn = "L2_LINES_IN",
        /// Cache lines evicted from the core's L2.
        L2LinesOut = "L2_LINES_OUT",
        /// Cache lines that came from another core's cache.
        LinesFromOtherCore = "LINES_FROM_OTHER_CORE",
        /// Accesses that missed the first-level data cache.
        L1dMisses = "L1D_MISSES",
        /// Accesses that missed the last-level cache.
        LlcMisses = "LLC_MISSES",
    }
}

/// An event to count or to sample by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Event {
    /// The name as users type it: `cycles`, `L2_LINES_OUT`, `task-clock`, `r1643`.
    pub name: String,
    /// `type` of `perf_event_attr`.
    pub type_: u32,
    /// `config` of `perf_event_attr`.
    pub config: u64,
    /// The CPU's own code, such as `r1643`; `None` for an event of the kernel.
    pub raw: Option<String>,
    /// The quantity that the event measures; `None` for a user's raw code and for the kernel's
    /// events.
    pub quantity: Option<Quantity>,
}

impl Event {
    /// `PERF_TYPE_HARDWARE`: generic events that each kernel driver maps to its CPU.
    pub const HARDWARE: u32 = 0;
    /// `PERF_TYPE_SOFTWARE`: counted by the kernel, without a counter.
    pub const SOFTWARE: u32 = 1;
    /// `PERF_TYPE_HW_CACHE`: generic events of the caches.
    pub const CACHE: u32 = 3;
    /// `PERF_TYPE_RAW`: the CPU's own code.
    pub const RAW: u32 = 4;

    /// Makes an event of the kernel or of the CPU by its numbers.
    #[must_use]
    pub fn new(name: impl Into<String>, type_: u32, config: u64) -> Event {
        let raw = (type_ == Event::RAW).then(|| raw_code(config));
        Event { name: name.into(), type_, config, raw, quantity: None }
    }

    /// Parses the name of an event of this machine: of a [`Quantity`], of a software event, or a
    /// raw code `rNNNN`. Case does not matter.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` for a quantity that this family of CPU has no event for, with the reason and
    /// what there is instead, and for an unknown name.
    pub fn parse(text: &str) -> Result<Event> {
        Event::parse_on(Family::here(), text)
    }

    /// Parses the name of an event as on a machine of `family`.
    ///
    /// # Errors
    /// As [`Event::parse`].
    pub fn parse_on(family: Family, text: &str) -> Result<Event> {
        let text = text.trim();
        if let Some(quantity) = Quantity::named(text) {
            return Event::of_on(family, quantity);
        }
        software(text).or_else(|| raw(text)).ok_or_else(|| {
            let known: Vec<&str> = Quantity::ALL.iter().map(|quantity| quantity.as_str()).collect();
            let (known, software) = (known.join(", "), SOFTWARE.map(|event| event.0).join(", "));
            Error::new(Code::Unsupported, format!("cannot count {text:?}"), "no such event")
                .fix(format!("one of {known}, {software}, or a raw code such as r1643"))
        })
    }

    /// Returns the event that counts `quantity` on this machine.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if its family of CPU has none.
    pub fn of(quantity: Quantity) -> Result<Event> {
        Event::of_on(Family::here(), quantity)
    }

    fn of_on(family: Family, quantity: Quantity) -> Result<Event> {
        table::entry(family, quantity).map(table::Entry::event).map_err(|why| {
            let instead = Fallback::of(quantity);
            Error::new(Code::Unsupported, format!("cannot count {quantity}"), why).fix(format!(
                "count by a raw code of your CPU's manual (rNNNN); instead: {instead}"
            ))
        })
    }

    /// Returns true if the kernel counts the event without a CPU counter.
    #[must_use]
    pub const fn is_software(&self) -> bool {
        // Other types, such as tracepoints (2) and breakpoints (5), do not use the CPU's few
        // counters.
        !matches!(self.type_, Event::HARDWARE | Event::CACHE | Event::RAW)
    }

    /// Returns true for `cpu-clock` and `task-clock`, which count nanoseconds.
    pub(crate) fn is_clock(&self) -> bool {
        self.type_ == Event::SOFTWARE && self.config <= 1
    }

    /// Returns the event's name in perf(1).
    #[must_use]
    pub fn perf_name(&self) -> String {
        match (self.type_, self.config) {
            (Event::HARDWARE, 3) => "cache-misses".to_owned(),
            (Event::CACHE, _) => "L1-dcache-load-misses".to_owned(),
            _ => self.raw.clone().unwrap_or_else(|| self.name.clone()),
        }
    }

    /// Returns the measurement to use if the event cannot be counted.
    #[must_use]
    pub fn fallback(&self) -> Fallback {
        self.quantity.map_or(Fallback::Nothing, Fallback::of)
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
    /// Returns the quantity with that name, which is either our name or the name in `perf`.
    fn named(text: &str) -> Option<Quantity> {
        let lower = text.to_ascii_lowercase().replace('-', "_");
        Some(match lower.as_str() {
            "cpu_cycles" => Quantity::Cycles,
            "l1_dcache_load_misses" => Quantity::L1dMisses,
            "cache_misses" | "llc_load_misses" => Quantity::LlcMisses,
            name => *Quantity::ALL.iter().find(|q| q.as_str().eq_ignore_ascii_case(name))?,
        })
    }
}

named! {
    /// Another instrument for the same question. Its figure is printed under its own name, never
    /// under the counter's.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Fallback {
        /// Replacement for cycles. The time stamp counter does not follow changes of the core's
        /// clock.
        CpuTimeInTscTicks = "CPU time in ticks of the TSC",
        /// Replacement for instructions. User space only, and exact.
        CallgrindInstructions = "callgrind's count of instructions, user space only",
        /// Replacement for lines that move between caches: a model's figure, for a program that an
        /// emulator can run.
        LineModel = "a model of coherent caches, by `linerate lines -- COMMAND`",
        /// No replacement; the figure is `n/a`.
        Nothing = "none",
    }
}

impl Fallback {
    /// Returns the replacement for a counter of `quantity`.
    #[must_use]
    pub const fn of(quantity: Quantity) -> Fallback {
        match quantity {
            Quantity::Cycles => Fallback::CpuTimeInTscTicks,
            Quantity::Instructions => Fallback::CallgrindInstructions,
            Quantity::LinesFromOtherCore | Quantity::L2LinesIn | Quantity::L2LinesOut => {
                Fallback::LineModel
            }
            _ => Fallback::Nothing,
        }
    }
}

/// The kernel's events by `config`: name, other name, meaning. Source: `enum perf_sw_ids`,
/// linux/perf_event.h.
pub(super) const SOFTWARE: [(&str, &str, &str); 5] = [
    ("cpu-clock", "cpu-clock", "time, in ns, by the CPU's clock"),
    ("task-clock", "task-clock", "time that the thread ran, in ns"),
    ("page-faults", "faults", "pages that were not mapped when touched"),
    ("context-switches", "cs", "times that the thread gave up or lost its CPU"),
    ("cpu-migrations", "migrations", "times that the thread went to another CPU"),
];

fn software(text: &str) -> Option<Event> {
    let lower = text.to_ascii_lowercase().replace('_', "-");
    let config = SOFTWARE.iter().position(|(name, other, _)| *name == lower || *other == lower)?;
    Some(Event::new(SOFTWARE[config].0, Event::SOFTWARE, config as u64))
}

/// Parses `r` and 1 to 16 hexadecimal digits, as `perf` does.
fn raw(text: &str) -> Option<Event> {
    let digits = text.strip_prefix(['r', 'R'])?;
    // from_str_radix would accept a sign, which no code has.
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let config = u64::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
    Some(Event::new(raw_code(config), Event::RAW, config))
}

/// Returns `config` in the notation of `perf`.
fn raw_code(config: u64) -> String {
    format!("r{config:04x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_raw_codes_are_taken_as_typed_whatever_their_case() {
        let on = |text| Event::parse_on(Family::Amd1Ah, text).unwrap();
        let attr = |text| (on(text).type_, on(text).config);
        assert_eq!((attr("cycles"), attr(" Instructions ")), ((0, 0), (0, 1)));
        assert_eq!(on("lines_from_other_core").raw.as_deref(), Some("r1643"));
        assert_eq!(on("l2-lines-out").to_string(), "L2_LINES_OUT (rff66)");
        assert_eq!((attr("task_clock"), attr("R10000DE65")), ((1, 1), (4, 0x1_0000_de65)));
        assert_eq!(
            (on("cs").name.as_str(), &*on("R10000DE65").to_string()),
            ("context-switches", "r10000de65")
        );
        for bad in ["r", "r+1", "r-1", "rxyz", "r11112222333344445", "1643", ""] {
            assert!(Event::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones_and_a_quantity_with_what_to_use_instead() {
        let e = Event::parse("L3_LINES_UP").unwrap_err();
        assert_eq!(e.code, Code::Unsupported);
        assert!(e.fix.contains("L2_LINES_OUT") && e.fix.contains("page-faults"), "{e}");
        let e = Event::parse_on(Family::Unknown, "L2_LINES_OUT").unwrap_err();
        assert_eq!(e.code, Code::Unsupported);
        assert!(e.fix.contains("rNNNN") && e.fix.contains("linerate lines"), "{e}");
    }
}
