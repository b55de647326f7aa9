//! Detection of documents that are older than the code they measured, or than the analysis that
//! gave their verdicts.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{ENDING, FOLDER, aa, file, word};
use crate::qemu::followed;
use crate::tidy::Tree;

/// The code that gives verdicts.
const ANALYSIS: &str = "instruments/lab/src/analysis";

/// Returns a line for each document whose measured crates, or the analysis, have changed since its
/// commit. `read` reads a document of a run.
pub fn older(
    root: &Path,
    tree: &Tree,
    read: impl Fn(&str) -> Result<Value>,
) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.starts_with(FOLDER)) {
        let (document, commit) = if path.ends_with(ENDING) {
            (read(path)?, "/run/tool/commit")
        } else if path.ends_with(".json") {
            (serde_json::from_str(text).with_context(|| path.to_owned())?, "/of/0/commit")
        } else {
            continue;
        };
        if document["schema"] == followed::SCHEMA {
            // It is of a kernel's functions, and of no crate.
            continue;
        }
        let (commit, crates) = (word(&document, commit), measured(&document));
        let sources: Vec<String> = crates.iter().map(|name| format!("crates/{name}/src")).collect();
        let is_verdicts_alone = document["schema"] == aa::SCHEMA;
        let counts = Since {
            crates: if is_verdicts_alone { Some(0) } else { since(root, commit, &sources) },
            analysis: since(root, commit, &[ANALYSIS.to_owned()]),
        };
        let named = (!crates.is_empty() || is_verdicts_alone).then(|| crates.join(", "));
        lines.extend(warning(path, commit, named.as_deref(), &counts));
    }
    Ok(lines)
}

/// The numbers of commits since a document's commit; `None` if that is unknown here.
struct Since {
    /// Commits that changed the measured crates.
    crates: Option<usize>,
    /// Commits that changed the analysis.
    analysis: Option<usize>,
}

/// Returns the line for a document of `crates`, of which it must have a list.
fn warning(path: &str, commit: &str, crates: Option<&str>, since: &Since) -> Option<String> {
    let Some(crates) = crates else {
        return Some(format!("warning: {path} does not say which crates it measures (`measures`)"));
    };
    let (Some(of_crates), Some(of_analysis)) = (since.crates, since.analysis) else {
        return Some(format!(
            "warning: {path} is of commit {commit}, which this clone does not have"
        ));
    };
    let changed = [(of_crates, crates), (of_analysis, ANALYSIS)];
    let changed: Vec<String> = changed
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} commits since then changed {what}"))
        .collect();
    (!changed.is_empty())
        .then(|| format!("warning: {path} is of {commit:.7}; {}", changed.join("; ")))
}

/// Returns the crates that an experiment measures.
fn measured(document: &Value) -> Vec<String> {
    let file = file(document);
    let names = file.get("measures").and_then(toml::Value::as_array).into_iter().flatten();
    names.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
}

/// Returns the number of commits since `commit` that touched `sources`.
fn since(root: &Path, commit: &str, sources: &[String]) -> Option<usize> {
    if !commit.chars().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "rev-list", "--count", &format!("{commit}..HEAD"), "--"]);
    let output = git.args(sources).current_dir(root).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::document;
    use super::*;

    #[test]
    fn a_document_is_of_the_crates_that_its_experiment_names() {
        let mut own = document();
        own["run"]["config_toml"] = "measures = [\"port\", \"skb\"]".into();
        assert_eq!(measured(&own), ["port", "skb"]);
        assert_eq!(measured(&document()), [""; 0]);
    }

    #[test]
    fn only_what_changed_since_is_warned_of() {
        let line = |crates, analysis| {
            let since = Since { crates, analysis };
            warning("results/a/b.json.gz", "ada9edeeca8c", Some("skb"), &since)
        };
        assert_eq!((line(Some(0), Some(0)), line(Some(1), Some(0)).is_some()), (None, true));
        let said = "warning: results/a/b.json.gz is of ada9ede; 3 commits since then changed skb";
        assert_eq!(line(Some(3), Some(0)).as_deref(), Some(said));
        let both = format!("{said}; 2 commits since then changed {ANALYSIS}");
        assert_eq!(line(Some(3), Some(2)), Some(both));
        assert!(
            line(Some(0), Some(2))
                .unwrap()
                .ends_with(&format!("ada9ede; 2 commits since then changed {ANALYSIS}"))
        );
        assert!(line(None, None).unwrap().contains("does not have"));
        let since = Since { crates: Some(0), analysis: Some(0) };
        assert!(warning("x", "y", None, &since).unwrap().contains("`measures`"));
    }

    #[test]
    fn a_document_of_verdicts_is_as_old_as_its_runs() {
        let text = r#"{"schema": "linerate-aa/1", "of": [{"commit": "0000000"}]}"#;
        let tree = Tree::of(&[("results/a/noise-aa.json", text), ("results/README.md", "")]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let lines = older(root, &tree, |_| unreachable!("it is not packed")).unwrap();
        let said = "results/a/noise-aa.json is of commit 0000000, which this clone does not have";
        assert_eq!(lines, [format!("warning: {said}")]);
    }

    #[test]
    fn a_commit_that_is_not_there_has_no_distance() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(since(root, "0000000", &["src".into()]), None);
    }
}
