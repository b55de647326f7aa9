//! Our own form: a profile as a JSON object, with its schema version.
//!
//! ```text
//! {"schema":"linerate-profile/1","event":{"name":"cycles","unit":"samples"},"origin":"counter",
//!  "rows":[{"symbol":"schedule","count":12}], …}
//! ```
//!
//! Several may follow each other, one on a line. Fields that are not known are passed over, so that
//! a later version may add some; one that changes the meaning of any gets another schema.
//!
//! What is written can be read: a profile with more call chains than a text may hold is written
//! with those seen most often.

use std::io::BufRead;

use linerate_show::words::harmless;
use linerate_sys::{Code, Error, Result};
use serde::Deserialize;

use super::lines::excerpt;
use super::{Form, Read, WHAT, unreadable};
use crate::proc::head::Head;
use crate::profile::{Load, Profile, SCHEMA};

mod write;

pub use write::write;

/// The longest text that is read. In memory, a profile is at most some ten times as long.
pub const TEXT_MAX_BYTES: u64 = 64 << 20;

/// Most values of a text. A value takes up to 56 bytes in memory for 4 bytes of text.
///
/// Counted are the commas, those in names too: each value but the first of a list or an object has
/// one before it.
pub const VALUES_MAX: u64 = 8 << 20;

/// Reads all profiles in `input`; one invalid profile makes the whole input an error.
pub(super) fn read(input: impl BufRead) -> Result<Read> {
    let mut text = Vec::new();
    let mut bounded = std::io::Read::take(input, TEXT_MAX_BYTES + 1);
    std::io::Read::read_to_end(&mut bounded, &mut text).map_err(|e| unreadable(&e))?;
    if text.len() as u64 > TEXT_MAX_BYTES {
        return Err(refused(format!("it is longer than {TEXT_MAX_BYTES} bytes")));
    }
    if commas(&text) > VALUES_MAX {
        return Err(refused(format!("it has more than {VALUES_MAX} values")));
    }
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    // Check the schemas of all documents first, because a document of another schema may lack our
    // fields.
    for document in serde_json::Deserializer::from_slice(text).into_iter::<Schema>() {
        document.map_err(|e| refused(e.to_string()))?.check()?;
    }
    let mut read = Read::new(Form::Json);
    for document in serde_json::Deserializer::from_slice(text).into_iter::<Profile>() {
        let profile = document.map_err(|e| refused(e.to_string()))?;
        if let Some(which) = not_a_figure(&profile) {
            return Err(refused(format!("{which} is not a figure")));
        }
        read.profiles.push(profile);
    }
    if read.profiles.is_empty() {
        return Err(Error::new(Code::File, WHAT, "there is no JSON in it"));
    }
    Ok(read)
}

fn commas(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b',').count() as u64
}

/// The part of a document that is the same in every version. Other parts are ignored.
#[derive(Deserialize)]
struct Schema {
    schema: Option<String>,
}

impl Schema {
    fn check(&self) -> Result<()> {
        match self.schema.as_deref() {
            Some(SCHEMA) => Ok(()),
            Some(other) => Err(refused(format!("its schema is {}", excerpt(other)))),
            None => Err(refused("it has no schema".to_owned())),
        }
    }
}

fn refused(why: String) -> Error {
    // Escape the reason: the parser's message quotes the input.
    let why =
        format!("{}; of linerate's JSON {SCHEMA} is read, whole or not at all", harmless(&why));
    Error::new(Code::File, WHAT, why)
}

/// Returns the first number that is not finite, if there is one.
fn not_a_figure(profile: &Profile) -> Option<String> {
    let bad = |load: Option<Load>| load.is_some_and(|l| !l.value.is_finite() || l.value < 0.0);
    if bad(profile.total.and_then(|total| total.load)) {
        return Some("the load of the total".to_owned());
    }
    if profile.conditions.mhz.is_some_and(|mhz| !mhz.is_finite()) {
        return Some("the clock of the CPU".to_owned());
    }
    if profile.own_cost.and_then(|cost| cost.sample_ns).is_some_and(|ns| !ns.is_finite()) {
        return Some("the cost of a sample".to_owned());
    }
    if profile.head.is_some_and(|head| !is_finite(&head)) {
        return Some("a share of the CPU time in its head".to_owned());
    }
    let row = profile.rows.iter().find(|row| bad(row.load))?;
    Some(format!("the load of {}", excerpt(&row.symbol)))
}

