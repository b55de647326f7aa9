//! Rust sources as text: the lines outside tests, and the `mod` that declares a file.
//!
//! It relies on what rustfmt and this tree's habits guarantee: one item a line, and tests last in a
//! file.

use crate::tidy::Tree;

/// Returns the part of a source before its inline tests.
pub fn shipped(text: &str) -> &str {
    let ends = ["\nmod tests {", "\npub(crate) mod tests {"].iter().filter_map(|at| text.find(at));
    ends.min().map_or(text, |end| &text[..end])
}

/// Returns the code of a line; empty for a blank line or a comment.
pub fn code(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with("//") { "" } else { line }
}

/// Returns the line before the `mod` that declares the file at `path`; `None` if nothing declares
/// it.
pub fn declaration<'a>(tree: &'a Tree, path: &str) -> Option<&'a str> {
    let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let (folder, name) = module.rsplit_once('/')?;
    let parents = match folder.ends_with("/src") {
        true => [format!("{folder}/lib.rs"), format!("{folder}/main.rs")],
        false => [format!("{folder}.rs"), format!("{folder}/mod.rs")],
    };
    let [plain, raw] = [format!("mod {name};"), format!("mod r#{name};")];
    parents.iter().filter_map(|parent| tree.text(parent)).find_map(|text| {
        let mut before = "";
        for line in text.lines().map(code) {
            if line.ends_with(&plain) || line.ends_with(&raw) {
                return Some(before);
            }
            before = line;
        }
        None
    })
}

/// Returns true for a file that is compiled for tests only.
pub fn is_for_tests(tree: &Tree, path: &str) -> bool {
    ["/tests/", "/tests.rs", "/conformance/"].iter().any(|part| path.contains(part))
        || path.starts_with("tests/")
        || declaration(tree, path)
            .is_some_and(|cfg| cfg.starts_with("#[cfg(") && cfg.contains("test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_for_tests_are_those_in_folders_of_tests_and_those_declared_for_them() {
        let root =
            "#[cfg(target_os = \"linux\")]\nmod linux;\n#[cfg(test)]\nmod checks;\nmod r#gen;\n";
        let tree = Tree::of(&[("crates/a/src/lib.rs", root)]);
        for path in ["tests/src/traffic.rs", "crates/a/tests/x.rs", "crates/a/src/checks.rs"] {
            assert!(is_for_tests(&tree, path), "{path}");
        }
        for path in ["crates/a/src/linux.rs", "crates/a/src/gen.rs", "crates/a/src/gone.rs"] {
            assert!(!is_for_tests(&tree, path), "{path}");
        }
        assert_eq!(declaration(&tree, "crates/a/src/gen.rs"), Some("mod checks;"));
        assert_eq!(declaration(&tree, "crates/a/src/gone.rs"), None);
    }
}
