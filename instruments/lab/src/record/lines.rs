//! A file of JSON lines that grows during a run, and may end in the middle of a line.
//!
//! The first line is a header with the schema. A line counts once its line feed is there: what
//! stands behind the last line feed was cut off by a kill, a full disk or a power failure.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::record::SCHEMA;
use crate::{Code, Error, Result};

/// The longest line in bytes, including its newline: a window of a hundred threads takes 30 KiB.
const LINE_MAX_BYTES: u64 = 4 << 20;
/// The largest file that is read, in bytes.
pub(super) const FILE_MAX_BYTES: u64 = 1 << 30;

/// A file of JSON lines, open for writing.
#[derive(Debug)]
pub(super) struct Lines {
    file: File,
    path: PathBuf,
}

/// The contents of a file of JSON lines.
#[derive(Debug)]
pub(super) struct Contents<T> {
    /// The lines after the header, each with its number.
    pub(super) lines: Vec<(usize, T)>,
    /// The length of the intact part, in bytes.
    pub(super) whole_bytes: u64,
    /// Bytes after the intact part, which are dropped.
    pub(super) cut_bytes: u64,
}

impl Drop for Lines {
    fn drop(&mut self) {
        // A process that another thread starts has the descriptor, too, until it runs its program.
        let _ = self.file.unlock();
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    schema: String,
    lines: String,
}

impl Lines {
    /// Creates a new file whose header names `what`.
    ///
    /// # Errors
    /// `E-FILE` if it is there already or cannot be made; `E-BUSY` if another process writes it.
    pub(super) fn create(path: &Path, what: &str) -> Result<Lines> {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let file = file.map_err(|e| failed("make", path, &e))?;
        let mut lines = Lines { file, path: path.into() }.locked()?;
        lines.header(what)?;
        Ok(lines)
    }

    /// Opens an existing file for appending, and locks it against other processes.
    ///
    /// # Errors
    /// `E-FILE` if it cannot be written; `E-BUSY` if another process writes it.
    pub(super) fn open(path: &Path) -> Result<Lines> {
        let file = OpenOptions::new().write(true).open(path);
        let file = file.map_err(|e| failed("write", path, &e))?;
        Lines { file, path: path.into() }.locked()
    }

    /// Prepares the file for appending after its intact part of `whole_bytes`: removes an
    /// incomplete last line.
    pub(super) fn go_on(&mut self, what: &str, whole_bytes: u64) -> Result<()> {
        let end = self.file.set_len(whole_bytes).and_then(|()| self.file.seek(SeekFrom::End(0)));
        end.map_err(|e| failed("write", &self.path, &e))?;
        if whole_bytes == 0 { self.header(what) } else { Ok(()) }
    }

    /// Appends a line and writes it to the kernel, so that it survives the end of this process.
    pub(super) fn append(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(line)
            .map_err(|e| Error::new(Code::File, self.writing(), e.to_string()))?;
        text.push(b'\n');
        if text.len() as u64 > LINE_MAX_BYTES {
            let why = format!("a line of {} bytes, more than {LINE_MAX_BYTES}", text.len());
            return Err(Error::new(Code::File, self.writing(), why));
        }
        self.file.write_all(&text).map_err(|e| failed("write", &self.path, &e))
    }

    /// Makes the kernel write the file to the disk, so that it survives a power failure.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| failed("write", &self.path, &e))
    }

    fn locked(self) -> Result<Lines> {
        match self.file.try_lock() {
            Ok(()) => Ok(self),
            Err(TryLockError::WouldBlock) => {
                let why = "another process writes it";
                Err(Error::new(Code::Busy, self.writing(), why))
            }
            Err(TryLockError::Error(e)) => Err(failed("lock", &self.path, &e)),
        }
    }

    fn header(&mut self, what: &str) -> Result<()> {
        self.append(&Header { schema: SCHEMA.into(), lines: what.into() })
    }

    fn writing(&self) -> String {
        format!("cannot write {}", self.path.display())
    }
}

/// Reads a file of JSON lines.
///
/// # Errors
/// `E-FILE` if it cannot be read; `E-RUN` with its line where it is not what it should be.
pub(super) fn read<T: DeserializeOwned>(
    path: &Path,
    what: &str,
    most: usize,
) -> Result<Contents<T>> {
    let size_bytes = size(path)?;
    let file = File::open(path).map_err(|e| failed("read", path, &e))?;
    let mut file = BufReader::new(file).take(size_bytes);
    let mut found = Contents { lines: Vec::new(), whole_bytes: 0, cut_bytes: 0 };
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        let line = file.by_ref().take(LINE_MAX_BYTES).read_until(b'\n', &mut text);
        let n = line.map_err(|e| failed("read", path, &e))? as u64;
        if text.last() != Some(&b'\n') {
            if n == LINE_MAX_BYTES {
                return Err(wrong(path, number, format!("longer than {LINE_MAX_BYTES} bytes")));
            }
            found.cut_bytes = n;
            return Ok(found);
        }
        if number == 1 {
            header(path, what, &text)?;
        } else if found.lines.len() == most {
            return Err(wrong(path, number, format!("more than {most} {what}")));
        } else {
            let line = serde_json::from_slice(&text);
            found.lines.push((number, line.map_err(|e| wrong(path, number, e))?));
        }
        found.whole_bytes += n;
    }
    Ok(found)
}

