//! Rules of the sources that neither rustc nor clippy checks: names, lengths, silence, dead files,
//! `unsafe`.
//!
//! Functions of more than 70 lines are clippy's `too_many_lines`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tidy::{Finding, Tree, source};

/// Words that are used instead of a precise noun.
const EMPTY_WORDS: [&str; 6] = ["helper", "helpers", "manager", "managers", "util", "utils"];
/// First words of a function's name that carry no meaning.
const EMPTY_STARTS: [&str; 2] = ["get_", "handle_"];
/// Rust keywords that are followed by a name.
const NAMING: [&str; 6] = ["enum", "fn", "mod", "struct", "trait", "type"];
/// Keywords that may precede the keywords in [`NAMING`].
const BEFORE: [&str; 6] = ["pub", "pub(crate)", "pub(super)", "async", "const", "unsafe"];

/// Folders that exist only on one machine.
const PRIVATE_FOLDERS: [&str; 3] =
    [concat!("/", "home/"), concat!("/", "root/"), concat!("/", "work/")];

const FILE_LINES: usize = 600;

/// The crates that may contain `unsafe`.
const UNSAFE: [&str; 7] = ["sys", "ring", "skb", "port", "tokio", "prof", "lines"];

/// Calls that a library must not make outside its tests. The command owns its process and may make
/// them.
const LOUD: [&str; 9] = [
    "print!(",
    "println!(",
    "eprint!(",
    "eprintln!(",
    "dbg!(",
    "todo!(",
    "unimplemented!(",
    "process::exit(",
    "thread::sleep(",
];

/// Folders whose code must not name drivers, because drivers describe themselves; then the drivers
/// that may be named, because they open nothing and we build paths of them.
const ABOVE_DRIVERS: [&str; 4] = ["cli", "ctl", "datapath", "linerate"];
const DRIVERS_WITHIN: [&str; 4] = ["gen", "null", "ring", "sink"];

/// Folders of items that users reach by the crate `linerate`.
const RE_EXPORTED: [&str; 6] = [
    "crates/skb/src/",
    "crates/port/src/",
    "crates/datapath/src/",
    "crates/ctl/src/affinity/",
    "crates/ctl/src/doctor/",
    "crates/ctl/src/placement/",
];