fn is_finite(head: &Head) -> bool {
    let cpu = &head.cpu;
    let told = [cpu.user_pct, cpu.system_pct, cpu.nice_pct, cpu.idle_pct];
    let may_be_told = [cpu.iowait_pct, cpu.irq_pct, cpu.softirq_pct, cpu.steal_pct];
    told.into_iter().chain(may_be_told.into_iter().flatten()).all(f64::is_finite)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Event, Origin, Row, Unit};

    fn profile() -> Profile {
        let event = Event { name: "cycles".into(), unit: Unit::Samples, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Counter);
        profile.rows = vec![Row {
            address: Some(u64::MAX),
            load: Some(Load { value: 0.8843, digits: 4 }),
            ..Row::new("é;\"f\"", u64::MAX)
        }];
        profile
    }

    fn written(profiles: &[Profile]) -> String {
        let mut text = Vec::new();
        for profile in profiles {
            write(profile, &mut text).unwrap();
        }
        String::from_utf8(text).unwrap()
    }

    fn why(text: &str) -> String {
        read(text.as_bytes()).unwrap_err().why
    }

    #[test]
    fn written_profiles_are_read_back_equal() {
        let text = written(&[profile()]);
        assert!(text.starts_with("{\"schema\":\"linerate-profile/1\",\"event\""), "{text}");
        assert_eq!(read(text.as_bytes()).unwrap().profiles, [profile()]);
        let two = read(written(&[profile(), profile()]).as_bytes()).unwrap();
        assert_eq!(two.profiles.len(), 2);
        // A field that a later version adds is passed over.
        let text = written(&[profile()]).replacen('{', "{\"colour\":[{}],", 1);
        assert_eq!(read(text.as_bytes()).unwrap().profiles, [profile()]);
    }

    #[test]
    fn another_schema_or_none_is_refused_with_the_one_that_is_read() {
        let say = why("{\"schema\":\"linerate-profile/2\",\"rows\":7}");
        assert!(say.contains("\"linerate-profile/2\"") && say.contains(SCHEMA), "{say}");
        assert!(why("{\"rows\":[]}").starts_with("it has no schema"));
        let text = written(&[profile(), profile()]);
        let say = why(text.get(..text.len() - 10).unwrap());
        assert!(say.contains("line 2 column") && say.contains("not at all"), "{say}");
        let say = why("{\"schema\":\"linerate-profile/1\"}");
        assert!(say.contains("missing field `event`"), "{say}");
    }

    #[test]
    fn a_load_that_is_no_figure_is_refused_read_or_written() {
        let text = written(&[profile()]);
        for bad in ["-0.5", "1e999", "null", "\"NaN\""] {
            let text = text.replace("0.8843", bad);
            assert!(read(text.as_bytes()).is_err(), "{bad}");
        }
        for bad in [f64::NAN, f64::INFINITY] {
            let mut profile = profile();
            profile.rows[0].load = Some(Load { value: bad, digits: 4 });
            let e = write(&profile, Vec::new()).unwrap_err();
            assert!(e.why.contains("not a finite number"), "{e}");
            let mut head = Head::default();
            head.cpu.steal_pct = Some(bad);
            let e = write(&Profile { head: Some(head), ..self::profile() }, Vec::new());
            assert!(e.unwrap_err().why.contains("in its head"), "{bad}");
        }
    }

    #[test]
    fn quoted_text_is_escaped() {
        let text = written(&[profile()]);
        let bad = [
            text.replace("\"counter\"", "\"\\u001b[2J\\u202e\""),
            text.replace("profile/1", "\\u001b[2J"),
            text.replace("0.8843", "-1.0").replacen("é", "\\u001b[2J", 1),
        ];
        for bad in bad {
            let why = why(&bad);
            assert!(why.contains("[2J") && !why.contains(['\u{1b}', '\u{202e}']), "{why}");
        }
    }

    #[test]
    fn more_values_than_a_profile_has_are_refused_before_they_are_held() {
        let start = written(&[profile()]).trim_end().trim_end_matches('}').to_owned();
        let with = |list: String| format!("{start},{list}}}");
        let names =
            format!("\"stacks\":[{{\"count\":1,\"frames\":[\"\"{}]}}]", ",\"\"".repeat(9_000_000));
        assert!(why(&with(names)).contains("more than 8388608 values"));
        let devices = |n| format!("\"conditions\":{{\"netdevs\":[{{}}{}]}}", ",{}".repeat(n));
        // The first `conditions` stands already.
        let start = start.split(",\"conditions\"").next().unwrap();
        let with = |list: String| format!("{start},{list}}}");
        assert!(why(&with(devices(1_000_000))).contains("more than 4096"));
        let remarks = format!("\"remarks\":[\"\"{}]", ",\"\"".repeat(1_000_000));
        assert!(why(&with(remarks)).contains("more than 10000"));
        assert!(read(with(devices(100)).as_bytes()).is_ok());
        let endless = std::io::BufReader::new(std::io::repeat(b' '));
        let e = read(endless).unwrap_err();
        assert!(e.why.contains("longer than 67108864 bytes"), "{e}");
    }
}