/// Returns the size of a regular file that is not too large.
///
/// # Errors
/// `E-FILE` if it is not there; `E-RUN` if it is no file or larger than 1 GiB.
pub(super) fn size(path: &Path) -> Result<u64> {
    let about = fs::metadata(path).map_err(|e| failed("read", path, &e))?;
    let what = || format!("cannot read {}", path.display());
    if !about.is_file() {
        return Err(Error::new(Code::Run, what(), "not a regular file"));
    }
    if about.len() > FILE_MAX_BYTES {
        let why = format!("{} bytes, more than {FILE_MAX_BYTES}", about.len());
        return Err(Error::new(Code::Run, what(), why));
    }
    Ok(about.len())
}

/// Refuses a file that another version has written.
pub(super) fn is_ours(path: &Path, schema: &str) -> Result<()> {
    if schema == SCHEMA {
        return Ok(());
    }
    let schema: String = schema.chars().take(60).collect();
    let why = format!("written by another version ({schema}); this one reads {SCHEMA}");
    Err(Error::new(Code::Run, format!("cannot read {}", path.display()), why))
}

/// Builds the error for a bad line of a run's file.
pub(super) fn wrong(path: &Path, line: usize, why: impl std::fmt::Display) -> Error {
    Error::new(Code::Run, "cannot read the run", format!("{}:{line}: {why}", path.display()))
}

/// Builds the error for a failed operation on a file.
pub(super) fn failed(doing: &str, path: &Path, e: &std::io::Error) -> Error {
    Error::new(Code::File, format!("cannot {doing} {}", path.display()), e.to_string())
}

fn header(path: &Path, what: &str, text: &[u8]) -> Result<()> {
    let header: Header = serde_json::from_slice(text).map_err(|e| wrong(path, 1, e))?;
    is_ours(path, &header.schema)?;
    if header.lines == what {
        return Ok(());
    }
    Err(wrong(path, 1, format!("not a file of {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::Scratch;

    fn written(scratch: &Scratch, text: &str) -> PathBuf {
        let path = scratch.0.join("numbers.ndjson");
        fs::write(&path, text).unwrap();
        path
    }

    const HEAD: &str = "{\"schema\":\"linerate-lab-run/1\",\"lines\":\"numbers\"}\n";

    #[test]
    fn a_last_line_that_is_cut_off_is_dropped_and_its_place_taken_by_the_next() {
        let scratch = Scratch::new();
        let path = written(&scratch, &format!("{HEAD}1\n2\n3"));
        let found: Contents<u64> = read(&path, "numbers", 9).unwrap();
        assert_eq!((&found.lines[..], found.cut_bytes), (&[(2, 1), (3, 2)][..], 1));
        let mut lines = Lines::open(&path).unwrap();
        lines.go_on("numbers", found.whole_bytes).unwrap();
        lines.append(&4).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{HEAD}1\n2\n4\n"));
    }

    #[test]
    fn file_is_free_at_its_end_although_a_child_still_has_its_descriptor() {
        let scratch = Scratch::new();
        let path = written(&scratch, HEAD);
        let lines = Lines::open(&path).unwrap();
        assert_eq!(Lines::open(&path).unwrap_err().code, Code::Busy);
        let of_child = lines.file.try_clone().unwrap();
        drop(lines);
        drop(Lines::open(&path).unwrap());
        drop(of_child);
    }

    #[test]
    fn a_file_that_was_killed_at_its_birth_gets_its_header() {
        let scratch = Scratch::new();
        for cut in ["", "{\"sche"] {
            let path = written(&scratch, cut);
            let found: Contents<u64> = read(&path, "numbers", 9).unwrap();
            let mut lines = Lines::open(&path).unwrap();
            lines.go_on("numbers", found.whole_bytes).unwrap();
            lines.append(&1).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{HEAD}1\n"));
        }
    }

    #[test]
    fn lines_that_are_too_long_too_many_or_of_something_else_are_refused() {
        let scratch = Scratch::new();
        let why = |text: &str| read::<u64>(&written(&scratch, text), "numbers", 2).unwrap_err().why;
        assert!(why(&format!("{HEAD}1\n2\n3\n")).ends_with(":4: more than 2 numbers"));
        assert!(why(&HEAD.replace("numbers", "pairs")).ends_with(":1: not a file of numbers"));
        let long = " ".repeat(LINE_MAX_BYTES as usize);
        assert!(why(&format!("{HEAD}{long}\n")).ends_with(":2: longer than 4194304 bytes"));
        let e = read::<u64>(&scratch.0, "numbers", 2).unwrap_err();
        assert_eq!(e.why, "not a regular file");
    }

    #[test]
    fn a_line_is_written_if_it_can_be_read_and_else_nothing_of_it() {
        let scratch = Scratch::new();
        let path = written(&scratch, HEAD);
        let mut lines = Lines::open(&path).unwrap();
        lines.go_on("numbers", HEAD.len() as u64).unwrap();
        // Two quotes and a line feed are added to the text.
        let longest = "x".repeat(LINE_MAX_BYTES as usize - 3);
        lines.append(&longest).unwrap();
        let e = lines.append(&format!("{longest}x")).unwrap_err();
        assert_eq!(
            (e.code, e.why.as_str()),
            (Code::File, "a line of 4194305 bytes, more than 4194304")
        );
        lines.append(&"short").unwrap();
        let found: Contents<String> = read(&path, "numbers", 9).unwrap();
        let lengths: Vec<usize> = found.lines.iter().map(|(_, line)| line.len()).collect();
        assert_eq!((lengths, found.cut_bytes), (vec![longest.len(), 5], 0));
    }

    #[test]
    fn second_writer_of_a_file_is_refused() {
        let scratch = Scratch::new();
        let path = written(&scratch, HEAD);
        let one = Lines::open(&path).unwrap();
        assert_eq!(Lines::open(&path).unwrap_err().code, Code::Busy);
        drop(one);
        Lines::open(&path).unwrap();
    }
}
