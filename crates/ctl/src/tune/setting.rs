//! The table of a run's settings: the name, the letter of ethtool that shows it, and the values of
//! each setting.

use linerate_datapath::{DeviceHold, PortStats, QueueSettings, WorkerStats, knob};
use linerate_port::moderation::{FORMS, HOLD_FORMS, Moderation};
use linerate_port::thread;

use serde::Serialize;

/// ethtool's letters that have settings: the letter that shows them, the letter that changes them,
/// and their subject.
pub const LETTERS: [(char, char, &str); 4] = [
    ('c', 'C', "interrupt coalescing"),
    ('k', 'K', "transmit features"),
    ('g', 'G', "rings"),
    ('l', 'L', "channels: the worker of each queue"),
];

/// A setting of a queue, with its declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettingRow {
    /// The setting's name; the command writes `-` for `_`.
    pub name: &'static str,
    /// ethtool's letter that shows the setting.
    pub letter: char,
    /// The knobs that declare the setting's numeric values.
    pub knobs: &'static [&'static knob::Knob],
    /// The values other than numbers.
    words: &'static str,
    /// The reason why the setting cannot be changed while packets pass; empty if it can be changed.
    pub fixed: &'static str,
}

/// All settings of a queue.
pub const SETTINGS: [SettingRow; 9] = [
    SettingRow {
        name: "moderation",
        letter: 'c',
        knobs: &[&knob::LATENCY, &knob::CPU],
        words: FORMS,
        fixed: "",
    },
    SettingRow { name: "rx_usecs", letter: 'c', knobs: &[&knob::USECS], words: "", fixed: "" },
    SettingRow { name: "rx_frames", letter: 'c', knobs: &[&knob::FRAMES], words: "", fixed: "" },
    SettingRow { name: "hold", letter: 'c', knobs: &[], words: HOLD_FORMS, fixed: "" },
    SettingRow {
        name: "tx_batch",
        letter: 'k',
        knobs: &[&knob::TX_BATCH],
        words: "auto",
        fixed: "",
    },
    SettingRow { name: "shape", letter: 'k', knobs: &[], words: "a rate, as 10Mbit", fixed: "" },
    SettingRow {
        name: "qdisc",
        letter: 'k',
        knobs: &[],
        words: "yes, no",
        fixed: "a discipline is created with its port: add shape= or qdisc= to the port's text",
    },
    SettingRow {
        name: "rx_ring",
        letter: 'g',
        knobs: &[],
        words: "packets",
        fixed: "ring sizes are fixed when a device is opened: start the run again with another port text",
    },
    SettingRow {
        name: "cpu",
        letter: 'l',
        knobs: &[],
        words: "a CPU of the process, or any",
        fixed: "",
    },
];

impl SettingRow {
    /// Returns the setting called `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static SettingRow> {
        SETTINGS.iter().find(|row| row.name == name)
    }

    /// Describes the values that the setting can have.
    #[must_use]
    pub fn values(&self) -> String {
        match (self.knobs, self.words) {
            ([knob], "") => format!("{knob} {}", knob.unit),
            ([knob], words) => format!("{knob} {}, or {words}", knob.unit),
            (_, words) => words.to_owned(),
        }
    }
}

/// Reason for a missing value, or a refused change, of a queue whose worker the socket's handle
/// does not have.
pub(super) const ELSEWHERE: &str = "this socket does not control its worker";

/// A setting of a queue with its present value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    name: &'static str,
    letter: char,
    /// The present value; `None` if there is none, for the reason in `why`.
    value: Option<String>,
    why: Option<&'static str>,
    values: String,
    /// True if the setting can be changed while packets pass.
    live: bool,
}

/// Returns every setting of a queue, in the order of [`SETTINGS`]; `hold` is that of its device.
/// `worker` is `None` if the socket does not control the queue's worker.
pub(super) fn show(
    port: &PortStats,
    queue: &QueueSettings,
    worker: Option<WorkerStats>,
    hold: Option<DeviceHold>,
) -> Vec<Shown> {
    let shown = |row: &SettingRow| {
        let (value, why) = match value(row.name, port, queue, worker, hold) {
            Ok(value) => (Some(value), None),
            Err(why) => (None, Some(why)),
        };
        let (name, letter, values) = (row.name, row.letter, row.values());
        Shown { name, letter, value, why, values, live: row.fixed.is_empty() }
    };
    SETTINGS.iter().map(shown).collect()
}

