//! The rule for docs/seed-map.md: it maps every name in the five posts to a name of ours, and each
//! of our names in it exists.
//!
//! A row is `| theirs | post | ours | note |`. Ours is one or more code spans, or `none`, or both
//! spans and the mark of the pending with its subject; the note says what differs.

use std::collections::HashMap;

use crate::tidy::{Finding, Tree, source};

const PAGE: &str = "docs/seed-map.md";
const COLUMNS: [&str; 4] = ["theirs", "post", "ours", "note"];
const POSTS: [&str; 5] = ["000", "001", "002", "003", "004"];
const PENDING: &str = "[pending]";

/// Subjects that a row may name after the mark for pending.
const SUBJECTS: [&str; 1] = ["verbs port"];

/// Every name in the patch of post 004, including its context lines.
const PATCH: &str = "skb->next | skb->prev | skb->list | skb->sk | skb->stamp.tv_sec | skb->dev | skb->dst | skb->cb | \
    skb->len | skb->data_len | skb->csum | skb->cloned | skb->pkt_type | skb->ip_summed | skb->priority \
    | skb->security | skb->truesize | skb->head | skb->data | skb->tail | skb->end | skb->users | \
    skb->destructor | skb->nfmark | skb->nfcache | skb->nfct | skb->nf_debug | skb->tc_index | \
    skb_shinfo(skb)->dataref | skb_shinfo(skb)->nr_frags | skb_shinfo(skb)->frag_list | PACKET_HOST | \
    CONFIG_NETFILTER | CONFIG_NETFILTER_DEBUG | CONFIG_NET_SCHED | SLAB_HWCACHE_ALIGN | struct sk_buff | \
    skbuff_head_cache | skb_headerinit | skb_shinfo | alloc_skb | __free_skb | __kfree_skb | \
    kfree_skbmem | nf_conntrack_put | atomic_set | memset | nodata | panic";

/// Finds empty or wrong rows, and names of the patch without a row.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(PAGE) else { return vec![Finding::of(PAGE, "is missing")] };
    let mut found = Vec::new();
    let items = items(tree);
    let mut mapped: Vec<(&str, &str)> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let Some(cells) = cells(line) else { continue };
        let mut report = |what: String| found.push(Finding::at(PAGE, i + 1, what));
        let &[theirs, posts, ours, note] = cells.as_slice() else {
            report(format!("{} cells, not four: {COLUMNS:?}", cells.len()));
            continue;
        };
        let ruler = cells.iter().all(|cell| cell.chars().all(|c| c == '-'));
        if ruler || cells == COLUMNS {
            continue;
        }
        let (names, rest) = spans(theirs);
        if names.is_empty() || !rest.is_empty() {
            report("the first cell is not made of code spans".into());
        }
        let unknown = posts.split(' ').find(|post| !POSTS.contains(post));
        unknown.into_iter().for_each(|post| report(format!("there is no post '{post}'")));
        false_evidence(tree, &items, ours).into_iter().for_each(&mut report);
        if note.is_empty() {
            report("the note is empty: what differs?".into());
        }
        for name in names {
            if mapped.iter().any(|(other, _)| *other == name) {
                report(format!("`{name}` has a row already"));
            }
            mapped.push((name, posts));
        }
    }
    let has = |name: &str| mapped.iter().any(|(n, posts)| *n == name && posts.contains("004"));
    let missing = PATCH.split(" | ").filter(|name| !has(name));
    found.extend(missing.map(|name| Finding::of(PAGE, format!("`{name}` of post 004 has no row"))));
    found
}

/// Returns the cells of a table's row, trimmed; `\|` is a bar in a cell.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inside = line.trim().strip_prefix('|')?;
    let inside = inside.strip_suffix('|').unwrap_or(inside);
    let mut cells = Vec::new();
    let mut start = 0;
    for (at, _) in inside.match_indices('|') {
        if !inside[..at].ends_with('\\') {
            cells.push(inside[start..at].trim());
            start = at + 1;
        }
    }
    cells.push(inside[start..].trim());
    Some(cells)
}

/// Returns the code spans at the start of a cell, separated by commas, and the rest of the cell.
fn spans(cell: &str) -> (Vec<&str>, &str) {
    let mut spans = Vec::new();
    let mut rest = cell;
    while let Some((span, after)) = rest.strip_prefix('`').and_then(|rest| rest.split_once('`')) {
        spans.push(span);
        rest = after.trim_start_matches([',', ' ']);
    }
    (spans, rest)
}

