//! Examination of a pcap port: an existing file must be readable, a new one must be possible to
//! create.

use std::fs;
use std::path::Path;

use linerate_skb::{Code, Error};

use super::config::Mode;
use super::write;
use crate::doctor::{Findings, trial};
use crate::spec::Spec;

/// Checks a pcap port. It writes nothing, because writing would destroy the contents of the file.
pub(super) fn examine(mode: Mode, spec: &Spec, found: &mut Findings) {
    let path = Path::new(&spec.arg);
    match fs::metadata(path) {
        _ if spec.arg == "-" => {
            found.ok("standard input or output: not tried");
        }
        // Do not open a pipe: opening could wait for its writer, and reading would take its bytes.
        Ok(there) if !there.is_file() => {
            found.warn(format!("{} is not a regular file, and was not opened", spec.arg));
        }
        there if mode == Mode::Read => match trial::open(spec.text()) {
            Ok(obtained) => found.opened(obtained),
            Err(e) if there.is_err() => {
                let fix = format!("to write it: pcap:{},write; to read it, {}", spec.arg, e.fix);
                found.miss(&e.fix(fix));
            }
            Err(e) => {
                found.miss(&e);
            }
        },
        Ok(there) if there.len() > 0 => match write::check_content(path, &spec.arg) {
            Ok(()) => {
                found.warn(format!("{} exists: writing replaces its content", spec.arg));
            }
            Err(e) => {
                found.miss(&e);
            }
        },
        Ok(_) => {
            found.ok(format!("{} is empty: it can be written", spec.arg));
        }
        Err(_) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            match fs::metadata(folder) {
                Ok(there) if there.is_dir() => {
                    found.ok(format!("{} does not exist: it can be written", spec.arg));
                }
                _ => {
                    let why = format!("there is no folder {}", folder.display());
                    let e = Error::new(Code::File, format!("cannot use {}", spec.arg), why);
                    found.miss(&e.fix(format!("mkdir -p {}", folder.display())));
                }
            }
        }
    }
}
