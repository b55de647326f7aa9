//! Rules of the manifests: the direction of dependencies between crates, the metadata that a
//! registry shows, and foreign packages from the public index only.

use crate::tidy::{Finding, Tree};

/// Our crates, each with the crates that it may depend on. Development dependencies are not
/// restricted, because they do not ship.
const ARROWS: [(&str, &[&str]); 17] = [
    ("sys", &[]),
    ("ring", &[]),
    ("wire", &[]),
    ("skb", &["sys", "ring", "wire"]),
    ("port", &["skb", "ring", "wire", "sys"]),
    ("datapath", &["port", "skb", "ring", "wire"]),
    ("ctl", &["datapath", "port", "wire", "sys"]),
    ("linerate", &["ctl", "datapath", "port", "skb", "wire"]),
    ("smoltcp", &["linerate"]),
    ("tokio", &["linerate"]),
    // `cli` depends on `ctl` only to enable its JSON feature, which the facade leaves off.
    ("cli", &["linerate", "ctl", "sys"]),
    // The instruments. No crate above depends on them.
    ("show", &["sys"]),
    ("prof", &["show", "sys"]),
    // QEMU loads this plugin, and no crate links it; its test load passes packets between threads.
    ("lines", &["skb"]),
    ("seeds", &["prof", "show"]),
    ("lab", &["seeds", "ctl", "datapath", "port", "smoltcp", "skb", "wire", "prof", "show", "sys"]),
    ("lab-cli", &["linerate", "cli", "lab", "seeds", "prof", "show", "sys"]),
];

/// Beginnings of lines that the manifest of a published crate must have.
const PUBLISHED: [&str; 7] = [
    "description = ",
    "license.workspace",
    "repository.workspace",
    "readme.workspace",
    "categories = ",
    "keywords = ",
    "[package.metadata.docs.rs]",
];

const INDEX: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Finds dependencies in the wrong direction, and packages from other sources.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending("/Cargo.toml") {
        let Some((house @ ("crates" | "instruments"), rest)) = path.split_once('/') else {
            continue;
        };
        let folder = match (house, rest.trim_end_matches("/Cargo.toml")) {
            ("instruments", "cli") => "lab-cli",
            (_, folder) => folder,
        };
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == folder) else {
            found.push(Finding::of(path, "this crate has no row in the table of arrows"));
            continue;
        };
        found.extend(unpublishable(tree, path, text).map(|what| Finding::of(path, what)));
        let against = dependencies(text).into_iter().filter(|(_, used)| !allowed.contains(used));
        let what = |used| format!("{folder} may not depend on {used}");
        found.extend(against.map(|(line, used)| Finding::at(path, line, what(used))));
    }
    let Some(lock) = tree.text("Cargo.lock") else {
        found.push(Finding::of("Cargo.lock", "is missing: the tested versions are part of us"));
        return found;
    };
    let lines = lock.lines().enumerate();
    let sources = lines.filter_map(|(i, line)| Some((i + 1, line.strip_prefix("source = \"")?)));
    let foreign = sources.filter(|(_, source)| source.trim_end_matches('"') != INDEX);
    found.extend(foreign.map(|(i, _)| Finding::at("Cargo.lock", i, "not the public index")));
    found
}

/// Returns the metadata that a crate lacks for a registry; nothing for a crate that is not
/// published.
fn unpublishable<'a>(
    tree: &'a Tree,
    path: &'a str,
    text: &'a str,
) -> impl Iterator<Item = String> + 'a {
    let folder = path.trim_end_matches("Cargo.toml");
    let licences = ["LICENSE-MIT", "LICENSE-APACHE"].into_iter();
    let licences = licences.filter(move |name| tree.text(&format!("{folder}{name}")).is_none());
    let says = move |start: &&str| !text.lines().any(|line| line.starts_with(*start));
    let absent = PUBLISHED.into_iter().filter(says).chain(licences);
    let is_private = text.lines().any(|line| line == "publish = false");
    absent.filter(move |_| !is_private).map(|what| format!("lacks {what}, or `publish = false`"))
}

