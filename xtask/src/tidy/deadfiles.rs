//! Every source file is compiled: a file that no `mod` names is dead, and so are its tests.

use crate::tidy::{Finding, Tree, rust};

/// Finds source files that no module declares.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let sources = tree.ending(".rs").filter(|(path, _)| path.contains("/src/"));
    sources
        .filter(|(path, _)| !is_root(path) && !is_declared(tree, path))
        .map(|(path, _)| Finding::of(path, "no `mod` declares this file"))
        .collect()
}

fn is_root(path: &str) -> bool {
    let (_, inside) = path.split_once("/src/").unwrap_or_default();
    matches!(inside, "lib.rs" | "main.rs") || inside.starts_with("bin/")
}

/// Whether one of the files that may declare the module at `path` does.
fn is_declared(tree: &Tree, path: &str) -> bool {
    declared(tree, path, |_| true)
}

/// Whether the file at `path` is a module for tests only.
pub fn is_for_tests(tree: &Tree, path: &str) -> bool {
    declared(tree, path, |module| module.for_tests)
}

fn declared(tree: &Tree, path: &str, wanted: impl Fn(&rust::Module<'_>) -> bool) -> bool {
    let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let Some((folder, name)) = module.rsplit_once('/') else { return false };
    let parents = if folder.ends_with("/src") {
        [format!("{folder}/lib.rs"), format!("{folder}/main.rs")]
    } else {
        [format!("{folder}.rs"), format!("{folder}/mod.rs")]
    };
    let mut texts = parents.iter().filter_map(|parent| tree.text(parent));
    texts.any(|text| {
        let masked = rust::mask(text);
        let mut modules = rust::modules(&masked).into_iter();
        modules.any(|module| module.name == name && !module.inline && wanted(&module))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_nobody_declares_is_found() {
        let found = check(&Tree::of(&[
            ("crates/x/src/lib.rs", "mod a;\n// mod c;\n"),
            ("crates/x/src/a.rs", "pub mod b;\n"),
            ("crates/x/src/a/b.rs", ""),
            ("crates/x/src/c.rs", ""),
            ("crates/x/src/d/mod.rs", ""),
        ]));
        let paths: Vec<_> = found.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(paths, ["crates/x/src/c.rs", "crates/x/src/d/mod.rs"]);
    }
}
