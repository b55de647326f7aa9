//! Crates depend on each other in one direction, as ARCHITECTURE.md draws it.

use crate::tidy::{Finding, Tree};

/// Each crate of ours with those it may use. Development dependencies are free: they ship nothing.
const ARROWS: [(&str, &[&str]); 14] = [
    ("sys", &[]),
    ("ring", &[]),
    ("wire", &[]),
    ("skb", &["sys", "ring"]),
    ("port", &["skb", "ring", "wire", "sys"]),
    ("datapath", &["port", "skb", "ring", "wire"]),
    ("ctl", &["datapath", "port", "wire", "sys"]),
    ("linerate", &["ctl", "datapath", "port", "skb", "wire"]),
    // `ctl` only to turn on its JSON feature, which the facade leaves off.
    ("cli", &["linerate", "ctl", "sys"]),
    // The instruments: nothing above depends on them.
    ("show", &["sys"]),
    ("prof", &["show", "sys"]),
    ("seeds", &["prof", "show"]),
    ("lab", &["seeds", "ctl", "datapath", "port", "skb", "wire", "prof", "show", "sys"]),
    ("lab-cli", &["linerate", "cli", "lab", "seeds", "prof", "show"]),
];

/// Finds dependencies that point against the arrows.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.ending("/Cargo.toml").filter_map(|(path, text)| {
        let (house, folder) = path.strip_suffix("/Cargo.toml")?.split_once('/')?;
        let folder = match (house, folder) {
            ("instruments", "cli") => "lab-cli",
            ("crates" | "instruments", name) if !name.contains('/') => name,
            _ => return None,
        };
        Some((path, folder, text))
    });
    let mut found = Vec::new();
    for (path, folder, text) in manifests {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == folder) else {
            found.push(Finding::of(path, "this crate has no row in the table of arrows"));
            continue;
        };
        match text.parse::<toml::Table>() {
            Ok(manifest) => found.extend(ours(&manifest).into_iter().filter_map(|used| {
                let against = !allowed.contains(&used.as_str());
                against.then(|| Finding::of(path, format!("{folder} may not depend on {used}")))
            })),
            Err(error) => found.push(Finding::of(path, error.message())),
        }
    }
    found
}

/// The folders of our crates that a manifest depends on, for any platform.
fn ours(manifest: &toml::Table) -> Vec<String> {
    let platforms = manifest.get("target").and_then(toml::Value::as_table);
    let platforms = platforms.into_iter().flat_map(toml::Table::values);
    let tables = platforms.filter_map(toml::Value::as_table).chain([manifest]);
    let kinds = ["dependencies", "build-dependencies"];
    tables
        .flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)))
        .filter_map(toml::Value::as_table)
        .flatten()
        .filter_map(|(name, value)| {
            // A renamed dependency keeps its real name under `package`.
            let name = value.get("package").and_then(toml::Value::as_str).unwrap_or(name);
            let folder = if name == "linerate" { name } else { name.strip_prefix("linerate-")? };
            Some(folder.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, manifest: &str) -> usize {
        check(&Tree::of(&[(path, manifest)])).len()
    }

    #[test]
    fn an_arrow_that_points_back_is_found() {
        let path = "crates/skb/Cargo.toml";
        assert_eq!(found(path, "[dependencies]\nlinerate-ring.workspace = true\nlibc = \"1\""), 0);
        assert_eq!(found(path, "[dependencies]\nlinerate-port.workspace = true"), 1);
        assert_eq!(found(path, "[build-dependencies]\nlinerate-port.workspace = true"), 1);
        assert_eq!(found(path, "[dependencies.p]\npackage = \"linerate-port\""), 1);
        let windows = "[target.'cfg(windows)'.dependencies]\nlinerate = \"0.1\"";
        assert_eq!(found(path, windows), 1);
    }

    #[test]
    fn a_test_may_use_any_crate() {
        let manifest = "[dev-dependencies]\nlinerate-port.workspace = true";
        assert_eq!(found("crates/skb/Cargo.toml", manifest), 0);
        assert_eq!(found("tests/Cargo.toml", "[dependencies]\nlinerate-skb = \"0.1\""), 0);
    }

    #[test]
    fn a_crate_that_the_table_does_not_know_is_found() {
        assert_eq!(found("crates/misc/Cargo.toml", ""), 1);
    }
}
