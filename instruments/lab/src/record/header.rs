//! The head of a run's document, without the rest: thousands of pairs stand behind it.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use serde::Deserializer;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};

use crate::record::{Head, SCHEMA, lines, state};
use crate::{Code, Error, Result};

/// The error that stops parsing early: the fields needed were found, and the rest of the document
/// is not read.
const SEEN: &str = "enough was seen";

/// Reads the head of the document at `path`. It stands near the document's start, and whatever is
/// wrong behind it is not seen here.
///
/// # Errors
/// `E-FILE` if it cannot be read; `E-RUN` for another schema, and with its line for what is wrong.
pub(super) fn head(path: &Path) -> Result<Head> {
    let size_bytes = lines::size(path)?;
    let file = File::open(path).map_err(|e| lines::failed("read", path, &e))?;
    let mut document = serde_json::Deserializer::from_reader(BufReader::new(file.take(size_bytes)));
    let mut seen = Header::default();
    let ended = document.deserialize_map(&mut seen);
    if let Some(schema) = &seen.schema {
        lines::is_ours(path, schema)?;
    }
    match (seen.schema, seen.head, ended) {
        (Some(_), Some(head), _) => Ok(head),
        (.., Err(e)) if e.is_io() => {
            Err(Error::new(Code::File, format!("cannot read {}", path.display()), e.to_string()))
        }
        (.., Err(e)) => Err(state::broken(path, &e)),
        (None, _, Ok(())) => Err(state::broken(path, &serde_json::Error::missing_field("schema"))),
        (_, None, Ok(())) => Err(state::broken(path, &serde_json::Error::missing_field("run"))),
    }
}

/// The fields to find, as far as they were found.
#[derive(Default)]
struct Header {
    schema: Option<String>,
    head: Option<Head>,
}

impl<'de> Visitor<'de> for &mut Header {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a run")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "schema" => self.schema = Some(map.next_value()?),
                "run" => self.head = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
            let is_another = self.schema.as_ref().is_some_and(|schema| schema != SCHEMA);
            if is_another || (self.schema.is_some() && self.head.is_some()) {
                return Err(A::Error::custom(SEEN));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::record::testing::Scratch;

    const HEAD: &str = r#""schema":"linerate-lab-run/1","run":{"id":"x","started":"s","finished":"f",
        "tool":{},"argv":[],"seed":7,"complete":true}"#;

    fn seen(text: &str) -> Result<Head> {
        let scratch = Scratch::new();
        let path = scratch.path().join("run.json");
        fs::write(&path, text).unwrap();
        head(&path)
    }

    #[test]
    fn only_the_head_of_a_document_is_read() {
        let head = seen(&format!("{{{HEAD},\"cells\":[{{{{ no document")).unwrap();
        assert_eq!((head.id.as_str(), head.seed, head.complete), ("x", 7, true));
        assert_eq!(seen(&format!("{{\"env\":{{\"a\":[1]}},{HEAD}}}")).unwrap().id, "x");
    }

    #[test]
    fn bad_head_is_refused_with_its_line() {
        let why = |text: &str| seen(text).unwrap_err().why;
        assert!(why("{\n\"schema\": 1}").contains("run.json:2: "));
        assert!(why("[]").contains("a run"), "{}", why("[]"));
        assert!(why("{}").contains("missing field `schema`"));
        assert!(why(&format!("{{\"schema\":\"{SCHEMA}\"}}")).contains("missing field `run`"));
        assert!(
            why("{\"schema\":\"x/9\",\"run\":[]}").contains("written by another version (x/9)")
        );
        assert!(why("").contains("EOF"), "{}", why(""));
    }
}
