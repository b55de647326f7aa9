//! What the kernel writes into a ring, reduced to what a profile needs.
//!
//! A record that is cut short or makes no sense is an error of the parser and counted by the
//! caller; a kind that we did not ask for is [`Said::Other`].
//! Source: perf_event_open(2), "MMAP layout".

use std::borrow::Cow;

use perf_event::data::endian::Native;
use perf_event::data::parse::{ParseConfig, ParseResult, Parser};
use perf_event::data::{
    Comm, Exit, Lost, LostSamples, Mmap2, RecordMetadata, Sample, Throttle, Visitor,
};

use super::identity::{BuildId, Identity};
use crate::profile::Space;

/// A record and when it was made, by the monotonic clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) time_ns: u64,
    pub(super) said: Said,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    Sample(Hit),
    /// A process has mapped code.
    Map {
        pid: u32,
        map: Mapped,
    },
    /// A process runs another program: what it had mapped is gone.
    Exec {
        pid: u32,
    },
    Fork {
        pid: u32,
        parent: u32,
    },
    /// The first thread of a process has ended.
    End {
        pid: u32,
    },
    /// So many records found no room in the ring.
    Lost(u64),
    /// The kernel has paused an event because it came too often.
    Throttled,
    Other,
}

/// A sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) pid: u32,
    pub(super) space: Space,
    pub(super) address: u64,
    /// As the kernel gives it, with its marks between the spaces; empty if not asked for.
    pub(super) chain: Box<[u64]>,
}

/// A stretch of a process's memory that holds code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Where in the file it starts.
    pub(super) offset: u64,
    pub(super) identity: Identity,
    pub(super) path: String,
}

impl Note {
    /// Reads the record in `bytes`, its header included.
    pub(super) fn decode(bytes: &[u8], config: &ParseConfig<Native>) -> ParseResult<Note> {
        Parser::new(bytes, config.clone()).parse_record(Decoder)
    }
}

struct Decoder;

impl Decoder {
    fn note(meta: &RecordMetadata, said: Said) -> Note {
        // Without a time it is older than everything, which is where a map belongs.
        Note { time_ns: meta.sample_id().time().unwrap_or(0), said }
    }
}

impl<'a> Visitor<'a> for Decoder {
    type Output = Note;

    fn visit_unimplemented(self, meta: RecordMetadata) -> Note {
        Decoder::note(&meta, Said::Other)
    }

    fn visit_unknown(self, _: Cow<'a, [u8]>, meta: RecordMetadata) -> Note {
        Decoder::note(&meta, Said::Other)
    }

    fn visit_sample(self, sample: Sample<'a>, meta: RecordMetadata) -> Note {
        let hit = Hit {
            pid: sample.pid().unwrap_or(0),
            space: space(meta.misc()),
            address: sample.ip().unwrap_or(0),
            chain: sample.callchain().unwrap_or_default().into(),
        };
        Note { time_ns: sample.time().unwrap_or(0), said: Said::Sample(hit) }
    }

    fn visit_mmap2(self, map: Mmap2<'a>, meta: RecordMetadata) -> Note {
        let mapped = Mapped {
            start: map.addr,
            end: map.addr.saturating_add(map.len),
            offset: map.pgoff,
            identity: identity(&map),
            path: String::from_utf8_lossy(&map.filename).into_owned(),
        };
        Decoder::note(&meta, Said::Map { pid: map.pid, map: mapped })
    }

    fn visit_comm(self, comm: Comm<'a>, meta: RecordMetadata) -> Note {
        let exec = meta.misc() & MISC_COMM_EXEC != 0;
        Decoder::note(&meta, if exec { Said::Exec { pid: comm.pid } } else { Said::Other })
    }

    fn visit_fork(self, fork: Exit, meta: RecordMetadata) -> Note {
        let process = fork.pid != fork.ppid;
        let said = Said::Fork { pid: fork.pid, parent: fork.ppid };
        Decoder::note(&meta, if process { said } else { Said::Other })
    }

    fn visit_exit(self, exit: Exit, meta: RecordMetadata) -> Note {
        let first = exit.pid == exit.tid;
        Decoder::note(&meta, if first { Said::End { pid: exit.pid } } else { Said::Other })
    }

    fn visit_lost(self, lost: Lost, meta: RecordMetadata) -> Note {
        Decoder::note(&meta, Said::Lost(lost.lost))
    }

    fn visit_lost_samples(self, lost: LostSamples, meta: RecordMetadata) -> Note {
        Decoder::note(&meta, Said::Lost(lost.lost))
    }

