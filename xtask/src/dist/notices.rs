//! The file THIRD-PARTY of the Debian package: the foreign packages that the programs are compiled
//! from, with their licences. The programs are static, so the Debian package distributes these
//! packages.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::binaries::NATIVE;
use super::sbom::{self, word};
use super::{Outcome, Place};

/// Path of the file in the folder of the static programs.
pub const PATH: &str = "pages/THIRD-PARTY";

/// First words of the names of files that have a licence's text, in capitals.
const FILES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

const HEAD: &str = "\
Packages of other authors that the programs of this package are compiled from, with their licences,
and the texts that the packages have. The source of each is at https://crates.io/crates/NAME/VERSION.
The programs also contain parts of Rust's standard library (MIT OR Apache-2.0,
https://github.com/rust-lang/rust) and of musl (MIT, https://musl.libc.org).
";

/// A foreign package.
struct Part {
    /// Name and version.
    title: String,
    licence: String,
    /// Address of its repository.
    repository: String,
    /// Names and texts of the files about its licence.
    texts: Vec<(String, String)>,
}

/// Writes the file.
pub fn write(place: &Place) -> Result<Outcome> {
    let packages = sbom::packages(place)?;
    let foreign = packages.iter().filter(|package| !package["source"].is_null());
    let parts = foreign.map(Part::of).collect::<Result<Vec<Part>>>()?;
    if parts.is_empty() {
        bail!("cargo names no foreign package of the programs");
    }
    let path = place.built(NATIVE).join(PATH);
    fs::create_dir_all(path.parent().unwrap_or(&place.root))?;
    fs::write(&path, notices(&parts))?;
    let bare = parts.iter().filter(|part| part.texts.is_empty());
    let bare: Vec<&str> = bare.map(|part| part.title.as_str()).collect();
    let (n, names) = (bare.len(), bare.join(", "));
    Ok(Outcome::Done(format!("{} packages, {n} of them without a text: {names}", parts.len())))
}

impl Part {
    /// Reads the files of a package, by cargo's metadata of it.
    fn of(package: &Value) -> Result<Part> {
        let folder = Path::new(word(package, "manifest_path")).parent();
        let folder = folder.context("cargo names no manifest of a package")?;
        let mut texts = Vec::new();
        for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_text = FILES.iter().any(|first| name.to_uppercase().starts_with(first));
            if is_text && entry.path().is_file() {
                let text = fs::read(entry.path())?;
                texts.push((name, String::from_utf8_lossy(&text).trim().to_owned()));
            }
        }
        texts.sort();
        let title = format!("{} {}", word(package, "name"), word(package, "version"));
        let licence = match word(package, "license") {
            "" => "see its text".to_owned(),
            licence => licence.to_owned(),
        };
        let repository = match word(package, "repository") {
            "" => "its source".to_owned(),
            repository => repository.to_owned(),
        };
        Ok(Part { title, licence, repository, texts })
    }
}

/// Formats the list of the packages, and below it each different text once.
fn notices(parts: &[Part]) -> String {
    let mut notices = format!("{HEAD}\n");
    let mut texts = BTreeMap::<&str, Vec<String>>::new();
    for part in parts {
        let without = match part.texts.is_empty() {
            true => format!(" (has no text: see {})", part.repository),
            false => String::new(),
        };
        notices += &format!("{}: {}{without}\n", part.title, part.licence);
        for (name, text) in &part.texts {
            texts.entry(text).or_default().push(format!("{name} of {}", part.title));
        }
    }
    for (text, files) in texts {
        notices += &format!("\n{}\n{}\n\n{text}\n", "-".repeat(80), files.join("\n"));
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_is_listed_and_equal_texts_are_printed_once() {
        let part = |title: &str, file: &str| Part {
            title: title.into(),
            licence: "MIT".into(),
            repository: String::new(),
            texts: vec![(file.into(), "Permission is granted".into())],
        };
        let text = notices(&[part("a 1.0.0", "LICENSE"), part("b 2.0.0", "LICENSE-MIT")]);
        assert!(text.contains("\na 1.0.0: MIT\nb 2.0.0: MIT\n"), "{text}");
        assert!(text.contains("\nLICENSE of a 1.0.0\nLICENSE-MIT of b 2.0.0\n\n"), "{text}");
        assert_eq!(text.matches("Permission is granted").count(), 1);
    }

    #[test]
    fn package_without_a_text_is_listed_with_its_repository() {
        let package = serde_json::json!({
            "name": "a", "version": "1.0.0", "license": "MIT", "repository": "https://x/a",
            "manifest_path": concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        });
        let text = notices(&[Part::of(&package).unwrap()]);
        assert!(text.contains("\na 1.0.0: MIT (has no text: see https://x/a)\n"), "{text}");
    }

    #[test]
    fn texts_of_a_package_are_read_from_its_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let manifest = folder.join("Cargo.toml");
        let package = serde_json::json!({ "name": "a", "manifest_path": manifest });
        let part = Part::of(&package).unwrap();
        let names: Vec<&str> = part.texts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["LICENSE-APACHE", "LICENSE-MIT"]);
        assert_eq!(part.licence, "see its text");
    }
}
