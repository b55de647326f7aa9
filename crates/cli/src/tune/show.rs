//! The text of answers to `linerate tune`, in ethtool's words.

use serde_json::Value;

/// The part of an answer to print.
pub(super) enum View {
    /// Settings of one of ethtool's letters; all settings without a letter.
    Settings(Option<char>),
    Driver,
    Statistics,
    Set,
    Keep,
}

/// Formats the answer as a table.
pub(super) fn table(view: &View, answer: &Value) -> String {
    let mut text = String::new();
    match view {
        View::Keep => {
            let kept = &answer["kept"];
            return format!("kept {kept} {}\n", if kept == 1 { "setting" } else { "settings" });
        }
        View::Set => set(answer, &mut text),
        _ => {
            for (name, port) in answer["ports"].as_object().into_iter().flatten() {
                match view {
                    View::Driver => {
                        text += &format!("Driver of {name}:\n");
                        for key in ["driver", "device", "mode"] {
                            text += &format!("  {key:11} {}\n", word(&port[key]));
                        }
                        let queues = port["queues"].as_array().map_or(0, Vec::len);
                        text += &format!("  {:11} {queues}\n", "queues");
                        for why in port["statistics"]["refused"].as_array().into_iter().flatten() {
                            text += &format!("  {:11} {}\n", "note", word(why));
                        }
                    }
                    View::Statistics => {
                        text += &format!("Statistics of {name}:\n");
                        counts("", &port["statistics"], &mut text);
                        let lines = port["statistics"]["moderation"].as_array();
                        for (queue, line) in lines.into_iter().flatten().enumerate() {
                            text += &format!("  moderation.{queue}: {}\n", word(line));
                        }
                    }
                    View::Settings(letter) => settings(name, port, *letter, &mut text),
                    View::Set | View::Keep => {}
                }
            }
            if matches!(view, View::Statistics) {
                let mut drops = String::new();
                counts("", &answer["dropped"], &mut drops);
                text += "Dropped by all ports:";
                text += &if drops.is_empty() { " none\n".into() } else { format!("\n{drops}") };
            }
        }
    }
    let reverts = match view {
        // The revert of another setting does not concern this change.
        View::Set => &answer["this_reverts_in_seconds"],
        _ => &answer["reverts_in_seconds"],
    };
    if let Some(left) = reverts.as_f64() {
        let digits = usize::from(left < 1.5);
        text += &format!("reverts in {left:.digits$} s unless: linerate tune PATH --keep\n");
    }
    if let Some(why) = answer["revert_failed"].as_str() {
        text += &format!("the last revert failed: {why}\n");
    }
    text
}

/// Adds the values before and after a change.
fn set(answer: &Value, text: &mut String) {
    for set in answer["set"].as_array().into_iter().flatten() {
        let mut before: Vec<String> =
            set["before"].as_array().into_iter().flatten().map(word).collect();
        before.dedup();
        let (name, applied, asked) = (dashed(&set["name"]), word(&set["applied"]), &set["asked"]);
        *text += &format!("{name}  {} -> {applied}", before.join(" "));
        if *asked != set["applied"] {
            *text += &format!("  (asked {})", word(asked));
        }
        let us = set["took_us"].as_f64().unwrap_or_default();
        let after = set["packets"].as_u64().map(|packets| format!("{packets} packets, "));
        *text += &format!("  after {}{us:.0} us\n", after.unwrap_or_default());
        if let Some(note) = set["note"].as_str() {
            *text += &format!("  note: {note}\n");
        }
    }
}

