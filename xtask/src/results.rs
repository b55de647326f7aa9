//! The stored documents of runs in `results/`, and the tables in pages that are rendered from them.
//!
//! ```text
//! results/MACHINE/EXPERIMENT.json.gz   a run of `linerate lab run`, as `cargo xtask keep` wrote it
//! results/MACHINE/guest-bounce.json.gz runs of `cargo xtask qemu bounce --keep MACHINE`
//! <!-- results: EXPERIMENT METRIC STYLE MACHINE.. -->      in a page, before the rendered table
//! <!-- end of results -->                                   behind it
//! ```

mod aa;
mod age;
mod columns;
mod conditions;
mod keep;
mod number;
mod plain;
mod render;
mod reported;
mod scatter;
mod style;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::qemu::followed;
use crate::steps::Done;
use crate::tidy::{Finding, Tree};

pub use aa::{ARGUMENTS as AA_ARGUMENTS, aa};
pub use keep::{ARGUMENTS as KEEP_ARGUMENTS, is_plain, keep, store};
pub use number::number;

/// The folder of the documents.
const FOLDER: &str = "results/";
/// The suffix of a document's name.
const ENDING: &str = ".json.gz";
/// Schema of the documents.
const SCHEMA: &str = "linerate-lab-run/1";
/// Size limit of an unpacked document, because it is read into memory.
const DOCUMENT_MAX_BYTES: u64 = 64 << 20;

/// Keys of an experiment's file that older versions of the lab did not have.
const LATER_KEYS: [&str; 2] = ["measures", "device"];

/// A function that reads the document at a path.
type Reader<'a> = Box<dyn Fn(&str) -> Result<Value> + 'a>;

/// The documents of a tree by path; each is read on first use.
pub struct Documents<'a> {
    read: Reader<'a>,
    known: BTreeMap<String, Value>,
    /// The pictures of the pages that were rendered, by their paths.
    pictures: BTreeMap<String, String>,
}