    fn visit_throttle(self, _: Throttle, meta: RecordMetadata) -> Note {
        Decoder::note(&meta, Said::Throttled)
    }
}

fn identity(map: &Mmap2<'_>) -> Identity {
    match map.build_id() {
        Some(bytes) => BuildId::new(bytes).map_or(Identity::Unknown, Identity::BuildId),
        None => Identity::of_inode(
            map.maj().unwrap_or(0),
            map.min().unwrap_or(0),
            map.ino().unwrap_or(0),
        ),
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
const MISC_COMM_EXEC: u16 = 1 << 13;

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;
    use perf_event::{Builder, SampleFlag};

    fn config() -> ParseConfig<Native> {
        let mut builder = Builder::new(Software::CPU_CLOCK);
        builder.sample_id_all(true);
        let flags = SampleFlag::IP | SampleFlag::TID | SampleFlag::TIME | SampleFlag::CALLCHAIN;
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
        let bytes = record(SAMPLE, 2, &[0x1000, PID_7_TID_8, 99, 2, 0x1000, 0x2000]);
        let note = Note::decode(&bytes, &config()).unwrap();
        let chain = Box::from([0x1000, 0x2000]);
        let hit = Hit { pid: 7, space: Space::User, address: 0x1000, chain };
        assert_eq!(note, Note { time_ns: 99, said: Said::Sample(hit) });
    }

    #[test]
    fn a_record_cut_anywhere_is_an_error_and_no_panic() {
        let whole = record(SAMPLE, 2, &[0x1000, PID_7_TID_8, 99, 2, 0x1000, 0x2000]);
        for len in 0..whole.len() {
            assert!(Note::decode(&whole[..len], &config()).is_err(), "{len} bytes");
        }
        let more_callers_than_bytes = record(SAMPLE, 2, &[0x1000, PID_7_TID_8, 99, u64::MAX]);
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
    fn a_map_tells_its_file_by_build_id_or_by_inode() {
        const MMAP2: u32 = 10;
        let map = |misc, file: [u64; 3]| {
            let path = u64::from_ne_bytes(*b"/prog\0\0\0");
            let head = [PID_7_TID_8, 0x1000, 0x2000, 0x3000];
            let tail = [5 | 2 << 32, path, PID_7_TID_8, 50];
            let body = [&head[..], &file[..], &tail[..]].concat();
            let note = Note::decode(&record(MMAP2, misc, &body), &config());
            note.map(|note| match note.said {
                Said::Map { pid: 7, map } => (map.end, map.path, map.identity),
                said => panic!("{said:?}"),
            })
        };
        let inode = Identity::Inode { major: 8, minor: 1, inode: 42 };
        let file = [8 | 1 << 32, 42, 0];
        assert_eq!(map(MISC_USER, file).unwrap(), (0x3000, "/prog".into(), inode));
        const BUILD_ID: u16 = 1 << 14;
        let file = [4 | 0xaabb_ccdd << 32, 0, 0];
        let id = BuildId::new(&0xaabb_ccddu32.to_ne_bytes()).unwrap();
        assert_eq!(map(MISC_USER | BUILD_ID, file).unwrap().2, Identity::BuildId(id));
        // Longer than there is room for.
        assert!(map(MISC_USER | BUILD_ID, [21, 0, 0]).is_err());
    }

    #[test]
    fn a_pause_of_the_sampling_is_heard_and_its_end_is_not_another() {
        const THROTTLE: u32 = 5;
        const UNTHROTTLE: u32 = 6;
        // Time, id, stream id; then what every record ends with: process and thread, time.
        let body = [40, 1, 1, PID_7_TID_8, 50];
        let note = |kind| Note::decode(&record(kind, 0, &body), &config()).unwrap();
        assert_eq!(note(THROTTLE), Note { time_ns: 50, said: Said::Throttled });
        assert_eq!(note(UNTHROTTLE), Note { time_ns: 50, said: Said::Other });
    }

    #[test]
    fn a_thread_that_starts_is_no_new_process() {
        let fork = |parent: u64| {
            let id = [PID_7_TID_8, 50];
            let body = [7 | parent << 32, 9 | 8 << 32, 50, id[0], id[1]];
            Note::decode(&record(7, 0, &body), &config()).unwrap().said
        };
        assert_eq!(fork(7), Said::Other);
        assert_eq!(fork(3), Said::Fork { pid: 7, parent: 3 });
    }
}
