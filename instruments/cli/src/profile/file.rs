//! Profiles in files: reading one of several in a file, and saving to a new file, as every command
//! of this program does.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use linerate_prof::profile::Profile;
use linerate_prof::read;

use crate::errors::{Failure, RUNTIME};
use crate::screen::Screen;

/// A profile: its file, and its number in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    /// The number of the profile in the file; `None` for the first.
    pub number: Option<usize>,
}

impl FromStr for Place {
    type Err = String;

    /// Reads `FILE` or `FILE#N`. A `#` that no number follows belongs to the name.
    fn from_str(text: &str) -> Result<Place, String> {
        if let Some((file, number)) = text.rsplit_once('#')
            && let Ok(number) = number.parse::<usize>()
            && !file.is_empty()
        {
            if number == 0 {
                return Err("the first profile of a file is number 1".into());
            }
            return Ok(Place { file: file.into(), number: Some(number) });
        }
        Ok(Place { file: text.into(), number: None })
    }
}

impl Place {
    /// Returns true if the profile comes from stdin, which can be read only once.
    pub fn is_stdin(&self) -> bool {
        self.file == Path::new("-")
    }

    /// Reads the profile, and prints on `screen` which lines of its file were left out.
    pub fn read(&self, screen: &Screen) -> Result<Profile, Failure> {
        let read = match self.is_stdin() {
            true => read::parse(io::stdin().lock(), None),
            false => read::open(&self.file),
        };
        let read = read.map_err(|e| match e.fix.is_empty() {
            true => e.fix("linerate profile record -- COMMAND makes a profile"),
            false => e,
        })?;
        let name = self.file.display();
        if let Some(left_out) = read.left_out() {
            screen.note(&format!("{name}: {left_out}\n"));
        }
        let all = read.profiles.len();
        let number = self.number.unwrap_or(1);
        let profile = read.one(number).map_err(|mut e| {
            e.what = format!("no profile number {number} in {name}");
            e.fix(format!("linerate profile list {name}#1"))
        })?;
        if all > 1 && self.number.is_none() {
            screen.note(&format!("{name}: the first of {all} profiles; {name}#2 is the next\n"));
        }
        Ok(profile)
    }
}

/// A file to be saved later; it is opened first, so that errors appear before the work is done.
#[derive(Debug)]
pub struct Draft {
    file: PathBuf,
    /// The temporary file in the same folder, which holds the text until it is complete. `None` for
    /// a device or pipe, which is written directly, because replacing it by a file would break it.
    beside: Option<PathBuf>,
    text: fs::File,
}

impl Draft {
    /// Opens a draft of `file`.
    pub fn of(file: &Path) -> Result<Draft, Failure> {
        let beside = (!is_special(file)).then(|| with_ending(file, ".new"));
        let text = match &beside {
            Some(beside) => fresh(beside),
            None => special(file),
        };
        let text = text.map_err(|e| failure("save to", file, &e))?;
        Ok(Draft { file: file.to_owned(), beside, text })
    }

    /// Saves `text` atomically; an existing file is kept as `FILE.old`, whose path is returned.
    pub fn save(
        self,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Option<PathBuf>, Failure> {
        self.finish(text, keep)
    }

    /// Saves `text` atomically, after `before` has done what the existing file needs.
    fn finish<T: Default>(
        mut self,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
        before: impl FnOnce(&Path) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let failed = |e: io::Error| failure("save to", &self.file, &e);
        let mut buffer = io::BufWriter::new(&self.text);
        text(&mut buffer).and_then(|()| buffer.flush()).map_err(failed)?;
        drop(buffer);
        let Some(beside) = &self.beside else { return Ok(T::default()) };
        self.text.sync_all().map_err(failed)?;
        let kept = before(&self.file)?;
        fs::rename(beside, &self.file).map_err(failed)?;
        self.beside = None;
        Ok(kept)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // Remove the unfinished file. An error in removing it has no remedy here.
            let _ = fs::remove_file(beside);
        }
    }
}

/// Returns true for a device or pipe, which a new file must not replace.
fn is_special(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|m| !m.is_file())
}

/// Opens a device or pipe.
fn special(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).open(path)
}

/// Creates a new file. What has its name is removed first, because it is the rest of a killed run,
/// or a link to another file.
fn fresh(path: &Path) -> io::Result<fs::File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => fs::OpenOptions::new().write(true).create_new(true).open(path),
    }
}

/// Writes `text` to `file` atomically: an existing file is replaced, and stays after an error.
pub fn write(file: &Path, text: &str) -> Result<(), Failure> {
    Draft::of(file)?.finish(|to| to.write_all(text.as_bytes()), |_| Ok(()))
}

/// Creates a file whose text can be read while it is written; an existing file is kept as
/// `FILE.old`.
pub fn create(file: &Path) -> Result<fs::File, Failure> {
    keep(file)?;
    let created = if is_special(file) { special(file) } else { fresh(file) };
    created.map_err(|e| failure("save to", file, &e))
}

