//! A request: a line of JSON. The parser accepts no unknown key and no unknown word.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{USAGE, refusal, unknown};
use crate::report::ErrorReport;

/// The schema of requests and answers.
pub const SCHEMA: &str = "linerate-tune/1";
/// Longest request in bytes, without the line feed.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Permitted times after which a change is reverted.
pub const REVERT_AFTER: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(86_400);

/// The failed action, as errors print it.
const WHAT: &str = "cannot understand the request";
/// An example of a request, for use in remedies.
const EXAMPLE: &str = r#"{"schema":"linerate-tune/1","do":"show"}"#;

/// A request to a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Shows every setting and count of a port, or of all ports.
    Show {
        /// The port's name.
        port: Option<String>,
    },
    /// Changes settings of a port.
    Set(Change),
    /// Keeps the changes that would be reverted.
    Keep,
}

/// A change of a port's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The port's name.
    pub port: String,
    /// The number of one queue; `None` for all queues.
    pub queue: Option<usize>,
    /// New values, by the names in [`SETTINGS`](super::SETTINGS).
    pub settings: BTreeMap<String, String>,
    /// Time after which the change is reverted, unless it is kept.
    pub revert_after: Option<Duration>,
}

impl Request {
    /// Formats the request as its line.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = match self {
            Request::Show { port: None } => json!({"do": "show"}),
            Request::Show { port: Some(port) } => json!({"do": "show", "port": port}),
            Request::Keep => json!({"do": "keep"}),
            Request::Set(Change { port, queue, settings, revert_after }) => {
                let seconds = revert_after.map(|time| time.as_secs_f64());
                json!({"do": "set", "port": port, "queue": queue, "settings": settings,
                    "revert_after_seconds": seconds})
            }
        };
        line["schema"] = SCHEMA.into();
        format!("{line}\n")
    }

    /// Parses a request from its line.
    ///
    /// # Errors
    /// `E-USAGE` with the reason, and for an unknown word the nearest known one.
    pub fn parse(line: &[u8]) -> Result<Request, ErrorReport> {
        if line.len() > REQUEST_BYTES_MAX {
            return Err(bad(format!("it is longer than {REQUEST_BYTES_MAX} bytes")));
        }
        let value: Value = serde_json::from_slice(line).map_err(|e| bad(e.to_string()))?;
        let Value::Object(mut object) = value else { return Err(bad("it is no object")) };
        match text(&mut object, "schema")?.as_deref() {
            Some(SCHEMA) => {}
            Some(other) => return Err(bad(format!("its schema is {other:?}, expected {SCHEMA}"))),
            None => return Err(bad("it names no schema")),
        }
        let verb = text(&mut object, "do")?.ok_or_else(|| bad("it names no action"))?;
        let known: &[&str] = match &*verb {
            "show" => &["port"],
            "set" => &["port", "queue", "settings", "revert_after_seconds"],
            "keep" => &[],
            _ => return Err(unknown(WHAT, "verb", &verb, ["show", "set", "keep"].into_iter())),
        };
        if let Some(key) = object.keys().find(|key| !known.contains(&&***key)) {
            let known = ["schema", "do"].into_iter().chain(known.iter().copied());
            return Err(unknown(WHAT, "key", key, known));
        }
        match &*verb {
            "show" => Ok(Request::Show { port: text(&mut object, "port")? }),
            "set" => Change::take(&mut object).map(Request::Set),
            _ => Ok(Request::Keep),
        }
    }
}

impl Change {
    /// Removes the keys of a change from a request's object, and parses them.
    fn take(object: &mut Map<String, Value>) -> Result<Change, ErrorReport> {
        let port = text(object, "port")?.ok_or_else(|| bad("it names no port"))?;
        let queue = match object.remove("queue").unwrap_or_default() {
            Value::Null => None,
            queue => {
                let number = queue.as_u64().and_then(|queue| usize::try_from(queue).ok());
                Some(number.ok_or_else(|| bad("queue is not the number of a queue"))?)
            }
        };
        let mut settings = BTreeMap::new();
        let Some(Value::Object(asked)) = object.remove("settings") else {
            return Err(bad("settings is not an object of names and values"));
        };
        for (name, value) in asked {
            let value = match value {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                _ => {
                    return Err(bad(format!("the value of {name} is neither a text nor a number")));
                }
            };
            settings.insert(name, value);
        }
        if settings.is_empty() {
            return Err(bad("it names no setting"));
        }
        let revert_after = match object.remove("revert_after_seconds").unwrap_or_default() {
            Value::Null => None,
            seconds => {
                let time = seconds.as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
                let time = time.filter(|time| REVERT_AFTER.contains(time));
                Some(time.ok_or_else(|| bad("revert_after_seconds is 0.001 to 86400"))?)
            }
        };
        Ok(Change { port, queue, settings, revert_after })
    }
}

