//! Examination of a pcap port: an existing file must be readable or writable, a new one must be
//! possible to create.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use linerate_skb::{Code, Error, Result};
use rustix::fs::{Access, AtFlags, CWD, FileType, accessat};
use rustix::io::Errno;

use super::config::Mode;
use super::{denied, target};
use crate::doctor::{Findings, trial};
use crate::spec::Spec;

/// Checks a pcap port. It writes nothing, because writing would destroy the contents of the file.
pub(super) fn examine(mode: Mode, spec: &Spec, found: &mut Findings) {
    let path = Path::new(&spec.arg);
    match fs::metadata(path) {
        _ if spec.arg == "-" => {
            found.ok("standard input or output: not tried");
        }
        Ok(there) if there.is_dir() => {
            let what = format!("cannot use {}", spec.arg);
            let e = Error::new(Code::File, what, "it is a directory");
            found.miss(&e.fix("name a file in it"));
        }
        Ok(there) if mode == Mode::Write && there.file_type().is_block_device() => {
            if let Err(e) = target::check_kind(FileType::BlockDevice, &spec.arg) {
                found.miss(&e);
            }
        }
        // Do not open a pipe: opening could wait for its writer, and reading would take its bytes.
        Ok(there) if !there.is_file() => {
            found.warn(format!("{} is not a regular file, and was not opened", spec.arg));
        }
        there if mode == Mode::Read => match trial::open(spec.text()) {
            Ok(obtained) => found.opened(obtained),
            Err(e) if there.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) => {
                let fix = format!("to write it: pcap:{},write; to read it, {}", spec.arg, e.fix);
                found.miss(&e.fix(fix));
            }
            Err(e) => {
                found.miss(&e);
            }
        },
        there => examine_write(path, &spec.arg, there.ok(), found),
    }
}

/// Checks whether a regular file, or a new one if `there` is `None`, can be written.
fn examine_write(path: &Path, name: &str, there: Option<Metadata>, found: &mut Findings) {
    let len = there.map(|there| there.len());
    let may_write = || may(path, Access::WRITE_OK, name);
    let tested = match len {
        None => may_create(path, name),
        Some(0) => may_write(),
        Some(_) => target::check_content(path, name).and_then(|()| may_write()),
    };
    match (tested, len) {
        (Err(e), _) => found.miss(&e),
        (Ok(false), _) => found
            .warn(format!("the permission to write {name} was not tested"))
            .why("the kernel does not support faccessat2(2), which Linux 5.8 has added"),
        (Ok(true), None) => found.ok(format!("{name} does not exist: it can be written")),
        (Ok(true), Some(0)) => found.ok(format!("{name} is empty: it can be written")),
        (Ok(true), Some(_)) => found.warn(format!("{name} exists: writing replaces its content")),
    };
}

/// Returns an error unless the folder of `path` exists and accepts new files; false as [`may`].
fn may_create(path: &Path, name: &str) -> Result<bool> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let why = format!("there is no folder {}", folder.display());
        let e = Error::new(Code::File, format!("cannot use {name}"), why);
        return Err(e.fix(format!("mkdir -p {}", folder.display())));
    }
    may(folder, Access::WRITE_OK | Access::EXEC_OK, name)
}

/// Returns the error of writing `name` if this process lacks this access to `path`; false if the
/// kernel cannot test it.
fn may(path: &Path, wanted: Access, name: &str) -> Result<bool> {
    // The effective IDs and capabilities decide, as in open(2).
    match accessat(CWD, path, wanted, AtFlags::EACCESS) {
        Ok(()) => Ok(true),
        Err(Errno::NOSYS) => Ok(false),
        Err(e) => {
            let e = std::io::Error::from(e);
            let error = target::refused(name, &format!("{}: {e}", path.display()));
            Err(denied(path, &e).map_or(error.clone(), |fix| error.fix(fix)))
        }
    }
}