/// Returns a setting's present value, or the reason why it has none.
fn value(
    name: &str,
    port: &PortStats,
    queue: &QueueSettings,
    worker: Option<WorkerStats>,
    hold: Option<DeviceHold>,
) -> Result<String, &'static str> {
    let fixed = match queue.moderation {
        _ if !queue.gathers => Err("no device queues its packets"),
        Moderation::Fixed { usecs, frames } => Ok((usecs, frames)),
        _ => Err("its moderation is not fixed"),
    };
    match name {
        "moderation" => Ok(queue.moderation.to_string()),
        "rx_usecs" => fixed.map(|(usecs, _)| usecs.to_string()),
        "rx_frames" => fixed.map(|(_, frames)| frames.to_string()),
        "hold" => hold.map(|hold| hold.to_string()).ok_or(match worker {
            Some(_) => "its device has none that can be changed",
            None => ELSEWHERE,
        }),
        "tx_batch" => Ok(queue.tx_batch.to_string()),
        "shape" => queue.shape.map(|rate| rate.to_string()).ok_or("it was opened without shape="),
        "qdisc" => Ok(if port.qdisc.is_some() { "yes" } else { "no" }.to_owned()),
        "rx_ring" => {
            queue.rx_ring_len.map(|len| len.to_string()).ok_or("its driver does not support it")
        }
        "cpu" => match worker.map(|worker| worker.pinned) {
            Some(Some(cpu)) => Ok(cpu.to_string()),
            Some(None) => Ok("any".to_owned()),
            None => Err(ELSEWHERE),
        },
        _ => Err("it is not shown"),
    }
}

/// Returns the CPU that a text names, one of those that the process may use; `None` for `any`.
pub(super) fn cpu(text: &str) -> Result<Option<usize>, String> {
    if text == "any" {
        return Ok(None);
    }
    let allowed = thread::allowed_cpus().map_err(|e| e.why)?;
    let named = text.parse::<usize>().ok().filter(|cpu| allowed.contains(cpu));
    named.map(Some).ok_or_else(|| {
        let all: Vec<String> = allowed.iter().map(usize::to_string).collect();
        format!("{text:?} is not one of the CPUs that the run may use: {}", all.join(" "))
    })
}

/// Returns the CPUs of an order to run on `cpu`, or on any: all that the process may use.
pub(super) fn cpus(cpu: Option<usize>) -> linerate_port::Result<Vec<usize>> {
    cpu.map_or_else(thread::allowed_cpus, |cpu| Ok(vec![cpu]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_letter_and_every_letter_a_row() {
        for row in &SETTINGS {
            assert!(LETTERS.iter().any(|(show, ..)| *show == row.letter), "{}", row.name);
            assert!(!row.values().is_empty(), "{}", row.name);
            assert!(row.knobs.iter().all(|knob| knob.live == row.fixed.is_empty()), "{}", row.name);
        }
        assert!(LETTERS.iter().all(|(show, ..)| SETTINGS.iter().any(|row| row.letter == *show)));
        let values = SettingRow::find("tx_batch").unwrap().values();
        assert_eq!(values, "1..=1024 packets, or auto");
    }

    #[test]
    fn cpu_is_one_that_the_process_may_use() {
        let all = thread::allowed_cpus().unwrap();
        assert_eq!((cpu(&all[0].to_string()), cpu("any")), (Ok(Some(all[0])), Ok(None)));
        assert_eq!((cpus(Some(all[0])).unwrap(), cpus(None).unwrap()), (vec![all[0]], all));
        for bad in ["", "-1", "1048576", "none", "0,1,99999"] {
            assert!(cpu(bad).unwrap_err().contains("may use"), "{bad}");
        }
    }
}