/// Removes a text from a request's object; `None` if the key is missing.
fn text(object: &mut Map<String, Value>, key: &str) -> Result<Option<String>, ErrorReport> {
    match object.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(bad(format!("{key} is not a text"))),
    }
}

fn bad(why: impl Into<String>) -> ErrorReport {
    refusal(USAGE, WHAT, why, EXAMPLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(queue: Option<usize>, revert_after: Option<Duration>) -> Request {
        let settings = [("tx_batch", "1"), ("moderation", "fixed:usecs=50")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Request::Set(Change { port: "west".into(), queue, settings, revert_after })
    }

    #[test]
    fn request_is_read_as_it_is_written() {
        for request in [
            Request::Show { port: None },
            Request::Show { port: Some("a\"b\n".into()) },
            Request::Keep,
            change(None, None),
            change(Some(3), Some(Duration::from_millis(1500))),
        ] {
            let line = request.line();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(Request::parse(line.as_bytes()), Ok(request));
        }
    }

    /// As the fuzz target of that name asks of any bytes.
    #[test]
    fn request_with_a_byte_changed_is_refused_with_a_reason_or_is_another_request() {
        let mut read = 0;
        for request in [change(Some(3), Some(Duration::from_secs(2))), Request::Keep] {
            let line = request.line().into_bytes();
            let places = (0..line.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte)));
            for (at, byte) in places {
                let mut line = line.clone();
                line[at] = byte;
                match Request::parse(&line) {
                    Ok(request) => {
                        assert_eq!(Request::parse(request.line().as_bytes()), Ok(request));
                        read += 1;
                    }
                    Err(e) => assert!(!e.why.is_empty() && !e.fix.is_empty(), "{e:?}"),
                }
            }
        }
        assert!(read > 1000, "{read} of them make sense");
    }

    #[test]
    fn number_is_a_value_as_its_text_is() {
        let line =
            r#"{"schema":"linerate-tune/1","do":"set","port":"a","settings":{"tx_batch":16}}"#;
        let Ok(Request::Set(change)) = Request::parse(line.as_bytes()) else { panic!() };
        assert_eq!(change.settings["tx_batch"], "16");
    }

    #[test]
    fn bad_request_is_refused_with_the_reason_and_the_nearest_word() {
        let deep = "[".repeat(4000);
        let head = r#"{"schema":"linerate-tune/1","do":"#;
        for (rest, why, fix) in [
            ("", "EOF", "schema"),
            ("null", "no object", "schema"),
            ("[]", "no object", "schema"),
            (&*deep, "recursion", "schema"),
            ("{}", "names no schema", "schema"),
            (r#"{"schema":7}"#, "schema is not a text", "schema"),
            (r#"{"schema":"linerate-tune/2"}"#, "expected linerate-tune/1", "schema"),
            (r#"{"schema":"linerate-tune/1"}"#, "names no action", "schema"),
            (r#"H"shw"}"#, "no verb", "did you mean show"),
            (r#"H"show","por":"a"}"#, "no key \"por\"", "did you mean port"),
            (r#"H"keep","port":"a"}"#, "no key \"port\"", "there are: schema do"),
            (r#"H"set"}"#, "names no port", "schema"),
            (r#"H"set","port":"a"}"#, "settings is not an object", "schema"),
            (r#"H"set","port":"a","settings":{}}"#, "names no setting", "schema"),
            (
                r#"H"set","port":"a","settings":{"a":null}}"#,
                "neither a text nor a number",
                "schema",
            ),
            (r#"H"set","port":"a","queue":-1,"settings":{"a":1}}"#, "not the number of", "schema"),
            (r#"H"set","port":"a","queue":1.5,"settings":{"a":1}}"#, "not the number of", "schema"),
            (
                r#"H"set","port":"a","settings":{"a":1},"revert_after_seconds":0}"#,
                "is 0.001 to 86400",
                "schema",
            ),
            (
                r#"H"set","port":"a","settings":{"a":1},"revert_after_seconds":1e300}"#,
                "is 0.001 to 86400",
                "schema",
            ),
            (r#"H"show"} x"#, "trailing", "schema"),
        ] {
            let line = rest.replacen('H', head, 1);
            let e = Request::parse(line.as_bytes()).unwrap_err();
            assert!(e.why.contains(why) && e.fix.contains(fix), "{line}: {e:?}");
            assert_eq!((&*e.code, &*e.what), (USAGE, WHAT));
        }
        let long = vec![b' '; REQUEST_BYTES_MAX + 1];
        assert!(Request::parse(&long).unwrap_err().why.contains("longer"));
        assert!(Request::parse(b"\xff\xfe{}").is_err());
    }
}
