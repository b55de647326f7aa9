//! A profile written so that it can be read again.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::io::{self, Write};

use linerate_sys::{Code, Error, Result};
use serde::Serialize;

use super::{TEXT_MAX_BYTES, VALUES_MAX, commas, not_a_figure};
use crate::profile::{Profile, SCHEMA, Stack};
use crate::read::rows::OTHER;

/// Writes `profile` on one line. If its call chains are more than a text may hold, those seen most
/// often are written, the others are one, `[other]`, and a remark says so.
///
/// Cost: it is put in words twice, the first time to see how long it is.
///
/// # Errors
/// `E-FILE` if it cannot be written, if a figure in it is not finite (JSON has no such number), or
/// if it is longer than [`TEXT_MAX_BYTES`] without any call chain.
pub fn write(profile: &Profile, mut to: impl Write) -> Result<()> {
    let failed = |why: String| Error::new(Code::File, "cannot write a profile", why);
    if let Some(which) = not_a_figure(profile) {
        return Err(failed(format!("{which} is not a finite number")));
    }
    let profile = fitted(profile, Size::MAX).map_err(failed)?;
    let document = Written { schema: SCHEMA, profile: &profile };
    serde_json::to_writer(&mut to, &document)
        .map_err(io::Error::from)
        .and_then(|()| to.write_all(b"\n"))
        .map_err(|e| failed(e.to_string()))
}

#[derive(Serialize)]
struct Written<'a> {
    schema: &'static str,
    #[serde(flatten)]
    profile: &'a Profile,
}

/// `profile` with as many of its call chains as are read again.
fn fitted(profile: &Profile, most: Size) -> std::result::Result<Cow<'_, Profile>, String> {
    let whole = Size::of(&Written { schema: SCHEMA, profile });
    if whole.fits(most) {
        return Ok(Cow::Borrowed(profile));
    }
    let mut thinned = profile.without_stacks();
    let rest = Size::of(&Written { schema: SCHEMA, profile: &thinned }).and(ROOM_FOR_THE_REMARK);
    if !rest.fits(most) {
        let why = "its functions alone are more than is read again";
        return Err(format!("{why}: {} bytes, {} values", rest.bytes, rest.values));
    }
    let mut often: Vec<usize> = (0..profile.stacks.len()).collect();
    often.sort_by_key(|&at| Reverse(profile.stacks.get(at).map(|stack| stack.count)));
    let (mut size, mut kept, mut other) = (rest, Vec::new(), 0_u64);
    for at in often {
        let Some(stack) = profile.stacks.get(at) else { continue };
        let with = size.and(Size::of(stack));
        if with.fits(most) {
            (size, _) = (with, kept.push(at));
        } else {
            other = other.saturating_add(stack.count);
        }
    }
    kept.sort_unstable();
    let left_out = profile.stacks.len() - kept.len();
    thinned.stacks.extend(kept.into_iter().filter_map(|at| profile.stacks.get(at).cloned()));
    thinned.stacks.push(Stack { frames: vec![OTHER.to_owned()], count: other });
    thinned.remarks.push(format!(
        "{left_out} call chains, of {other} in all, are one, {OTHER}: a file has no room for them"
    ));
    Ok(Cow::Owned(thinned))
}

/// For the chain `[other]`, and the remark that says what it is.
const ROOM_FOR_THE_REMARK: Size = Size { bytes: 512, values: 16 };

/// The size of a text, or of a part of it.
#[derive(Debug, Clone, Copy)]
struct Size {
    bytes: u64,
    values: u64,
}

impl Size {
    /// The limits of the reader.
    const MAX: Size = Size { bytes: TEXT_MAX_BYTES, values: VALUES_MAX };

    /// Returns the size of a value with the comma before it.
    fn of(value: &impl Serialize) -> Size {
        let mut size = Size { bytes: 1, values: 1 };
        // A sink that takes everything; what cannot be put in words, writing will say.
        let _ = serde_json::to_writer(&mut size, value);
        size
    }

    fn and(self, more: Size) -> Size {
        Size { bytes: self.bytes + more.bytes, values: self.values + more.values }
    }

    fn fits(self, most: Size) -> bool {
        self.bytes <= most.bytes && self.values <= most.values
    }
}

impl Write for Size {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.bytes += text.len() as u64;
        self.values += commas(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Profile {
    fn without_stacks(&self) -> Profile {
        Profile {
            event: self.event.clone(),
            origin: self.origin,
            rows: self.rows.clone(),
            total: self.total,
            cutoff: self.cutoff,
            stacks: Vec::new(),
            lost: self.lost,
            conditions: self.conditions.clone(),
            head: self.head,
            own_cost: self.own_cost,
            remarks: self.remarks.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Event, Origin, Row, Unit};
    use crate::read::{Form, parse};

    fn profile(stacks: u64) -> Profile {
        let event = Event { name: "cycles".into(), unit: Unit::Samples, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Clock);
        profile.rows = vec![Row::new("f", stacks * (stacks + 1) / 2)];
        let frames = |n| vec!["main".to_owned(), format!("f{n}")];
        profile.stacks = (1..=stacks).map(|n| Stack { frames: frames(n), count: n }).collect();
        profile
    }

    #[test]
    fn chains_that_a_text_has_no_room_for_are_one_and_the_most_seen_stay() {
        let profile = profile(100);
        let whole = Size::of(&Written { schema: SCHEMA, profile: &profile });
        let small = Size { bytes: whole.bytes / 2, ..Size::MAX };
        let few = Size { values: whole.values / 2, ..Size::MAX };
        for most in [small, few] {
            let thinned = fitted(&profile, most).unwrap();
            assert!(Size::of(&Written { schema: SCHEMA, profile: &thinned }).fits(most));
            let (last, kept) = thinned.stacks.split_last().unwrap();
            assert!((10..60).contains(&kept.len()), "{}", kept.len());
            assert_eq!(kept, &profile.stacks[100 - kept.len()..]);
            let counted: u64 = thinned.stacks.iter().map(|stack| stack.count).sum();
            assert_eq!((last.frames[0].as_str(), counted), (OTHER, profile.counted()));
            assert!(thinned.remarks[0].contains("no room"), "{:?}", thinned.remarks);
            assert_eq!(thinned.rows, profile.rows);
        }
        assert!(matches!(fitted(&profile, Size::MAX), Ok(Cow::Borrowed(_))));
        let none = Size { bytes: 100, ..Size::MAX };
        assert!(fitted(&profile, none).unwrap_err().starts_with("its functions alone"));
    }

    #[test]
    fn what_is_written_of_a_long_recording_is_read_again() {
        let mut profile = profile(70_000);
        for stack in &mut profile.stacks {
            let frame = |n| format!("linerate_datapath::worker::f{n}_{}", stack.count);
            stack.frames = (0..30).map(frame).collect();
        }
        let mut text = Vec::new();
        write(&profile, &mut text).unwrap();
        let read = parse(text.as_slice(), Some(Form::Json)).unwrap().one(1).unwrap();
        assert_eq!(read.rows, profile.rows);
        assert!(read.stacks.len() > 50_000 && read.remarks.len() == 1, "{:?}", read.remarks);
    }
}
