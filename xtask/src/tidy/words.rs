//! Names say what a thing is: some words say nothing. And no file names the machine it was
//! written on.

use std::path::Path;
use std::process::Command;

use crate::tidy::{Finding, Tree, rust};

/// Words that stand where a noun of the field should.
const EMPTY_WORDS: [&str; 6] = ["helper", "helpers", "manager", "managers", "util", "utils"];

/// First words of a function's name that say less than no word.
const EMPTY_STARTS: [&str; 2] = ["get_", "handle_"];

/// Words of Rust that a name follows.
const NAMING: [&str; 6] = ["enum", "fn", "mod", "struct", "trait", "type"];

/// Folders that exist on somebody's machine only.
const PRIVATE_FOLDERS: [&str; 3] =
    [concat!("/", "home/"), concat!("/", "root/"), concat!("/", "work/")];

/// What else must not enter the tree, as this clone's `git config --add tidy.forbid <text>` says.
pub fn of_this_machine(root: &Path) -> Vec<String> {
    let mut git = Command::new("git");
    git.args(["config", "--get-all", "tidy.forbid"]).current_dir(root);
    // Without such a line git fails, and there is nothing to look for.
    let listed = git.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&listed).lines().map(str::to_owned).collect()
}

/// Finds empty names, and texts of one machine.
pub fn check(tree: &Tree, local: &[String]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        if let Some(word) = path.split('/').find_map(empty_word) {
            found.push(Finding::of(path, format!("`{word}` says nothing: name the concept")));
        }
        if path.ends_with(".rs") {
            found.extend(names(path, text));
        }
        let private = PRIVATE_FOLDERS.iter().copied().chain(local.iter().map(String::as_str));
        for word in private {
            found.extend(text.lines().enumerate().filter(|(_, line)| line.contains(word)).map(
                |(i, _)| Finding::at(path, i + 1, format!("`{word}` is of one machine only")),
            ));
        }
    }
    found
}

fn names(path: &str, text: &str) -> Vec<Finding> {
    let masked = rust::mask(text);
    let mut found = Vec::new();
    let mut last = "";
    for (at, name) in rust::words(&masked) {
        let names_it = NAMING.contains(&last);
        let empty_start = EMPTY_STARTS.iter().find(|start| name.starts_with(**start));
        let empty = match empty_start {
            Some(start) if last == "fn" => Some((*start).to_owned()),
            _ => empty_word(name),
        };
        if let (true, Some(word)) = (names_it, empty) {
            let what = format!("`{word}` in `{name}` says nothing");
            found.push(Finding::at(path, rust::line_of(&masked, at), what));
        }
        last = name;
    }
    found
}

/// The first empty word of a snake_case, CamelCase or file name.
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

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let local = ["secret-host".to_owned()];
        check(&Tree::of(&[(path, text)]), &local).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn empty_names_are_found_and_calls_are_not() {
        let text = "fn get_len() {}\nstruct PoolManager;\nmod byte_utils {}\nfn reap() {}\n\
                    fn f() { map.get_mut(); }\nstruct Handle;\n";
        assert_eq!(lines("crates/x/src/a.rs", text), [1, 2, 3]);
    }

    #[test]
    fn a_file_with_an_empty_name_is_found() {
        assert_eq!(lines("crates/x/src/frame_helpers.rs", ""), [0]);
        assert_eq!(lines("crates/x/src/frame.rs", ""), [0_usize; 0]);
    }

    #[test]
    fn the_words_of_one_machine_are_found() {
        let text =
            format!("see {}me\nfetched from secret-host\n/dev/net/tun\n", PRIVATE_FOLDERS[0]);
        assert_eq!(lines("docs/a.md", &text), [1, 2]);
    }
}
