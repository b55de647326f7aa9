//! The parameters of a new umem, and the check that they are possible.

use linerate_sys::mem::Huge;
use linerate_sys::{Code, Error, Result};

use crate::handle::FRAMES_MAX;
use crate::knob::FRAME_SIZE;
use crate::lanes::Cold;
use crate::meta::Meta;
use crate::policy::{Data, Init, Return, Trust};

/// Least size of a frame in bytes. [`FRAME_SIZE`] has a larger one, because its frames have the
/// default headroom.
const FRAME_MIN_BYTES: u32 = 256;

/// The parameters of a new umem.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub name: String,
    /// Number of ordinary frames.
    pub frames: u32,
    pub frame_bytes: u32,
    pub headroom_bytes: u32,
    /// Number of jumbo frames, and their size in bytes.
    pub jumbo_frames: u32,
    pub jumbo_bytes: u32,
    pub data: Data,
    pub init: Init,
    pub return_to: Return,
    pub trust: Trust,
    pub huge: Huge,
}

impl Shape {
    /// Returns the number of ordinary frames whose place a jumbo frame takes.
    pub fn places_per_jumbo(&self) -> u32 {
        (self.jumbo_bytes / self.frame_bytes).max(1)
    }

    /// Returns the number of places for frames: an ordinary frame takes one, a jumbo frame several.
    pub fn places(&self) -> u64 {
        u64::from(self.frames) + u64::from(self.jumbo_frames) * u64::from(self.places_per_jumbo())
    }

    /// Returns the metadata bytes for each place.
    pub fn overhead_bytes() -> u32 {
        (size_of::<Meta>() + size_of::<Cold>()) as u32
    }

    /// Checks that the parameters are possible; returns the reason if not.
    pub fn check(&self) -> Result<()> {
        let what = || format!("cannot make pool {}", self.name);
        let bad = |why: String, fix: &str| Err(Error::new(Code::PoolSize, what(), why).fix(fix));
        if self.frames == 0 {
            return bad("0 frames".into(), "a queue wants a few thousand");
        }
        for (kind, bytes) in [("frame", self.frame_bytes), ("jumbo frame", self.jumbo_bytes)] {
            let asked = kind == "frame" || self.jumbo_frames > 0;
            let (lo, hi) = (FRAME_MIN_BYTES, FRAME_SIZE.max as u32);
            if asked && (!(lo..=hi).contains(&bytes) || !bytes.is_power_of_two()) {
                // The least frame that has room beside the headroom.
                let lo = lo.max((self.headroom_bytes.min(hi - 1) + 1).next_power_of_two());
                let why =
                    format!("a {kind} of {bytes} bytes; it must be a power of two, {lo} to {hi}");
                return bad(why, "2048 carries a full Ethernet frame, 16384 one of 9000 bytes");
            }
        }
        if self.jumbo_frames > 0 && self.jumbo_bytes <= self.frame_bytes {
            let why =
                format!("jumbo frames of {} in frames of {}", self.jumbo_bytes, self.frame_bytes);
            return bad(why, "make the jumbo frames larger, or leave them out");
        }
        if self.places() > u64::from(FRAMES_MAX) {
            let why = format!("{} frames; the maximum is {FRAMES_MAX}", self.places());
            return bad(
                why,
                "ask for fewer frames: fewer queues or shorter rings; a program can make several pools",
            );
        }
        if self.headroom_bytes >= self.frame_bytes {
            let why = format!(
                "headroom {} leaves no room in a frame of {}",
                self.headroom_bytes, self.frame_bytes
            );
            return bad(why, "make the headroom smaller or the frames larger");
        }
        if self.data == Data::General && (self.trust == Trust::Exported || self.jumbo_frames > 0) {
            let why = "data from the allocator is private to this process, and of any size";
            return bad(
                why.into(),
                "use exported memory and jumbo frames only with pools of frames",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(frames: u32, frame_bytes: u32, headroom_bytes: u32) -> Shape {
        Shape {
            name: "t".into(),
            frames,
            frame_bytes,
            headroom_bytes,
            jumbo_frames: 0,
            jumbo_bytes: 0,
            data: Data::Frames,
            init: Init::AtAlloc,
            return_to: Return::Local,
            trust: Trust::Private,
            huge: Huge::Never,
        }
    }

    #[test]
    fn impossible_shapes_are_refused_with_the_reason() {
        let jumbo = |frames, bytes| Shape {
            jumbo_frames: frames,
            jumbo_bytes: bytes,
            ..shape(8, 2048, 256)
        };
        for (s, word) in [
            (shape(0, 2048, 256), "0 frames"),
            (shape(1 << 27, 2048, 256), "the maximum is"),
            (shape(FRAMES_MAX + 1, 2048, 256), "1048577 frames; the maximum is 1048576"),
            (shape(8, 2000, 256), "power of two, 512 to 65536"),
            (shape(8, 128, 0), "power of two, 256 to 65536"),
            (shape(8, 128, u32::MAX), "power of two, 65536 to 65536"),
            (shape(8, 2048, 2048), "headroom"),
            (jumbo(8, 9000), "jumbo frame of 9000"),
            (jumbo(8, 2048), "jumbo frames of 2048"),
            (jumbo(1 << 18, 16384), "the maximum is"),
            (Shape { data: Data::General, ..jumbo(8, 16384) }, "allocator"),
            (Shape { data: Data::General, trust: Trust::Exported, ..shape(8, 2048, 0) }, "private"),
        ] {
            let e = s.check().unwrap_err();
            assert_eq!(e.code, Code::PoolSize);
            assert!(e.why.contains(word), "{e}");
        }
        assert!(jumbo(8, 16384).check().is_ok() && shape(FRAMES_MAX, 2048, 256).check().is_ok());
    }
}
