//! Detection of documents that are older than the code they measured.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use super::{ENDING, FOLDER, file, word};
use crate::tidy::Tree;

/// Returns a line for each document whose measured crates have changed since its commit.
pub fn older(
    root: &Path,
    tree: &Tree,
    read: impl Fn(&str) -> Result<Value>,
) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (path, _) in tree.ending(ENDING).filter(|(path, _)| path.starts_with(FOLDER)) {
        let document = read(path)?;
        let (commit, crates) = (word(&document, "/run/tool/commit"), measured(&document));
        let sources: Vec<String> = crates.iter().map(|name| format!("crates/{name}/src")).collect();
        let since = since(root, commit, &sources);
        lines.extend(warning(path, commit, &crates, since));
    }
    Ok(lines)
}

/// Returns the line for a document, given the number `since` of commits that changed its crates;
/// `None` means that the document's commit is unknown here.
fn warning(path: &str, commit: &str, crates: &[String], since: Option<usize>) -> Option<String> {
    let measured = crates.join(", ");
    match since {
        _ if crates.is_empty() => {
            Some(format!("warning: {path} does not say which crates it measures (`measures`)"))
        }
        None => {
            Some(format!("warning: {path} is of commit {commit}, which this clone does not have"))
        }
        Some(0) => None,
        Some(n) => Some(format!(
            "warning: {path} is of {commit:.7}; {n} commits since then changed {measured}"
        )),
    }
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
        let skb = ["skb".to_owned()];
        let line = |since| warning("results/a/b.json.gz", "ada9edeeca8c", &skb, since);
        assert_eq!((line(Some(0)), line(Some(1)).is_some()), (None, true));
        let said = "warning: results/a/b.json.gz is of ada9ede; 3 commits since then changed skb";
        assert_eq!(line(Some(3)).as_deref(), Some(said));
        assert!(line(None).unwrap().contains("does not have"));
        assert!(warning("x", "y", &[], Some(0)).unwrap().contains("`measures`"));
    }

    #[test]
    fn a_commit_that_is_not_there_has_no_distance() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(since(root, "0000000", &["src".into()]), None);
    }
}