/// Renames an existing file to `FILE.old`, and returns that path.
fn keep(file: &Path) -> Result<Option<PathBuf>, Failure> {
    if !fs::metadata(file).is_ok_and(|m| m.is_file()) {
        return Ok(None);
    }
    let old = with_ending(file, ".old");
    fs::rename(file, &old).map_err(|e| failure("keep as .old", file, &e))?;
    Ok(Some(old))
}

/// Builds the error for a file that cannot be used.
fn failure(what: &str, file: &Path, e: &io::Error) -> Failure {
    let what = format!("cannot {what} {}", file.display());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let fix = match (folder, e.kind()) {
        (Some(folder), _) => format!("mkdir -p {}", folder.display()),
        (None, io::ErrorKind::StorageFull) => format!("df -h {}", file.display()),
        (None, _) => "name another file".into(),
    };
    Failure::new(RUNTIME, "E-FILE", &what, e.to_string(), &fix)
}

fn with_ending(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temporary::Temporary;

    fn place(text: &str) -> Result<Place, String> {
        text.parse()
    }

    #[test]
    fn a_number_behind_a_hash_is_the_profile_and_anything_else_is_the_name() {
        let at = |file: &str, number| Ok(Place { file: file.into(), number });
        assert_eq!(place("a.json"), at("a.json", None));
        assert_eq!(place("mail.txt#2"), at("mail.txt", Some(2)));
        assert_eq!(place("c#/a"), at("c#/a", None));
        assert_eq!(place("#2"), at("#2", None));
        assert!(place("a#0").is_err());
    }

    fn save(file: &Path, text: &[u8]) -> Option<PathBuf> {
        Draft::of(file).unwrap().save(|f| f.write_all(text)).unwrap()
    }

    #[test]
    fn a_device_takes_the_text_and_stays() {
        let null = Path::new("/dev/null");
        assert_eq!(save(null, b"1"), None);
        assert!(!Path::new("/dev/null.old").exists() && !fs::metadata(null).unwrap().is_file());
    }

    #[test]
    fn the_error_of_a_full_disk_has_the_command_that_shows_its_room() {
        let full = Path::new("/dev/full");
        for bytes in [1, 100_000] {
            let saved = Draft::of(full).unwrap().save(|f| f.write_all(&vec![b'1'; bytes]));
            let failure = saved.unwrap_err();
            let e = &failure.error;
            assert_eq!((failure.exit, e.code.as_str()), (RUNTIME, "E-FILE"), "{e:?}");
            assert!(e.why.contains("No space left") && e.fix == "df -h /dev/full", "{e:?}");
        }
    }

    #[test]
    fn a_link_in_the_drafts_place_is_not_written_through() {
        let folder = Temporary::new("link", "a test").unwrap();
        let (file, theirs) = (folder.file("p.json"), folder.file("theirs"));
        fs::write(&theirs, b"precious").unwrap();
        std::os::unix::fs::symlink(&theirs, folder.file("p.json.new")).unwrap();
        assert_eq!(save(&file, b"1"), None);
        assert_eq!(
            (fs::read(&file).unwrap(), fs::read(&theirs).unwrap()),
            (b"1".into(), b"precious".into())
        );
    }

    #[test]
    fn a_written_file_replaces_an_existing_one_and_a_failure_leaves_nothing() {
        let folder = Temporary::new("write", "a test").unwrap();
        let file = folder.file("a.html");
        for text in ["longer", "1"] {
            write(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        // A link at the temporary name is not followed, also not to a device.
        std::os::unix::fs::symlink("/dev/null", folder.file("a.html.new")).unwrap();
        write(&file, "2").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "2");
        fs::create_dir(folder.file("b.html.new")).unwrap();
        assert!(write(&folder.file("b.html"), "1").is_err());
        assert_eq!(fs::read_dir(folder.file("")).unwrap().count(), 2);
    }

    #[test]
    fn old_file_is_kept_and_a_failed_save_changes_nothing() {
        let folder = Temporary::new("save", "a test").unwrap();
        let file = folder.file("p.json");
        assert_eq!(save(&file, b"1"), None);
        let old = save(&file, b"2").unwrap();
        assert_eq!((fs::read(&file).unwrap(), fs::read(&old).unwrap()), (b"2".into(), b"1".into()));
        assert!(Draft::of(&file).unwrap().save(|_| Err(io::Error::other("no"))).is_err());
        drop(Draft::of(&file).unwrap());
        assert_eq!(fs::read(&file).unwrap(), b"2");
        assert_eq!(fs::read_dir(folder.file("")).unwrap().count(), 2, "no draft is left");
        drop(folder);
        assert!(Draft::of(&file).is_err(), "found out before the work is done");
    }
}
