//! Bytes of valid and damaged capture files, made by hand so that our code is not checked against
//! itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The snapshot length in the headers of the files made here.
pub const SNAPLEN: u32 = 262_144;

/// A classic capture, little endian, in microseconds.
#[derive(Debug, Clone)]
pub struct Pcap(pub Vec<u8>);

impl Default for Pcap {
    fn default() -> Self {
        Pcap::new()
    }
}

impl Pcap {
    /// Returns a capture with only the header of an Ethernet capture.
    #[must_use]
    pub fn new() -> Pcap {
        let mut bytes = Vec::new();
        for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, SNAPLEN, 1] {
            bytes.extend_from_slice(&u32::to_le_bytes(word));
        }
        Pcap(bytes)
    }

    /// Adds a complete record with a time stamp of `number` seconds.
    #[must_use]
    pub fn record(self, number: u32, data: &[u8]) -> Pcap {
        let len = data.len() as u32;
        self.lying(number, len, len, data)
    }

    /// Adds a record with the given lengths, whether or not they are right.
    #[must_use]
    pub fn lying(mut self, number: u32, captured: u32, original: u32, data: &[u8]) -> Pcap {
        for word in [number, 0, captured, original] {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
        self.0.extend_from_slice(data);
        self
    }
}

/// Returns an Ethernet frame of `len` bytes with EtherType 0x88b5 for experiments; the payload's
/// bytes count up from `first`.
#[must_use]
pub fn frame(first: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    let payload = (0..len.saturating_sub(bytes.len())).map(|i| first.wrapping_add(i as u8));
    bytes.extend(payload);
    bytes
}

/// Prefix of the names of our folders; a process id and a number follow.
const FOLDER: &str = "linerate-tests-";

/// Removes the folders of tests that were killed.
fn remove_orphans() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(FOLDER).and_then(|rest| rest.split('-').next());
        let us = std::process::id().to_string();
        if owner.is_some_and(|pid| pid == us || !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A folder of this process, removed when dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a new, empty folder, which every user may enter.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static ORPHANS: Once = Once::new();
        // Remove orphans before creating a folder: a folder of an earlier process with our id
        // counts as an orphan.
        ORPHANS.call_once(remove_orphans);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{FOLDER}{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("the folder for temporary files is writable");
        Folder(path)
    }

    /// Returns the path of the file `name` in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    /// Writes a file in the folder, and returns its path.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        fs::write(Path::new(&path), bytes).expect("the folder is writable");
        path
    }
}

impl Default for Folder {
    fn default() -> Self {
        Folder::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
