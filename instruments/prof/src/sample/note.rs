//! Records that the kernel writes into a ring, reduced to what a profile needs.
//!
//! A record that is cut short or makes no sense is an error of the parser and counted by the
//! caller; a kind that we did not ask for is [`Note::Other`].
//! Source: perf_event_open(2), "MMAP layout".

use std::borrow::Cow;

use perf_event::data::endian::Native;
use perf_event::data::parse::{ParseConfig, ParseResult, Parser};
use perf_event::data::{Lost, LostSamples, RecordMetadata, Sample, Throttle, Visitor};

use crate::profile::Space;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Note {
    /// A sample.
    Sample(Hit),
    /// So many records found no room in the ring.
    Lost(u64),
    /// The kernel has paused an event because it came too often.
    Throttled,
    /// A kind that is of no use here.
    Other,
}

/// A sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) space: Space,
    pub(super) address: u64,
    /// As the kernel gives it, with its marks between the spaces; empty if not asked for.
    pub(super) chain: Box<[u64]>,
}

impl Note {
    /// Reads the record in `bytes`, its header included.
    pub(super) fn decode(bytes: &[u8], config: &ParseConfig<Native>) -> ParseResult<Note> {
        Parser::new(bytes, config.clone()).parse_record(Decoder)
    }
}

struct Decoder;

impl<'a> Visitor<'a> for Decoder {
    type Output = Note;

    fn visit_unimplemented(self, _: RecordMetadata) -> Note {
        Note::Other
    }

    fn visit_unknown(self, _: Cow<'a, [u8]>, _: RecordMetadata) -> Note {
        Note::Other
    }

    fn visit_sample(self, sample: Sample<'a>, meta: RecordMetadata) -> Note {
        Note::Sample(Hit {
            space: space(meta.misc()),
            address: sample.ip().unwrap_or(0),
            chain: sample.callchain().unwrap_or_default().into(),
        })
    }

    fn visit_lost(self, lost: Lost, _: RecordMetadata) -> Note {
        Note::Lost(lost.lost)
    }

    fn visit_lost_samples(self, lost: LostSamples, _: RecordMetadata) -> Note {
        Note::Lost(lost.lost)
    }

    fn visit_throttle(self, _: Throttle, _: RecordMetadata) -> Note {
        Note::Throttled
    }
}

fn space(misc: u16) -> Space {
    match misc & MISC_CPUMODE {
        MISC_KERNEL => Space::Kernel,
        MISC_USER => Space::User,
        _ => Space::Unknown,
    }
}

// include/uapi/linux/perf_event.h, PERF_RECORD_MISC_*.
const MISC_CPUMODE: u16 = 7;
const MISC_KERNEL: u16 = 1;
const MISC_USER: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;
    use perf_event::{Builder, SampleFlag};

    fn config() -> ParseConfig<Native> {
        let mut builder = Builder::new(Software::CPU_CLOCK);
        builder.sample_id_all(true);
        let flags = SampleFlag::IP | SampleFlag::TID | SampleFlag::CALLCHAIN;
        builder.sample(flags);
        ParseConfig::from(*builder.attrs())
    }

    fn record(kind: u32, misc: u16, body: &[u64]) -> Vec<u8> {
        let size = 8 + 8 * u16::try_from(body.len()).unwrap();
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
        body.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    const SAMPLE: u32 = 9;
    const PID_7_TID_8: u64 = 7 | 8 << 32;

    #[test]
    fn a_sample_keeps_its_place_and_its_callers() {
        let bytes = record(SAMPLE, 2, &[0x1000, PID_7_TID_8, 2, 0x1000, 0x2000]);
        let note = Note::decode(&bytes, &config()).unwrap();
        let chain = Box::from([0x1000, 0x2000]);
        assert_eq!(note, Note::Sample(Hit { space: Space::User, address: 0x1000, chain }));
    }

    #[test]
    fn a_record_cut_anywhere_is_an_error_and_no_panic() {
        let whole = record(SAMPLE, 2, &[0x1000, PID_7_TID_8, 2, 0x1000, 0x2000]);
        for len in 0..whole.len() {
            assert!(Note::decode(&whole[..len], &config()).is_err(), "{len} bytes");
        }
        let more_callers_than_bytes = record(SAMPLE, 2, &[0x1000, PID_7_TID_8, u64::MAX]);
        assert!(Note::decode(&more_callers_than_bytes, &config()).is_err());
        for size in 0..8u16 {
            let mut short = whole.clone();
            short[6..8].copy_from_slice(&size.to_ne_bytes());
            assert!(Note::decode(&short, &config()).is_err(), "header says {size} bytes");
        }
    }

    #[test]
    fn records_of_any_kind_and_content_never_panic() {
        for kind in 0..40 {
            for words in 0..12 {
                for fill in [0, 1, u64::MAX, 0x4141_4141_4141_4141] {
                    let _ = Note::decode(&record(kind, 0xffff, &vec![fill; words]), &config());
                }
            }
        }
    }

    #[test]
    fn a_pause_of_the_sampling_is_heard_and_its_end_is_not_another() {
        const THROTTLE: u32 = 5;
        const UNTHROTTLE: u32 = 6;
        // Time, id, stream id; then what every record ends with: process and thread.
        let body = [40, 1, 1, PID_7_TID_8];
        let note = |kind| Note::decode(&record(kind, 0, &body), &config()).unwrap();
        assert_eq!(note(THROTTLE), Note::Throttled);
        assert_eq!(note(UNTHROTTLE), Note::Other);
    }
}