/// Returns the folders of our crates that a manifest depends on, with their lines.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let (mut found, mut counts) = (Vec::new(), false);
    for (i, line) in manifest.lines().enumerate() {
        let mut names = line;
        if line.starts_with('[') {
            counts = line.contains("dependencies") && !line.contains("dev-dependencies");
            // Form: `[dependencies.linerate-skb]`
            names = line.split("dependencies.").nth(1).unwrap_or("").trim_end_matches(']');
        }
        // Forms: `linerate-skb.workspace = true`, `s = { package = "linerate-skb" }`
        let name = names.split_once("package = \"").map_or(names, |(_, name)| name);
        let name = name.split(['.', ' ', '=', '"']).next().unwrap_or("");
        let folder = if name == "linerate" { Some(name) } else { name.strip_prefix("linerate-") };
        found.extend(folder.filter(|_| counts).map(|folder| (i + 1, folder)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, manifest: &str) -> usize {
        let manifest = format!("publish = false\n{manifest}");
        check(&Tree::of(&[("Cargo.lock", ""), (path, &manifest)])).len()
    }

    #[test]
    fn a_crate_that_a_registry_would_refuse_is_found() {
        let whole = PUBLISHED.map(|line| format!("{line}\n")).concat();
        let found = |manifest: &str, licence: &str| {
            let mit = format!("crates/sys/{licence}");
            let files = [("crates/sys/Cargo.toml", manifest), (&*mit, ""), ("Cargo.lock", "")];
            let apache = ("crates/sys/LICENSE-APACHE", "");
            check(&Tree::of(&[&files[..], &[apache]].concat())).len()
        };
        assert_eq!(found(&whole, "LICENSE-MIT"), 0);
        assert_eq!(found(&whole, "LICENSE"), 1);
        assert_eq!(found(&whole.replace("readme.workspace", "readme = "), "LICENSE-MIT"), 1);
        assert_eq!(found("publish = false", "LICENSE"), 0);
        let only_mit = [("crates/sys/Cargo.toml", &*whole), ("crates/sys/LICENSE-MIT", "")];
        let found = check(&Tree::of(&[&only_mit[..], &[("Cargo.lock", "")]].concat()));
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn an_arrow_that_points_back_is_found() {
        let path = "crates/skb/Cargo.toml";
        assert_eq!(found(path, "[dependencies]\nlinerate-ring.workspace = true\nlibc = \"1\""), 0);
        assert_eq!(found(path, "[dependencies]\nlinerate-port.workspace = true"), 1);
        assert_eq!(found(path, "[build-dependencies]\nlinerate-port.workspace = true"), 1);
        assert_eq!(found(path, "[dependencies]\np = { package = \"linerate-port\" }"), 1);
        assert_eq!(found(path, "[dependencies.linerate-port]\npath = \"../port\""), 1);
        assert_eq!(found(path, "[target.'cfg(windows)'.dependencies]\nlinerate = \"0.1\""), 1);
        assert_eq!(found(path, "[dev-dependencies]\nlinerate-port.workspace = true"), 0);
        assert_eq!(found("tests/Cargo.toml", "[dependencies]\nlinerate-skb = \"0.1\""), 0);
        assert_eq!(found("crates/misc/Cargo.toml", ""), 1);
        let lab = "[dependencies]\nlinerate-lab.workspace = true";
        assert_eq!(
            (found("instruments/cli/Cargo.toml", lab), found("crates/cli/Cargo.toml", lab)),
            (0, 1)
        );
    }

    #[test]
    fn a_package_from_elsewhere_is_found() {
        let lock = format!(
            "source = \"{INDEX}\"\nsource = \"git+https://example.org/x\"\nsource = \"registry+https://example.org/x\"\n"
        );
        let found = check(&Tree::of(&[("Cargo.lock", &lock)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
