//! The raw samples as one JSON document, so that statistics can be done again.

use crate::counts::Count;
use crate::rounds::{Row, Turn};
use crate::table::Header;

/// `{"tsc_hz", "sides", "turns", "counts"}`; a turn has one sample a side, in the order of `sides`.
pub fn document(header: &Header, rows: &[Row], counts: &[Count]) -> String {
    let sides = list(header.sides.iter().map(|side| {
        let (name, about, options) = (text(&side.name), text(&side.about), text(&side.options));
        format!(r#"{{"name":{name},"about":{about},"options":{options}}}"#)
    }));
    let turns = rows.iter().flat_map(|row| row.turns.iter().map(|t| turn(row.case.name, t)));
    let counts = list(counts.iter().map(count));
    format!(
        "{{\"schema\":\"linerate-buffers/1\",\"tsc_hz\":{:.0},\"alone\":{},\"load\":{},\n\
         \"sides\":{sides},\n\"turns\":{},\n\"counts\":{counts}}}",
        header.tsc_hz,
        header.alone.as_deref().map_or("null".into(), text),
        text(&header.load),
        list(turns),
    )
}

fn turn(case: &str, turn: &Turn) -> String {
    let samples = list(turn.samples.iter().map(|sample| {
        let (ticks, bursts) = (sample.ticks, sample.bursts);
        let (reps, clean) = (sample.reps, sample.clean);
        format!(r#"{{"ticks":{ticks},"bursts":{bursts},"reps":{reps},"clean":{clean}}}"#)
    }));
    let lines = list(turn.lines.iter().map(|line| format!("{line:.1}")));
    let dropped = turn.dropped.map_or("null".into(), text);
    let (case, round) = (text(case), turn.round);
    format!(
        "{{\"case\":{case},\"round\":{round},\"samples\":{samples},\
         \"line_round_trip_ticks\":{lines},\"dropped\":{dropped}}}\n"
    )
}

fn count(count: &Count) -> String {
    let (case, side) = (text(count.case), text(&count.side));
    match &count.counted {
        Ok(c) => {
            let misses = c.misses.map_or("null".into(), |misses| format!("{misses:.4}"));
            let instructions = c.instructions;
            format!(
                "{{\"case\":{case},\"side\":{side},\"instructions\":{instructions:.3},\
                 \"l1d_misses\":{misses}}}"
            )
        }
        Err(why) => format!(r#"{{"case":{case},"side":{side},"why":{}}}"#, text(why)),
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// A JSON string.
fn text(of: &str) -> String {
    let mut quoted = String::from("\"");
    for c in of.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => quoted.push_str(&format!("\\u{:04x}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
