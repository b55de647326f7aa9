//! Writing of profiles in a form that can be read again.

use std::cmp::Reverse;
use std::io::Write;

use linerate_sys::{Code, Error, Result};
use serde::Serialize;

use super::{TEXT_MAX_BYTES, VALUES_MAX, commas, not_a_figure};
use crate::profile::{Profile, SCHEMA, Stack};
use crate::read::rows::OTHER;

/// Writes `profile` on one line. If its call chains exceed the limits of a text, only the most
/// frequent ones are written; the others are summed in one chain, `[other]`, and a remark states
/// their number.
///
/// # Errors
/// `E-FILE` if it cannot be written, if a figure in it is not finite (JSON has no such number), or
/// if it is longer than [`TEXT_MAX_BYTES`] without any call chain.
pub fn write(profile: &Profile, mut to: impl Write) -> Result<()> {
    let failed = |why: String| Error::new(Code::File, "cannot write a profile", why);
    if let Some(which) = not_a_figure(profile) {
        return Err(failed(format!("{which} is not a finite number")));
    }
    let text = fitted(profile, (TEXT_MAX_BYTES, VALUES_MAX)).map_err(failed)?;
    to.write_all(&text).map_err(|e| failed(e.to_string()))
}

#[derive(Serialize)]
struct Written<'a> {
    schema: &'static str,
    #[serde(flatten)]
    profile: &'a Profile,
}

/// Returns the text of `profile` with as many call chains as fit the given bytes and values:
/// removes the less frequent half of them until the text fits.
fn fitted(profile: &Profile, most: (u64, u64)) -> std::result::Result<Vec<u8>, String> {
    let text = |profile: &Profile| {
        let mut text =
            serde_json::to_vec(&Written { schema: SCHEMA, profile }).map_err(|e| e.to_string())?;
        text.push(b'\n');
        Ok::<_, String>(text)
    };
    let fits = |text: &[u8]| text.len() as u64 <= most.0 && commas(text) < most.1;
    let mut written = text(profile)?;
    let mut thinned = profile.clone();
    thinned.stacks.sort_by_key(|stack| Reverse(stack.count));
    let (all, mut other) = (thinned.stacks.len(), 0_u64);
    while !fits(&written) {
        if thinned.stacks.is_empty() {
            let (bytes, values) = (written.len(), commas(&written));
            let why = "its functions alone are more than is read again";
            return Err(format!("{why}: {bytes} bytes, {values} values"));
        }
        let kept = thinned.stacks.len() / 2;
        let dropped = thinned.stacks.drain(kept..).map(|stack| stack.count);
        other = dropped.fold(other, u64::saturating_add);
        let mut short = thinned.clone();
        short.stacks.push(Stack { frames: vec![OTHER.to_owned()], count: other });
        short.remarks.push(format!(
            "{} call chains, of {other} in all, are one, {OTHER}: a file has no room for them",
            all - kept
        ));
        written = text(&short)?;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Event, Origin, Row, Unit};
    use crate::read::{Form, parse};

    #[test]
    fn chains_that_a_text_has_no_room_for_are_one_and_the_most_seen_stay() {
        let event = Event { name: "cycles".into(), unit: Unit::Samples, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Clock);
        profile.rows = vec![Row::new("f", 5050)];
        let frames = |n| vec!["main".to_owned(), format!("f{n}")];
        profile.stacks = (1..=100).map(|n| Stack { frames: frames(n), count: n }).collect();
        let whole = fitted(&profile, (u64::MAX, u64::MAX)).unwrap();
        let (bytes, values) = (whole.len() as u64, commas(&whole));
        for most in [(bytes * 3 / 4, u64::MAX), (u64::MAX, values * 3 / 4)] {
            let text = fitted(&profile, most).unwrap();
            assert!(text.len() as u64 <= most.0 && commas(&text) < most.1);
            let thinned = parse(text.as_slice(), Some(Form::Json)).unwrap().one(1).unwrap();
            let (last, kept) = thinned.stacks.split_last().unwrap();
            assert_eq!((kept.len(), kept[0].count, kept[49].count), (50, 100, 51));
            let counted: u64 = thinned.stacks.iter().map(|stack| stack.count).sum();
            assert_eq!((last.frames[0].as_str(), counted), (OTHER, profile.counted()));
            assert!(thinned.remarks[0].contains("no room"), "{:?}", thinned.remarks);
            assert_eq!(thinned.rows, profile.rows);
        }
        assert!(fitted(&profile, (100, 100)).unwrap_err().starts_with("its functions alone"));
        // The only chain is too long, and the functions are not.
        profile.stacks = vec![Stack { frames: vec!["f".repeat(10_000)], count: 5050 }];
        let text = fitted(&profile, (5000, u64::MAX)).unwrap();
        let thinned = parse(text.as_slice(), Some(Form::Json)).unwrap().one(1).unwrap();
        assert_eq!(thinned.stacks, [Stack { frames: vec![OTHER.to_owned()], count: 5050 }]);
    }
}