/// Returns the reasons why the cell `ours` is invalid; empty if it names at least one thing and
/// everything named exists.
fn false_evidence(tree: &Tree, items: &Items<'_>, ours: &str) -> Vec<String> {
    let (spans, rest) = spans(ours);
    let mut wrong: Vec<String> = spans
        .iter()
        .filter(|span| !exists(tree, items, span))
        .map(|span| format!("`{span}` does not exist"))
        .collect();
    let end = match rest.strip_prefix(PENDING) {
        Some(subject) if SUBJECTS.contains(&subject.trim()) => None,
        Some(subject) => Some(format!("{PENDING}{subject}: one of {SUBJECTS:?}")),
        None if rest.is_empty() && spans.is_empty() => Some("what is ours is left open".into()),
        None if rest.is_empty() || (rest == "none" && spans.is_empty()) => None,
        None => Some(format!("'{rest}' is no code span, no `{PENDING}` and not `none`")),
    };
    wrong.extend(end);
    wrong
}

/// Returns true if a code span names an existing part of ours: a command with flags, a port with
/// options, a file, or an item of a crate.
fn exists(tree: &Tree, items: &Items<'_>, span: &str) -> bool {
    if span.starts_with("linerate ") {
        return command_exists(tree, span);
    }
    match span.replace("::", "").split_once(':') {
        Some((driver, options)) => option_exists(tree, driver, options),
        None if span.contains(['/', '.']) => !span.is_empty() && tree.has(span),
        None => item_exists(tree, items, span),
    }
}

/// Returns true if the golden help has the command and its flags: `linerate gen --rate`.
fn command_exists(tree: &Tree, words: &str) -> bool {
    let (command, flags) = words.split_once(" --").unwrap_or((words, ""));
    let help = tree.text("tests/golden/help.txt").unwrap_or("");
    let head = format!("=== {command} --help\n");
    let Some(help) = help.split_once(&head).and_then(|(_, help)| help.split("===").next()) else {
        return false;
    };
    let mut flags = flags.split(" --").filter(|flag| !flag.is_empty());
    flags.all(|flag| help.split([' ', '\n']).any(|word| word.strip_prefix("--") == Some(flag)))
}

/// Names that the lines of crates define, each with its files, and whether it is a `pub` item
/// there.
type Items<'a> = HashMap<&'a str, Vec<(&'a str, bool)>>;

fn items(tree: &Tree) -> Items<'_> {
    let mut items = Items::new();
    for (file, text) in tree.ending(".rs").filter(|(file, _)| file.contains("/src/")) {
        for line in source::shipped(text).lines().map(source::code) {
            let (names, public) = defined(line);
            for name in names.filter(|name| !name.is_empty()) {
                items.entry(name).or_default().push((file, public));
            }
        }
    }
    items
}

/// Returns the names that a line defines (for a `pub use`, each of its words), and true if they are
/// `pub` items.
fn defined(line: &str) -> (impl Iterator<Item = &str>, bool) {
    const HEADS: [&str; 10] =
        ["fn", "struct", "enum", "trait", "type", "mod", "const", "static", "unsafe", "async"];
    fn is_between(c: char) -> bool {
        !c.is_alphanumeric() && c != '_'
    }
    let (mut rest, mut has_head) = (line.strip_prefix("pub ").unwrap_or(line), false);
    let is_public = rest.len() < line.len();
    if let Some(list) = rest.strip_prefix("use ").filter(|_| is_public) {
        return (list.split(is_between as fn(char) -> bool), true);
    }
    while let Some((_, after)) = rest.split_once(' ').filter(|(word, _)| HEADS.contains(word)) {
        (rest, has_head) = (after, true);
    }
    let (name, after) = rest.split_at(rest.find(is_between).unwrap_or(rest.len()));
    // The name of a field, of a variant, or of a row in a macro's table.
    let is_member =
        after.starts_with([':', ',']) || after.starts_with(" {") || after.starts_with(" =");
    let is_tuple = name.starts_with(char::is_uppercase) && after.starts_with('(');
    let name = if has_head || is_member || is_tuple { name } else { "" };
    (name.split(is_between as fn(char) -> bool), is_public && has_head)
}

/// Returns true if a crate defines `[crate::][module::…][Type::]name`. The check is by lines: a
/// line defines the name, in a file that is the module or mentions the module or type before the
/// name.
fn item_exists(tree: &Tree, items: &Items<'_>, path: &str) -> bool {
    let mut parts: Vec<&str> = path.trim_end_matches("()").split("::").collect();
    let package = parts[0].strip_prefix("linerate_").map(|name| format!("/{name}/src/"));
    let found = parts.pop().and_then(|name| items.get(name));
    let outer = parts.get(usize::from(package.is_some())..).and_then(|modules| modules.last());
    found.into_iter().flatten().any(|(file, public)| {
        let text = tree.text(file).unwrap_or("");
        package.as_ref().is_none_or(|package| file.contains(package))
            && outer.map_or(*public, |outer| {
                file.split(['/', '.']).any(|part| part == *outer) || text.contains(outer)
            })
    })
}

