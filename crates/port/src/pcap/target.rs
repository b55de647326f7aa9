//! The file that a port writes: its opening, its lock, and the files that are refused.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use linerate_skb::{Code, Error, Result};
use rustix::fs::{FileType, FlockOperation, Stat, fstat};

use super::denied;
use super::format::is_capture;
use super::locked::Locked;
use crate::host::retry_for;

/// Longest wait for the reader of a FIFO.
const READER_WAIT: Duration = Duration::from_millis(500);

/// Opens a file for writing, and creates it if there is none.
pub(super) fn opened(path: &Path, name: &str) -> Result<File> {
    // Without O_NONBLOCK, opening a FIFO would wait for its reader. Writes wait for room all the
    // same. Do not truncate here, but later, when it is known that no other port uses the file.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).custom_flags(libc::O_NONBLOCK);
    let has_no_reader = |e: &io::Error| {
        let is_fifo = || path.metadata().is_ok_and(|there| there.file_type().is_fifo());
        e.raw_os_error() == Some(libc::ENXIO) && is_fifo()
    };
    // A shell starts the reader at the same time.
    retry_for(READER_WAIT, has_no_reader, || options.open(path)).map_err(|e| {
        if has_no_reader(&e) {
            let fix = format!("start the reader first, for example: tcpdump -nn -r {name}");
            return refused(name, "no process reads the pipe").fix(fix);
        }
        let error = refused(name, &format!("open: {e}"));
        denied(path, &e).map_or(error.clone(), |fix| error.fix(fix))
    })
}

/// Returns the error of a file that cannot be written.
pub(super) fn refused(name: &str, why: &str) -> Error {
    Error::new(Code::File, format!("cannot write {name}"), why)
        .fix("name a file in an existing, writable folder with free space: df -h")
}

/// Refuses a file whose content is not empty and no capture, because writing would destroy it.
pub(super) fn check_content(path: &Path, name: &str) -> Result<()> {
    check_magic(File::open(path), name)
}

/// Refuses what [`check_content`] refuses, of a file that is open for writing only.
fn check_own_content(file: &File, path: &Path, name: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    // Another kind of file may be there meanwhile: the open does not wait for the writer of a FIFO.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let same = |read: File| {
        let (read_of, own) = (read.metadata()?, file.metadata()?);
        let is_same = (read_of.dev(), read_of.ino()) == (own.dev(), own.ino());
        if is_same { Ok(read) } else { Err(io::Error::other("another file has its name now")) }
    };
    check_magic(options.open(path).and_then(same), name)
}

/// Refuses a file that does not begin as a capture, or that cannot be read.
fn check_magic(file: io::Result<File>, name: &str) -> Result<()> {
    let mut magic = [0; 4];
    let why = match file.map(|mut file| file.read_exact(&mut magic)) {
        Ok(Ok(())) if is_capture(magic) => return Ok(()),
        Ok(_) => "it exists, and its content, which would be lost, is no capture".to_owned(),
        Err(e) => format!("it exists, and its content, which would be lost, cannot be read: {e}"),
    };
    let error = Error::new(Code::File, format!("cannot write {name}"), why);
    Err(error.fix("write to another file, or delete this one first"))
}

/// Returns true if the file of `stream` is the one with this status.
fn is_file_of(stream: impl AsFd, written: &Stat) -> bool {
    let id = |stat: &Stat| (stat.st_dev, stat.st_ino);
    fstat(stream).is_ok_and(|of_stream| id(&of_stream) == id(written))
}

/// Refuses the file that is also the standard output or error: text of the program would be between
/// the packets. A device without content, such as /dev/null, is accepted.
pub(super) fn check_text(file: &File, name: &str) -> Result<()> {
    let Ok(written) = fstat(file) else { return Ok(()) };
    let is_device = FileType::from_raw_mode(written.st_mode) == FileType::CharacterDevice;
    if is_device && !file.is_terminal() {
        return Ok(());
    }
    let (stream, fix) = if is_file_of(io::stdout(), &written) {
        ("output", "write to pcap:-, so that linerate prints its text on the standard error")
    } else if is_file_of(io::stderr(), &written) {
        ("error", "write to another file, or redirect the standard error: 2>linerate.log")
    } else {
        return Ok(());
    };
    let why = format!("it is the standard {stream}, which text of the program may use");
    Err(refused(name, &why).fix(fix))
}

/// Refuses a standard output that is also the standard error, where text of the program would be
/// between the packets, or a block device. A device without content, such as /dev/null, is
/// accepted.
pub(super) fn check_standard(file: &File, name: &str) -> Result<()> {
    let Ok(written) = fstat(file) else { return Ok(()) };
    let kind = FileType::from_raw_mode(written.st_mode);
    check_kind(kind, name)?;
    if kind == FileType::CharacterDevice || !is_file_of(io::stderr(), &written) {
        return Ok(());
    }
    let why = "it is the standard error, too, which text of the program may use";
    Err(refused(name, why).fix("redirect the standard error: 2>linerate.log"))
}

/// Refuses a block device, because a capture would overwrite its partitions and file systems.
pub(super) fn check_kind(kind: FileType, name: &str) -> Result<()> {
    if kind != FileType::BlockDevice {
        return Ok(());
    }
    let why = "it is a block device, and its content would be lost";
    let error = Error::new(Code::File, format!("cannot write {name}"), why);
    Err(error.fix("write to a file in a file system"))
}

/// Locks a regular file; returns its length, or `None` if the file is of another kind.
pub(super) fn locked(file: &mut Locked, path: &Path, name: &str) -> Result<Option<u64>> {
    let failed = |e: io::Error| refused(name, &e.to_string());
    let kind = FileType::from_raw_mode(file.metadata().map_err(failed)?.mode());
    check_kind(kind, name)?;
    if kind != FileType::RegularFile {
        return Ok(None);
    }
    // First the lock: until then, another port may write the file.
    lock(file, name)?;
    let len = file.metadata().map_err(failed)?.len();
    if len > 0 {
        check_own_content(file, path, name)?;
    }
    Ok(Some(len))
}

/// Locks a regular file against other ports that write or read it.
pub(super) fn lock(file: &mut Locked, name: &str) -> Result<()> {
    // A port that reads the file has a lock, too, because two names can refer to one file.
    if file.lock(FlockOperation::NonBlockingLockExclusive) {
        return Ok(());
    }
    let what = format!("cannot write {name}");
    let error = Error::new(Code::Busy, what, "another port is reading or writing it");
    Err(error.fix("write to another file"))
}