impl<'a> Documents<'a> {
    /// Creates a set of documents; `read` reads one by its path.
    fn new(read: impl Fn(&str) -> Result<Value> + 'a) -> Documents<'a> {
        Documents { read: Box::new(read), known: BTreeMap::new(), pictures: BTreeMap::new() }
    }

    /// Returns the path of a document from a page.
    pub fn link(page: &str, machine: &str, experiment: &str) -> String {
        format!("{}{FOLDER}{machine}/{experiment}{ENDING}", "../".repeat(page.matches('/').count()))
    }

    /// Returns the document of an experiment on a machine.
    pub fn get(&mut self, machine: &str, experiment: &str) -> Result<&Value> {
        let path = format!("{FOLDER}{machine}/{experiment}{ENDING}");
        if !self.known.contains_key(&path) {
            let document = (self.read)(&path)?;
            self.known.insert(path.clone(), document);
        }
        Ok(&self.known[&path])
    }
}

/// Renders the tables of every page again; returns the number of changed pages, and the documents
/// that are older than the code they measured.
pub fn tables(root: &Path, args: &[String]) -> Result<Done> {
    if !args.is_empty() {
        bail!("`cargo xtask tables` takes no arguments");
    }
    let tree = Tree::read(root)?;
    let mut documents = Documents::new(|path| kept(root, &tree, path));
    let mut changed = Vec::new();
    for (path, text) in tree.ending(".md").filter(|(_, text)| render::has_blocks(text)) {
        let (rendered, wrong) = render::page(path, text, &mut documents);
        if let Some(finding) = wrong.first() {
            bail!("{finding}");
        }
        if rendered != text {
            fs::write(root.join(path), rendered).with_context(|| format!("cannot write {path}"))?;
            changed.push(path);
        }
    }
    for (path, picture) in &documents.pictures {
        if tree.text(path) != Some(picture) {
            let to = root.join(path);
            fs::create_dir_all(to.parent().unwrap_or(root))?;
            fs::write(&to, picture).with_context(|| format!("cannot write {path}"))?;
            changed.push(path);
        }
    }
    let older = age::older(root, &tree, |path| kept(root, &tree, path))?;
    older.iter().for_each(|line| eprintln!("{line}"));
    Ok(Done::from(match changed.len() {
        0 => "every table is as rendered".to_owned(),
        n => format!("{n} files written: {}", changed.join(", ")),
    }))
}

/// Finds tables that differ from their documents, and figures that have no document.
///
/// Documents that are older than the code that they measured are printed as warnings.
pub fn check(root: &Path, tree: &Tree) -> Result<Vec<Finding>> {
    let read = |path: &str| kept(root, tree, path);
    let mut documents = Documents::new(read);
    let campaigns = tree.text(reported::CAMPAIGNS).unwrap_or_default();
    let mut found = Vec::new();
    for (path, text) in tree.ending(".md") {
        found.extend(page(path, text, &mut documents));
        found.extend(reported::check(path, text, campaigns));
    }
    found.extend(pictures(tree, &documents));
    age::older(root, tree, read)?.iter().for_each(|line| eprintln!("{line}"));
    Ok(found)
}

/// Finds pictures that differ from their documents, and pictures that no page shows any more.
fn pictures(tree: &Tree, documents: &Documents<'_>) -> Vec<Finding> {
    let of = |what: &str, path: &str| Finding::at(path, 1, format!("{what}: cargo xtask tables"));
    let drawn = documents.pictures.iter().filter(|(path, svg)| tree.text(path) != Some(svg));
    let shown =
        |path: &str| path.starts_with(scatter::FOLDER) && !documents.pictures.contains_key(path);
    let left = tree.ending(".svg").filter(|(path, _)| shown(path));
    let stale = drawn.map(|(path, _)| of("is not what its document says", path));
    stale.chain(left.map(|(path, _)| of("is shown by no mark", path))).collect()
}

/// Finds the errors in the figures of a page.
fn page(path: &str, text: &str, documents: &mut Documents<'_>) -> Vec<Finding> {
    let (rendered, mut found) = render::page(path, text, documents);
    let differs = text.lines().zip(rendered.lines()).position(|(is, should)| is != should);
    let shorter = (text.lines().count() != rendered.lines().count()).then_some(0);
    if let (true, Some(line)) = (found.is_empty(), differs.or(shorter)) {
        let what = "is not what its document says: cargo xtask tables";
        found.push(Finding::at(path, line + 1, what));
    }
    found
}

/// Reads the document at `path`.
fn kept(root: &Path, tree: &Tree, path: &str) -> Result<Value> {
    unpacked(&root.join(path)).map(|document| with_later_keys(document, tree))
}

/// Adds the keys that the experiment's file lacked in older versions, as the file in the tree has
/// them.
fn with_later_keys(mut document: Value, tree: &Tree) -> Value {
    let path = format!("instruments/lab/experiments/{}.toml", word(&document, "/experiment/id"));
    let (now, then) = (tree.text(&path).unwrap_or_default(), file(&document));
    let keys = LATER_KEYS.into_iter().filter(|key| !then.contains_key(*key));
    let lines =
        keys.filter_map(|key| now.lines().find(|line| line.starts_with(&format!("{key} = "))));
    let lines: String = lines.map(|line| format!("{line}\n")).collect();
    let text = lines + document["run"]["config_toml"].as_str().unwrap_or_default();
    document["run"]["config_toml"] = text.into();
    document
}

/// Returns the experiment's file in a document; an empty one if there is none.
fn file(document: &Value) -> toml::Table {
    word(document, "/run/config_toml").parse().unwrap_or_default()
}

/// Reads a document that is packed with gzip.
fn unpacked(path: &Path) -> Result<Value> {
    let what = || format!("cannot read {}", path.display());
    let mut gzip = Command::new("gzip")
        .arg("-dc")
        .stdin(fs::File::open(path).with_context(what)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start gzip (apt-get install gzip)")?;
    let mut text = Vec::new();
    let output = gzip.stdout.take().context("gzip has no output")?;
    output.take(DOCUMENT_MAX_BYTES + 1).read_to_end(&mut text)?;
    let is_whole = gzip.wait()?.success();
    if !is_whole || text.len() as u64 > DOCUMENT_MAX_BYTES {
        bail!("{}: it is not of gzip, or too long", what());
    }
    let document: Value = serde_json::from_slice(&text).with_context(what)?;
    if document["schema"] != SCHEMA && document["schema"] != followed::SCHEMA {
        bail!("{}: its schema is not {SCHEMA}", what());
    }
    Ok(document)
}

/// Returns a text of the document; `-` if it is missing.
fn word<'a>(document: &'a Value, pointer: &str) -> &'a str {
    document.pointer(pointer).and_then(Value::as_str).unwrap_or("-")
}