/// Returns true if the page of `driver` has every option of a port text: `ring:NAME,len=N`.
fn option_exists(tree: &Tree, driver: &str, text: &str) -> bool {
    let Some(page) = tree.text(&format!("docs/ports/{driver}.md")) else { return false };
    let mut options = text.split(',').skip(1).map(|option| option.split('=').next().unwrap_or(""));
    options.all(|option| page.contains(&format!("| `{option}` |")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# Seed map\n\n| theirs | post | ours | note |\n|---|---|---|---|\n";

    fn patch() -> String {
        PATCH.split(" | ").map(|name| format!("| `{name}` | 004 | none | - |\n")).collect()
    }

    /// Returns the findings in a page with `row` in addition to a row for each name of the patch.
    fn found(row: &str) -> Vec<String> {
        let patch = patch();
        let page = format!("{HEAD}{row}\n{patch}");
        let skb = "pub struct Skb;\nimpl Skb {\n    pub fn push(&mut self) {}\n}\nfn hidden() {}\n";
        let help =
            "=== linerate forward --help\n  --cpu <N>\n=== linerate lab --help\n  --budget\n";
        let tree = Tree::of(&[
            (PAGE, &page),
            ("crates/skb/src/skb.rs", skb),
            ("tests/golden/help.txt", help),
            ("docs/ports/ring.md", "| option | meaning |\n|---|---|\n| `len` | packets |\n"),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn existing_items_may_be_named_and_future_ones_promised() {
        for ours in [
            "`Skb::push`",
            "`linerate_skb::Skb`, `skb::Skb::push()`",
            "`linerate forward --cpu`",
            "`ring:NAME,len=N`",
            "`docs/ports/ring.md`",
            "`docs/ports/`",
            "[pending] verbs port",
            "`Skb` [pending] verbs port",
            "none",
        ] {
            assert_eq!(found(&format!("| `x` | 000 003 | {ours} | same |")), [""; 0], "{ours}");
        }
    }

    #[test]
    fn missing_item_is_found_with_its_line() {
        for ours in [
            "`Skb::pull`",
            "`Skb`, `Skb::pull`",
            "`hidden`",
            "`Pool::push`",
            "`linerate_port::Skb`",
            "`linerate forward --budget`",
            "`linerate gen`",
            "`ring:NAME,depth=N`",
            "`wing:NAME`",
            "`docs/gone.md`",
            "`` ",
            "[pending]",
            "[pending] later",
            "Skb",
            "`Skb` none",
            "",
        ] {
            let found = found(&format!("| `x` | 000 | {ours} | same |"));
            assert_eq!(found.len(), 1, "{ours}: {found:?}");
            assert!(found[0].starts_with("docs/seed-map.md:5: "), "{found:?}");
        }
    }

    #[test]
    fn a_row_has_four_cells_a_name_a_post_and_a_note() {
        assert_eq!(found("| `x` | 000 | none |").len(), 1);
        assert_eq!(found("| `x` | 000 | none | note | more |").len(), 1);
        assert_eq!(found("| `x` | 000 | none | a \\| b |"), [""; 0]);
        assert_eq!(found("| x | 000 | none | note |").len(), 1);
        assert_eq!(found("| `x` and so on | 000 | none | note |").len(), 1);
        assert_eq!(found("| `x` | 005 | none | note |").len(), 1);
        assert_eq!(found("| `x` | | none | note |").len(), 1);
        assert_eq!(found("| `x` | 000 | none | |").len(), 1);
    }

    #[test]
    fn a_name_has_one_row() {
        let twice = "| `x`, `y` | 000 | none | note |\n| `y` | 003 | none | note |";
        assert_eq!(found(twice), ["docs/seed-map.md:6: `y` has a row already"]);
    }

    #[test]
    fn every_name_of_the_patch_has_a_row_of_its_post() {
        let page = HEAD.to_owned() + &patch();
        let missing = |page: &str| check(&Tree::of(&[(PAGE, page)])).len();
        assert_eq!(missing(&page), 0);
        assert_eq!(missing(&page.replace("| `skb->sk` | 004 |", "| `skb->sk` | 003 |")), 1);
        assert_eq!(missing(&page.replace("`skb->sk`", "`sk`")), 1);
        assert_eq!(missing(HEAD), 49);
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