/// Returns the texts that this clone's `git config --add tidy.forbid <text>` forbids in the tree.
pub fn of_this_machine(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    // Without trust in the clone's owner, git would leave out the clone's own settings.
    git.args(["-c", "safe.directory=*", "config", "--get-all", "tidy.forbid"]).current_dir(root);
    let output = git.output().context("cannot start git")?;
    // git ends with 1 if there is no such setting; then there is nothing to forbid.
    if !matches!(output.status.code(), Some(0 | 1)) {
        bail!("git config: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Finds empty names, texts of one machine, and violations of rules for sources.
pub fn check(tree: &Tree, local: &[String]) -> Vec<Finding> {
    let mut found = Vec::new();
    let private: Vec<&str> =
        PRIVATE_FOLDERS.into_iter().chain(local.iter().map(String::as_str)).collect();
    for (path, text) in tree.files() {
        if let Some(word) = path.split('/').find_map(empty_word) {
            found.push(Finding::of(path, format!("`{word}` says nothing: name the concept")));
        }
        found.extend(lines(path, text, &private, |line| {
            let word = private.iter().find(|word| line.contains(**word))?;
            Some(format!("`{word}` is of one machine only"))
        }));
        if path.ends_with(".rs") {
            found.extend(check_source(tree, path, text));
        }
    }
    found
}

fn check_source(tree: &Tree, path: &str, text: &str) -> Vec<Finding> {
    let suspects = ["fn get_", "fn handle_", "elper", "anager", "util", "Util"];
    let mut found = lines(path, text, &suspects, empty_name);
    let length = text.lines().count();
    if length > FILE_LINES {
        found.push(Finding::of(path, format!("{length} lines, {FILE_LINES} allowed")));
    }
    let (folder, inside) = path.split_once("/src/").unwrap_or((path, ""));
    let is_root = matches!(inside, "" | "lib.rs" | "main.rs") || inside.starts_with("bin/");
    if !is_root && source::declaration(tree, path).is_none() {
        found.push(Finding::of(path, "no `mod` declares this file"));
    }
    let of_a_crate = ["crates/", "instruments/"].iter().find_map(|at| folder.strip_prefix(at));
    let name = of_a_crate.map(|rest| rest.split('/').next().unwrap_or(rest));
    let may_be_unsafe = match name {
        Some(name) => UNSAFE.contains(&name),
        // Tests outside the crates may use `unsafe`, for allocators that count and for system
        // calls.
        None => !["examples/", "xtask/"].iter().any(|folder| path.starts_with(folder)),
    };
    if !may_be_unsafe {
        found.extend(lines(path, text, &["unsafe"], |line| {
            let is_unsafe = line.split_whitespace().any(|word| word == "unsafe");
            is_unsafe
                .then(|| "`unsafe` outside sys, ring, skb, port, tokio, prof and lines".to_owned())
        }));
        if name.is_some()
            && matches!(inside, "lib.rs" | "main.rs")
            && !text.contains("\n#![forbid(unsafe_code)]")
        {
            found.push(Finding::of(path, "must say `#![forbid(unsafe_code)]`"));
        }
    }
    if path.starts_with("crates/") && name.is_some_and(|name| ABOVE_DRIVERS.contains(&name)) {
        found.extend(drivers_named(tree, path, text));
    }
    if RE_EXPORTED.iter().any(|folder| path.starts_with(folder)) {
        found.extend(examples_of_parts(path, text));
    }
    let is_library = name.is_some_and(|name| name != "cli") && !inside.is_empty();
    if is_library && !source::is_for_tests(tree, path) {
        found.extend(lines(path, source::shipped(text), &LOUD, |line| {
            let call = LOUD.iter().find(|call| calls(line, call))?;
            Some(format!("a library may not {}", call.trim_end_matches('(')))
        }));
    }
    found
}

/// Finds lines of examples that name a crate behind the facade: the program that copies the line
/// depends on `linerate`. A hidden line may name it, as in `# use linerate_port as linerate;`.
fn examples_of_parts(path: &str, text: &str) -> Vec<Finding> {
    let (mut found, mut is_example) = (Vec::new(), false);
    for (i, line) in text.lines().map(str::trim).enumerate() {
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(doc) = doc.map(str::trim_start) else {
            is_example = false;
            continue;
        };
        if doc.starts_with("```") {
            is_example = !is_example;
        } else if is_example && !doc.starts_with("# ") && doc.contains("linerate_") {
            let what = "an example names a crate that users do not depend on: write `linerate::`";
            found.push(Finding::at(path, i + 1, what.to_owned()));
        }
    }
    found
}

/// Finds string literals that are a driver's name, or begin with a driver's name and a colon, as
/// the text of a port does.
fn drivers_named(tree: &Tree, path: &str, text: &str) -> Vec<Finding> {
    let pages = tree.ending(".md").filter_map(|(page, _)| page.strip_prefix("docs/ports/"));
    let names = pages.filter_map(|page| page.strip_suffix(".md"));
    let names: Vec<&str> = names.filter(|name| !DRIVERS_WITHIN.contains(name)).collect();
    if !path.contains("/src/") || source::is_for_tests(tree, path) {
        return Vec::new();
    }
    lines(path, source::shipped(text), &["\""], |line| {
        let starts =
            |name: &&&str| ["\"", ":"].iter().any(|end| line.contains(&format!("\"{name}{end}")));
        let name = names.iter().find(starts)?;
        Some(format!("`{name}` is named outside its folder: ask DriverFlags, Needs or OnMachine"))
    })
}

/// Finds the lines of code for which `wrong` returns an error. A text with none of `suspects` is
/// skipped.
fn lines(
    path: &str,
    text: &str,
    suspects: &[&str],
    wrong: impl Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    if !suspects.iter().any(|suspect| text.contains(suspect)) {
        return Vec::new();
    }
    let is_source = path.ends_with(".rs");
    let lines = text.lines().enumerate();
    let code = lines.map(|(i, line)| (i + 1, if is_source { source::code(line) } else { line }));
    code.filter_map(|(i, line)| Some(Finding::at(path, i, wrong(line)?))).collect()
}

/// Returns true if `line` contains `call` as a separate word: `eprintln!` does not contain
/// `println!`.
fn calls(line: &str, call: &str) -> bool {
    line.match_indices(call)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// Returns the error in the name that a line defines, if it has one.
fn empty_name(line: &str) -> Option<String> {
    let mut words = line.split([' ', '(', '<', ':', ';']).skip_while(|word| BEFORE.contains(word));
    let (kind, name) = (words.next()?, words.next()?);
    if !NAMING.contains(&kind) {
        return None;
    }
    let start = EMPTY_STARTS.iter().find(|start| kind == "fn" && name.starts_with(**start));
    let word = start.map(|start| (*start).to_owned()).or_else(|| empty_word(name))?;
    Some(format!("`{word}` in `{name}` says nothing"))
}

/// Returns the first empty word of a snake_case, CamelCase or file name.
fn empty_word(name: &str) -> Option<String> {
    let mut spaced = String::new();
    for c in name.chars() {
        if c.is_uppercase() {
            spaced.push(' ');
        }
        spaced.push(if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    }
    let mut words = spaced.split_whitespace();
    words.find(|word| EMPTY_WORDS.contains(word)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines with findings in a file beside its crate root.
    fn found(path: &str, text: &str) -> Vec<usize> {
        let local = ["secret-host".to_owned()];
        let root = "//! x\n#![forbid(unsafe_code)]\nmod a;\n#[cfg(test)]\nmod only_tests;\n";
        let found = check(&Tree::of(&[("crates/ctl/src/lib.rs", root), (path, text)]), &local);
        found.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn empty_names_are_found_and_calls_are_not() {
        let text = "fn get_len() {}\npub struct PoolManager;\nmod byte_utils {}\nfn reap() {}\n\
                    fn f() { map.get_mut(); }\nstruct Handle;\nmod get_in {}\n";
        assert_eq!(found("crates/ctl/src/a.rs", text), [1, 2, 3]);
        assert_eq!(found("docs/frame_helpers.md", ""), [0]);
        assert_eq!(
            found("tests/tests/a.rs", "fn f() {}\nfn get_len() {}\n"),
            [2],
            "a test's source"
        );
    }

    #[test]
    fn words_of_a_machine_that_cannot_be_listed_are_an_error() {
        assert!(of_this_machine(Path::new("/nonexistent")).is_err());
        let broken = std::env::temp_dir().join(format!("linerate-clone-{}", std::process::id()));
        std::fs::create_dir_all(&broken).unwrap();
        std::fs::write(broken.join(".git"), "no clone").unwrap();
        let listed = of_this_machine(&broken);
        std::fs::remove_dir_all(&broken).unwrap();
        assert!(listed.is_err(), "{listed:?}");
    }

    #[test]
    fn the_words_of_one_machine_are_found() {
        let text =
            format!("see {}me\nfetched from secret-host\n/dev/net/tun\n", PRIVATE_FOLDERS[0]);
        assert_eq!(found("docs/a.md", &text), [1, 2]);
    }

    #[test]
    fn long_and_undeclared_files_are_found() {
        assert_eq!(found("crates/ctl/src/a.rs", &"\n".repeat(600)), [0_usize; 0]);
        assert_eq!(found("crates/ctl/src/a.rs", &"\n".repeat(601)), [0]);
        assert_eq!(found("crates/ctl/src/b.rs", ""), [0]);
    }

    #[test]
    fn unsafe_is_found_where_it_has_no_place() {
        let text = "// UNSAFE\nfn f() {\n    UNSAFE { g() }\n}\n".to_lowercase();
        assert_eq!(found("crates/ctl/src/a.rs", &text), [3]);
        assert_eq!(found("examples/echo.rs", &text), [3]);
        assert_eq!(found("crates/skb/src/lib.rs", &text), [0_usize; 0]);
        assert_eq!(found("crates/wire/src/lib.rs", "// #![forbid(unsafe_code)]\n"), [0]);
    }

    #[test]
    fn driver_is_named_in_its_folder_and_in_tests_only() {
        let text = "fn f() {\n    g(\"tap\");\n    g(\"tap:x\");\n    g(\"tapped\");\n    g(\"gen:\");\n}\n\
                    #[cfg(test)]\nmod tests {\n    g(\"tap\");\n}\n";
        let found = |path| {
            let pages = [("docs/ports/tap.md", ""), ("docs/ports/gen.md", ""), (path, text)];
            let found = check_source(&Tree::of(&pages), path, text);
            let named = found.iter().filter(|finding| finding.what.contains("outside its folder"));
            named.map(|finding| finding.line).collect::<Vec<_>>()
        };
        assert_eq!(found("crates/ctl/src/a.rs"), [2, 3]);
        for unchecked in ["crates/ctl/src/a/tests.rs", "crates/ctl/benches/a.rs"] {
            assert_eq!(found(unchecked), [0_usize; 0], "{unchecked}");
        }
    }

    #[test]
    fn an_example_that_names_a_crate_behind_the_facade_is_found() {
        let text =
            "/// As [`linerate_skb::Skb`].\n///\n/// ```\n/// # use linerate_port as linerate;\n\
                    /// use linerate::Port;\n/// use linerate_port::Port;\n/// ```\n/// See
                    /// linerate_skb.\n\
                    fn f() {}\n";
        assert_eq!(found("crates/port/src/a.rs", text)[1..], [6]);
        assert_eq!(found("crates/ring/src/lib.rs", text), [0_usize; 0]);
    }

    #[test]
    fn a_library_that_prints_is_found_and_its_tests_are_not() {
        let text =
            "fn f() {\n    eprintln!(\"x\");\n}\n#[cfg(test)]\nmod tests {\n    println!();\n}\n";
        assert_eq!(found("crates/ctl/src/a.rs", text), [2]);
        assert_eq!(found("crates/ctl/src/only_tests.rs", text), [0_usize; 0]);
        assert_eq!(found("xtask/src/main.rs", text), [0_usize; 0]);
        let command = format!("//! x\n#![forbid(unsafe_code)]\n{text}");
        assert_eq!(found("crates/cli/src/lib.rs", &command), [0_usize; 0], "a command prints");
        assert!(calls("println!(1)", "println!(") && !calls("my_println!(1)", "println!("));
    }
}
