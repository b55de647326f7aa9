//! Profiles in files: which one of a file, and where a new one goes.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use linerate_prof::profile::Profile;
use linerate_prof::read;

use crate::errors::{Failure, RUNTIME};
use crate::screen::Screen;

/// A profile: a file, and which of those in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    pub number: usize,
}

impl FromStr for Place {
    type Err = String;

    /// `FILE` or `FILE#N`. A `#` that no number follows belongs to the name.
    fn from_str(text: &str) -> Result<Place, String> {
        if let Some((file, number)) = text.rsplit_once('#')
            && let Ok(number) = number.parse::<usize>()
            && !file.is_empty()
        {
            if number == 0 {
                return Err("the first profile of a file is number 1".into());
            }
            return Ok(Place { file: file.into(), number });
        }
        Ok(Place { file: text.into(), number: 1 })
    }
}

impl Place {
    /// Reads the profile, and says on `screen` which lines of its file were left out.
    ///
    /// # Errors
    /// A file that cannot be read, is no profile, or has not as many.
    pub fn read(&self, screen: &Screen) -> Result<Profile, Failure> {
        let read = if self.file == Path::new("-") {
            read::parse(io::stdin().lock(), None)?
        } else {
            read::open(&self.file)?
        };
        let name = self.file.display();
        if let Some(left_out) = read.left_out() {
            screen.note(&format!("{name}: {left_out}\n"));
        }
        let all = read.profiles.len();
        let profile = read.one(self.number).map_err(|mut e| {
            e.what = format!("no profile number {} in {name}", self.number);
            e
        })?;
        if all > 1 && self.number == 1 {
            screen.note(&format!("{name}: the first of {all} profiles; {name}#2 is the next\n"));
        }
        Ok(profile)
    }
}

/// Saves `text` whole or not at all; a file of that name is kept as `FILE.old`, and that is returned.
///
/// # Errors
/// Whatever the file system says, and of which file.
pub fn save(file: &Path, text: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Option<PathBuf>, Failure> {
    let failed = |e: io::Error| {
        let what = format!("cannot save to {}", file.display());
        Failure::new(RUNTIME, "E-FILE", &what, e.to_string(), "")
    };
    // A device or pipe takes the text itself: to put a file in its place would break it.
    if fs::metadata(file).is_ok_and(|m| !m.is_file()) {
        let mut f = fs::OpenOptions::new().write(true).open(file).map_err(failed)?;
        text(&mut f).map_err(failed)?;
        return Ok(None);
    }
    let new = beside(file, ".new");
    let written = fs::File::create(&new).and_then(|f| {
        let mut f = io::BufWriter::new(f);
        text(&mut f)?;
        f.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    });
    if let Err(e) = written {
        // What is left is of no use; that it cannot be removed would say nothing new.
        let _ = fs::remove_file(&new);
        return Err(failed(e));
    }
    let kept = keep(file)?;
    fs::rename(&new, file).map_err(failed)?;
    Ok(kept)
}

/// Moves a file that is there out of the way, to `FILE.old`, and returns that.
///
/// # Errors
/// Whatever the file system says, and of which file.
pub fn keep(file: &Path) -> Result<Option<PathBuf>, Failure> {
    if !fs::metadata(file).is_ok_and(|m| m.is_file()) {
        return Ok(None);
    }
    let old = beside(file, ".old");
    let what = format!("cannot keep {} as {}", file.display(), old.display());
    fs::rename(file, &old)
        .map_err(|e| Failure::new(RUNTIME, "E-FILE", &what, e.to_string(), ""))?;
    Ok(Some(old))
}

/// Draws into `file`, in the place of what was there.
///
/// # Errors
/// Whatever the file system says, and of which file.
pub fn draw(file: &Path, svg: &str) -> Result<(), Failure> {
    fs::write(file, svg).map_err(|e| {
        let what = format!("cannot draw into {}", file.display());
        Failure::new(RUNTIME, "E-FILE", &what, e.to_string(), "")
    })
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Result<Place, String> {
        text.parse()
    }

    #[test]
    fn a_number_behind_a_hash_is_the_profile_and_anything_else_is_the_name() {
        let at = |file: &str, number| Ok(Place { file: file.into(), number });
        assert_eq!(place("a.json"), at("a.json", 1));
        assert_eq!(place("mail.txt#2"), at("mail.txt", 2));
        assert_eq!(place("c#/a"), at("c#/a", 1));
        assert_eq!(place("#2"), at("#2", 1));
        assert!(place("a#0").is_err());
    }

    #[test]
    fn a_device_takes_the_text_and_stays() {
        assert_eq!(save(Path::new("/dev/null"), |f| f.write_all(b"1")).unwrap(), None);
        assert!(!Path::new("/dev/null.old").exists() && !fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn what_was_there_is_kept_and_a_failed_save_changes_nothing() {
        let dir = std::env::temp_dir().join(format!("linerate-save-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("p.json");
        assert_eq!(save(&file, |f| f.write_all(b"1")).unwrap(), None);
        let old = save(&file, |f| f.write_all(b"2")).unwrap().unwrap();
        assert_eq!((fs::read(&file).unwrap(), fs::read(&old).unwrap()), (b"2".into(), b"1".into()));
        assert!(save(&file, |_| Err(io::Error::other("no"))).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"2");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        fs::remove_dir_all(&dir).unwrap();
    }
}
