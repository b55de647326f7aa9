//! Bytes of valid and damaged capture files, made by hand so that our code is not checked against
//! itself.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
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

/// Removes the folders of tests that were killed: their locks are free. A process id would not
/// say so, because processes of another PID namespace can use the same folder for temporary files.
fn remove_orphans(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(FOLDER);
        if is_ours
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Some(_lock) = lock(&entry.path())
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Locks a file in a folder; returns `None` if another process has its lock, or has removed the
/// folder. The folder itself is not locked, because the programs under test may lock it.
fn lock(path: &Path) -> Option<File> {
    let options = File::options().write(true).create(true).truncate(false).to_owned();
    let file = options.open(path.join(".lock")).ok()?;
    file.try_lock().ok()?;
    (file.metadata().ok()?.nlink() > 0).then_some(file)
}

/// A folder of this process, removed when dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Shows other processes that the folder is in use.
    _lock: File,
}

/// Most names that are tried for a folder.
const TRIES: u32 = 1000;

impl Folder {
    /// Creates a new, empty folder, which every user may enter.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static ORPHANS: Once = Once::new();
        ORPHANS.call_once(|| remove_orphans(&std::env::temp_dir()));
        // A process with our id in another PID namespace can have a folder of the same name, or
        // take our new folder for an orphan before it is locked. Then try the next name.
        let made = (0..TRIES).find_map(|_| {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{FOLDER}{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).ok()?;
            Some(Folder { _lock: lock(&path)?, path })
        });
        made.expect("the folder for temporary files is writable")
    }

    /// Returns the path of the file `name` in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.path.join(name).to_string_lossy().into_owned()
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
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_whose_lock_is_held_is_no_orphan_whatever_process_id_it_has() {
        // No process here has this id; one in another PID namespace could have it.
        let own = Folder::new();
        let folders =
            ["live", "orphan"].map(|name| own.path.join(format!("{FOLDER}{}-{name}", u32::MAX)));
        for folder in &folders {
            fs::create_dir_all(folder).unwrap();
        }
        let _held = lock(&folders[0]).unwrap();
        remove_orphans(&own.path);
        assert_eq!(folders.each_ref().map(|folder| folder.exists()), [true, false]);
        assert!(own.path.exists() && lock(&own.path).is_none());
    }
}