/// Returns true for the hash of a commit; a build of changed sources has `-dirty` behind it.
fn is_hash(commit: &str) -> bool {
    (7..=40).contains(&commit.len()) && commit.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The experiment's file of [`document`].
    const FILE: &str = r#"
title = "Buffers."
device = "none"
metric = [
    { name = "ticks_per_packet", about = "Ticks of the time stamp counter for each packet." },
    { name = "y", about = "Microseconds." },
    { name = "p50_ticks", about = "Ticks, median." },
    { name = "p99_ticks", about = "The same, 99th percentile." },
]
"#;

    /// Returns a document with two cells, the second without a figure.
    pub(super) fn document() -> Value {
        let metric = json!({
            "unit": "ticks/packet", "a": 8.733, "b": 2.316, "change_pct": -73.3, "ci95_pct": [-74.5, -73.2],
            "n_pairs": 15, "verdict": "better", "better_when": "lower", "aa_half_width_pct": 2.5,
            "expected": {"change_pct": [-100, -75], "source": "x", "met": false, "certain": true},
        });
        json!({
            "schema": SCHEMA,
            "run": {"id": "x", "started": "2026-11-22T13:43:12Z", "config_toml": FILE,
                "tool": {"commit": "ada9edeeca8c", "version": "0.1.0"}},
            "env": {"cpu": "AMD EPYC", "mhz": 2596.1, "kernel": "Linux 6.18", "virt": "KVM",
                "noise": {"aa_half_width_pct": 3.56}},
            "experiment": {"id": "buffers", "a": "dpdk", "b": "linerate"},
            "cells": [
                {"at": {"case": "bulk"}, "status": "ok", "metrics": {"ticks_per_packet": metric}},
                {"at": {"case": "ring"}, "status": "inconclusive", "metrics": {}},
            ],
            "heads": {"case=bulk/a": {"memory_bytes": 67292.0}, "case=bulk/b": {"memory_bytes": 3192540.0}},
        })
    }

    #[test]
    fn key_that_an_old_document_lacks_is_that_of_the_file_in_the_tree() {
        let now = "measures = [\"skb\"]\ndevice = \"veth\"\n";
        let tree = Tree::of(&[("instruments/lab/experiments/buffers.toml", now)]);
        let read = file(&with_later_keys(document(), &tree));
        assert_eq!(
            read["measures"].as_array().map(Vec::len),
            Some(1),
            "an old document, a new file"
        );
        assert_eq!(read["device"].as_str(), Some("none"), "its own");
        assert_eq!(with_later_keys(document(), &Tree::of(&[])), document());
    }

    #[test]
    fn a_document_is_packed_and_read_again() {
        let folder = std::env::temp_dir().join(format!("linerate-results-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("x.json.gz");
        keep::pack(&document(), &path).unwrap();
        let first = fs::read(&path).unwrap();
        assert_eq!(unpacked(&path).unwrap(), document());
        keep::pack(&document(), &path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first, "without a time or a name in it");
        fs::write(&path, &first[..first.len() - 4]).unwrap();
        assert!(unpacked(&path).is_err(), "cut off in its checksum");
        fs::write(&path, b"{}").unwrap();
        assert!(unpacked(&path).is_err(), "not of gzip");
        keep::pack(&json!({"schema": "other/1"}), &path).unwrap();
        assert!(unpacked(&path).is_err(), "of another schema");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn hash_of_a_commit_has_at_least_seven_digits() {
        assert!(is_hash("ada9ede") && is_hash(&"a".repeat(40)));
        for other in ["ada9ed", &"a".repeat(41), "ada9edeeca8c-dirty", ""] {
            assert!(!is_hash(other), "{other}");
        }
    }

    #[test]
    fn a_table_that_was_edited_is_found_at_its_line() {
        let mut documents = Documents::new(|_| Ok(document()));
        let bare =
            "# x\n<!-- results: buffers ticks_per_packet ratio amd -->\n<!-- end of results -->\n";
        let (rendered, wrong) = render::page("docs/x.md", bare, &mut documents);
        assert!(wrong.is_empty() && page("docs/x.md", &rendered, &mut documents).is_empty());
        let edited = rendered.replace("0.267", "0.167");
        let found = page("docs/x.md", &edited, &mut documents);
        assert!(found.len() == 1 && found[0].to_string().starts_with("docs/x.md:6:"), "{found:?}");
        assert_eq!(page("docs/x.md", bare, &mut documents).len(), 1, "not rendered yet");
    }

    #[test]
    fn a_picture_that_differs_and_one_that_no_page_shows_are_found() {
        let mut documents = Documents::new(|_| {
            let mut document = document();
            document["cells"][0]["metrics"]["y"] = json!({"unit": "us", "a": 1.0, "b": 2.0});
            Ok(document)
        });
        let mark = "<!-- results: buffers ticks_per_packet,y scatter amd case=bulk -->\n";
        let page = format!("{mark}<!-- end of results -->\n");
        let (rendered, wrong) = render::page("docs/x.md", &page, &mut documents);
        let path = "docs/img/buffers-bulk.svg";
        assert!(wrong.is_empty() && rendered.contains(&format!("(../{path})")), "{rendered}");
        let svg = documents.pictures[path].clone();
        let found = |files: &[(&str, &str)]| pictures(&Tree::of(files), &documents);
        assert!(found(&[(path, &svg)]).is_empty());
        let both = found(&[(path, "<svg/>"), ("docs/img/old.svg", &svg)]);
        assert!(both[0].to_string().contains("not what its document says"), "{both:?}");
        assert!(both[1].to_string().contains("old.svg:1: is shown by no mark"), "{both:?}");
        let other = page.replace("ticks_per_packet,y", "y,ticks_per_packet");
        let same = render::page("docs/y.md", &page, &mut documents).1;
        assert!(same.is_empty(), "{same:?}");
        let (_, wrong) = render::page("docs/y.md", &other, &mut documents);
        assert!(wrong[0].to_string().contains("picture of another mark"), "{wrong:?}");
    }
}
