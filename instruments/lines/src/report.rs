//! The plugin's output file: lines of text, each with a keyword and its values.
//!
//! ```text
//! linerate-lines 1
//! mode user|system
//! cpus 2
//! accesses 123456
//! packets 1000
//! device 0
//! sharing 4                      CPUs that share another's entry, if there are any
//! l2 2048 8                      sets and ways, if caches are limited
//! refused AF_XDP                 a request that QEMU refused
//! map 55d0000 55d8000 0 /bin/x   of the process: start, end, offset in the file, file (user mode)
//! pc 55d0123 4 5 9 2             an instruction: reads, writes, lines in, lines out
//! end 1                          the number of instructions; the last line
//! ```

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::model::{Model, Site};

/// A program's requests that QEMU's user mode refused although Linux supports them.
#[derive(Debug, Default)]
pub struct Refused([AtomicBool; 3]);

/// Names of requests that can be refused.
const NAMES: [&str; 3] = ["AF_XDP", "AF_PACKET-rings", "bpf"];

impl Refused {
    /// Records a system call of x86-64, with its result `ret`, if it is one of the requests and was
    /// refused.
    pub fn note(&self, number: i64, args: [u64; 3], ret: i64) {
        const SOCKET: i64 = 41;
        const SETSOCKOPT: i64 = 54;
        const BPF: i64 = 321;
        const AF_XDP: u64 = 44;
        const SOL_PACKET: u64 = 263;
        // PACKET_RX_RING, PACKET_VERSION, PACKET_TX_RING.
        const RINGS: [u64; 3] = [5, 10, 13];
        let which = match (number, args) {
            _ if ret >= 0 => return,
            (SOCKET, [AF_XDP, ..]) => 0,
            (SETSOCKOPT, [_, SOL_PACKET, option]) if RINGS.contains(&option) => 1,
            (BPF, _) => 2,
            _ => return,
        };
        self.0[which].store(true, Ordering::Relaxed);
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        let each = self.0.iter().zip(NAMES);
        each.filter(|(refused, _)| refused.load(Ordering::Relaxed)).map(|(_, name)| name)
    }
}

/// Returns the text of the file.
pub fn text(
    model: &Model,
    sites: impl Iterator<Item = &'static Site>,
    packets: u64,
    refused: &Refused,
    system: bool,
) -> String {
    let (accesses, cpus) = model.accesses();
    let mode = if system { "system" } else { "user" };
    let device = model.device.load(Ordering::Relaxed);
    let mut text = format!(
        "linerate-lines 1\nmode {mode}\ncpus {cpus}\naccesses {accesses}\npackets {packets}\ndevice {device}\n"
    );
    if model.sharing() > 0 {
        let _ = writeln!(text, "sharing {}", model.sharing());
    }
    if let Some(shape) = model.shape() {
        let _ = writeln!(text, "l2 {} {}", shape.sets, shape.ways);
    }
    refused.names().for_each(|name| text += &format!("refused {name}\n"));
    if !system {
        let maps = fs::read("/proc/self/maps").unwrap_or_default();
        let maps = String::from_utf8_lossy(&maps);
        maps.lines().filter_map(map).for_each(|line| text += &line);
    }
    let mut instructions = 0_u64;
    for site in sites {
        let counts = [&site.read, &site.write, &site.lines_in, &site.lines_out];
        let counts = counts.map(|count: &AtomicU64| count.load(Ordering::Relaxed));
        if counts != [0; 4] {
            instructions += 1;
            let [read, write, lines_in, lines_out] = counts;
            let _ = writeln!(text, "pc {:x} {read} {write} {lines_in} {lines_out}", site.pc);
        }
    }
    let _ = writeln!(text, "end {instructions}");
    text
}

/// Writes a new file in the place of an existing one, which can be a link to another file; a device
/// or pipe is written directly. Removes a new file that cannot be written whole.
pub(crate) fn save(path: &str, text: &str) -> io::Result<()> {
    let mut file = if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        OpenOptions::new().write(true).open(path)?
    } else {
        if let Err(e) = fs::remove_file(path)
            && e.kind() != io::ErrorKind::NotFound
        {
            return Err(e);
        }
        OpenOptions::new().write(true).create_new(true).open(path)?
    };
    let written = file.write_all(text.as_bytes());
    if written.is_err() && file.metadata().is_ok_and(|found| found.is_file()) {
        let _ = fs::remove_file(path);
    }
    written
}

/// Converts a line of /proc/self/maps for a file into a line of the output, whatever its
/// permissions: QEMU's process does not map a guest's code as executable.
fn map(line: &str) -> Option<String> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let offset = words.nth(1)?;
    let file = words.nth(2)?.trim_start();
    file.starts_with('/').then(|| format!("map {start} {end} {offset} {file}\n"))
}

/// Prints on stderr why the plugin cannot do what was requested, because QEMU offers no other way.
pub(crate) fn complain(why: &str) {
    let _ = writeln!(std::io::stderr(), "linerate-lines: {why}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_the_number_of_instructions() {
        let model = Model::new(None, true);
        let [used, unused] = [16, 32]
            .map(|pc| -> &'static Site { Box::leak(Box::new(Site { pc, ..Site::default() })) });
        model.access(0, 9 << 30, 8, true, used);
        let sites = [used, unused].into_iter();
        let text = text(&model, sites, 7, &Refused::default(), true);
        assert!(text.ends_with("\npackets 7\ndevice 0\npc 10 0 0 1 0\nend 1\n"), "{text}");
        model.access(crate::model::CPUS + 2, 9 << 30, 8, true, used);
        let text = super::text(&model, std::iter::empty(), 7, &Refused::default(), true);
        assert!(text.ends_with("\nsharing 3\nend 0\n"), "{text}");
    }

    #[test]
    fn a_device_that_takes_no_counts_is_not_removed() {
        assert!(save("/dev/full", "counts").is_err());
        assert!(std::path::Path::new("/dev/full").exists());
    }

    #[test]
    fn a_link_in_the_place_of_the_file_is_not_written_through() {
        let folder = std::env::temp_dir().join(format!("linerate-save-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let [file, theirs] = ["counts", "theirs"].map(|name| folder.join(name));
        fs::write(&theirs, "precious").unwrap();
        std::os::unix::fs::symlink(&theirs, &file).unwrap();
        let saved = save(file.to_str().unwrap(), "counts");
        let texts = [&file, &theirs].map(|file| fs::read_to_string(file).unwrap());
        fs::remove_dir_all(&folder).unwrap();
        assert!(saved.is_ok());
        assert_eq!(texts, ["counts", "precious"]);
    }

    #[test]
    fn what_was_refused_is_named_and_what_was_granted_is_not() {
        let refused = Refused::default();
        refused.note(41, [44, 3, 0], 5);
        refused.note(41, [2, 1, 0], -1);
        refused.note(54, [3, 263, 14], -1);
        assert_eq!(refused.names().count(), 0);
        refused.note(41, [44, 3, 0], -97);
        refused.note(54, [3, 263, 5], -92);
        refused.note(321, [5, 0, 0], -38);
        assert!(refused.names().eq(NAMES));
    }

    #[test]
    fn files_are_listed_by_where_they_are_mapped() {
        let line = "7f00-7f80 r--p 00001000 08:01 42                         /a dir/lib";
        assert_eq!(map(line).as_deref(), Some("map 7f00 7f80 00001000 /a dir/lib\n"));
        assert_eq!(map("7f00-7f80 rw-p 00000000 00:00 0 [heap]"), None);
        assert_eq!(map("7f00-7f80 rw-p 00000000 00:00 0"), None);
    }
}
