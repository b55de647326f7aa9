//! A library prints nothing, ends no process, sleeps nowhere of its own and leaves nothing undone.

use crate::tidy::{Finding, Tree, deadfiles, rust};

/// What the source of a library may not call outside its tests.
const LOUD: [&str; 9] = [
    "print!",
    "println!",
    "eprint!",
    "eprintln!",
    "dbg!",
    "todo!",
    "unimplemented!",
    "process::exit",
    "thread::sleep",
];

/// Finds what a library may not do. The command line may: it owns the process.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let library = (path.starts_with("crates/") || path.starts_with("instruments/"))
            && !path.contains("/cli/");
        if !library || !path.contains("/src/") || deadfiles::is_for_tests(tree, path) {
            continue;
        }
        let masked = rust::mask(text);
        // Tests stand last in a file.
        let modules = rust::modules(&masked);
        let tests = modules.iter().find(|module| module.inline && module.for_tests);
        let tests = tests.map_or(masked.len(), |module| module.at);
        for (i, line) in masked[..tests].lines().enumerate() {
            let called = LOUD.iter().find(|call| calls(line, call));
            found.extend(
                called.map(|call| Finding::at(path, i + 1, format!("a library may not {call}"))),
            );
        }
    }
    found
}

/// Whether `line` has `call` as a word of its own: `eprintln!` does not contain `println!`.
fn calls(line: &str, call: &str) -> bool {
    line.match_indices(call)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_prints_is_found_and_its_tests_are_not() {
        let text =
            "fn f() {\n    eprintln!(\"x\");\n}\n#[cfg(test)]\nmod tests {\n    println!();\n}\n";
        let found = check(&Tree::of(&[
            ("crates/port/src/tap.rs", text),
            ("crates/cli/src/main.rs", text),
            ("xtask/src/main.rs", text),
            ("crates/sys/src/lib.rs", "#[cfg(test)]\nmod netns;\n"),
            ("crates/sys/src/netns.rs", text),
        ]));
        let called = Finding::at("crates/port/src/tap.rs", 2, "a library may not eprintln!");
        assert_eq!(found, [called]);
    }
}