/// Adds the settings of a port's queues that belong to a letter; queues with equal settings are
/// shown once.
fn settings(name: &str, port: &Value, letter: Option<char>, text: &mut String) {
    let queues = port["queues"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut from = 0;
    while let Some(queue) = queues.get(from) {
        let is_like = |other: &&Value| {
            other["settings"] == queue["settings"]
                && (letter != Some('l') || other["worker"] == queue["worker"])
        };
        let alike = queues[from..].iter().take_while(is_like).count();
        let of = match (alike, queues.len()) {
            (_, 1) => String::new(),
            (1, _) => format!(", queue {from}"),
            _ => format!(", queues {from} to {}", from + alike - 1),
        };
        *text += &format!("Settings of {name}{of}:\n");
        if letter == Some('l') {
            *text += &format!("  {:11} {}\n", "worker", word(&queue["worker"]));
        }
        for row in queue["settings"].as_array().into_iter().flatten() {
            if letter.is_some_and(|letter| word(&row["letter"]) != letter.to_string()) {
                continue;
            }
            let (name, values) = (dashed(&row["name"]), word(&row["values"]));
            let (value, more) = match row["value"].as_str() {
                Some(value) => (value, values),
                None => ("n/a", word(&row["why"])),
            };
            let more =
                if row["live"] == false { format!("{more}; fixed at the start") } else { more };
            *text += &format!("  {name:11} {value:25} {more}\n");
        }
        from += alike.max(1);
    }
}

/// Adds each number and text of an object, preceded by its path.
fn counts(path: &str, value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            counts(&path, value, text);
        }),
        Value::Array(values) => values.iter().for_each(|value| match &value["packets"] {
            Value::Null => {}
            packets => *text += &format!("  {path}.{packets}: {}\n", value["calls"]),
        }),
        Value::Null => {}
        Value::String(empty) if empty.is_empty() => {}
        value => *text += &format!("  {path}: {}\n", word(value)),
    }
}

/// Returns a setting's name in ethtool's form, with `-` for `_`.
fn dashed(name: &Value) -> String {
    word(name).replace('_', "-")
}

/// Returns a text without quotes; any other value in JSON.
fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_is_printed_with_what_it_did_not_obtain() {
        let port = serde_json::json!({"driver": "xdp", "device": "e0", "mode": "AF_XDP native copy",
            "queues": [{}], "statistics": {"refused": ["zero-copy: the driver has none"]}});
        let text = table(&View::Driver, &serde_json::json!({"ports": {"west": port}}));
        let lines = [
            "Driver of west:",
            "  driver      xdp",
            "  device      e0",
            "  mode        AF_XDP native copy",
            "  queues      1",
            "  note        zero-copy: the driver has none",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn answer_is_printed_in_ethtools_words() {
        let row = |name: &str, value: Value, why: Value, live: bool| {
            serde_json::json!({"name": name, "letter": "c", "value": value, "why": why,
                "values": "1..=9", "live": live})
        };
        let rows = [
            row("rx_usecs", Value::Null, "its moderation is not fixed".into(), true),
            row("rx_ring", "256".into(), Value::Null, false),
        ];
        let queue = |n| serde_json::json!({"queue": n, "worker": n, "settings": rows});
        let port = serde_json::json!({"queues": [queue(0), queue(1)]});
        let shown = serde_json::json!({"ports": {"west": port}, "reverts_in_seconds": 9.6,
            "revert_failed": "cannot pin worker 0"});
        let text = table(&View::Settings(None), &shown);
        let lines = [
            "Settings of west, queues 0 to 1:",
            "  rx-usecs    n/a                       its moderation is not fixed",
            "  rx-ring     256                       1..=9; fixed at the start",
            "reverts in 10 s unless: linerate tune PATH --keep",
            "the last revert failed: cannot pin worker 0",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        let statistics = serde_json::json!({"missed": 3, "moderation": ["8.2 packets an irq"]});
        let drops = serde_json::json!({"ports": {"west": {"statistics": statistics}}, "dropped": {"too_long": 2}});
        let text = table(&View::Statistics, &drops);
        let lines = [
            "Statistics of west:",
            "  missed: 3",
            "  moderation.0: 8.2 packets an irq",
            "Dropped by all ports:",
            "  too_long: 2",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        let done = serde_json::json!({"set": [{"name": "tx_batch", "before": ["64", "64"],
            "asked": "1", "applied": "1", "note": "n/a", "packets": 7, "took_us": 31.4}],
            "reverts_in_seconds": 3.2, "this_reverts_in_seconds": 59.8});
        let text = table(&View::Set, &done);
        let lines = [
            "tx-batch  64 -> 1  after 7 packets, 31 us",
            "  note: n/a",
            "reverts in 60 s unless: linerate tune PATH --keep",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        let soon = serde_json::json!({"set": [], "this_reverts_in_seconds": 0.46});
        assert!(table(&View::Set, &soon).starts_with("reverts in 0.5 s unless: "));
    }
}
