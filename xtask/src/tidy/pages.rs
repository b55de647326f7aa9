//! Rules of the pages: valid links, quoted code that exists, README commands that the checks also
//! run, a page for each driver, and a reason for each decision.

use std::collections::HashSet;
use std::iter;

use crate::tidy::{Finding, Tree, source};

/// Commands for newcomers, in order; `cargo xtask check` runs them, too.
pub const README_COMMANDS: [&str; 2] = ["cargo run --release -- forward", "cargo test --workspace"];

const ERRORS: &str = "docs/errors.md";
const WALK: &str = "docs/walk.md";
const DECISIONS: &str = "docs/decisions.md";
/// Valid words after `state:` on a driver's page.
const STATES: [&str; 2] = ["stable", "experimental"];

/// Origins of a proposal that do not name its author.
const ORIGINS: [&str; 4] = ["prototype", "design", "review", "first version"];

/// Finds pages with wrong or missing statements.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".md") {
        found.extend(dead_links(tree, path, text));
        found.extend(stale_quotes(tree, path, text));
    }
    if tree.text(WALK).is_none_or(|text| !text.contains("```rust ")) {
        let what = "is missing, or quotes no code (```rust path/of/the/file.rs)";
        found.push(Finding::of(WALK, what));
    }
    let commands = tree.text("README.md").map(commands).unwrap_or_default();
    if commands != README_COMMANDS {
        let what = format!("`## Try it` says {commands:?}, the check runs {README_COMMANDS:?}");
        found.push(Finding::of("README.md", what));
    }
    found.extend(drivers(tree));
    found.extend(errors(tree));
    found.extend(decisions(tree));
    found
}

/// Finds relative links to files that do not exist, or to sections that their page does not have.
fn dead_links(tree: &Tree, page: &str, text: &str) -> Vec<Finding> {
    let (mut found, mut fenced) = (Vec::new(), false);
    for (i, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        // Text between backticks is code, in which no links are searched.
        let prose = line.split('`').step_by(2);
        let targets = prose.flat_map(|text| text.split("](").skip(1));
        let targets = targets.filter_map(|rest| rest.split([')', ' ']).next());
        let targets = targets.filter(|to| !to.contains("://") && !to.starts_with("mailto:"));
        let dead = targets.filter_map(|target| dead(tree, page, target));
        found.extend(dead.map(|what| Finding::at(page, i + 1, what)));
    }
    found
}

/// Returns the fault of a relative link to `target` on `page`; `None` if it has none.
fn dead(tree: &Tree, page: &str, target: &str) -> Option<String> {
    let (file, section) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { Some(page.to_owned()) } else { resolved(page, file) };
    let Some(path) = path.filter(|path| tree.has(path)) else {
        return Some(format!("{file} does not exist"));
    };
    if section.is_empty() || !path.ends_with(".md") {
        return None;
    }
    let is_there = anchors(tree.text(&path).unwrap_or_default()).contains(section);
    (!is_there).then(|| format!("{target}: {path} has no such section"))
}

/// Returns the anchors of a page: of its headings, by GitHub's rule, and those of `<a id="...">`.
fn anchors(text: &str) -> HashSet<String> {
    let (mut known, mut fenced) = (HashSet::new(), false);
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        let ids = line.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        known.extend(ids.map(str::to_owned));
        let heading = line.trim_start_matches('#');
        if heading.len() < line.len() && heading.starts_with(' ') {
            // Headings of the same words are numbered.
            let slug = slug(heading.trim());
            let numbered = (1..).map(|n: u32| format!("{slug}-{n}"));
            let mut anchors = iter::once(slug.clone()).chain(numbered);
            known.extend(anchors.find(|anchor| !known.contains(anchor)));
        }
    }
    known
}

/// Returns the anchor that GitHub makes of a heading, if no other on the page has the same words.
pub fn slug(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let kept = lower.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the path of a link, relative to the workspace; `None` if it leads outside.
fn resolved(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

/// Finds code blocks "```rust path" whose text does not occur in that file in one piece, with any
/// indentation.
fn stale_quotes(tree: &Tree, page: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((i, line)) = lines.next() {
        if !line.starts_with("```") {
            continue;
        }
        let block = lines.by_ref().map(|(_, line)| line.trim());
        let block: Vec<&str> = block.take_while(|line| !line.starts_with("```")).collect();
        let Some(path) = line.strip_prefix("```rust ") else { continue };
        let source: Vec<&str> = tree.text(path).unwrap_or("").lines().map(str::trim).collect();
        if block.is_empty() || !source.windows(block.len()).any(|piece| piece == block) {
            found.push(Finding::at(page, i + 1, format!("{path} does not say this")));
        }
    }
    found
}

/// Returns the shell commands under `## Try it`.
fn commands(readme: &str) -> Vec<&str> {
    let section = readme.split("\n## ").find(|section| section.starts_with("Try it"));
    let blocks = section.unwrap_or("").split("```sh\n").skip(1);
    let shell = blocks.filter_map(|rest| rest.split("```").next());
    shell.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// Finds drivers without a page, and pages that lack a state or the cause of a limit.
fn drivers(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with("crates/")) {
        let names = source::shipped(text).split("\nimpl Driver for ").skip(1);
        for name in names.filter_map(|rest| rest.split(' ').next()) {
            let page = format!("docs/ports/{}.md", name.to_lowercase());
            if path.contains("/src/") && !source::is_for_tests(tree, path) && !tree.has(&page) {
                found.push(Finding::of(&page, "is missing: each driver has a page"));
            }
        }
    }
    let pages = tree.ending(".md").filter(|(path, _)| path.starts_with("docs/ports/"));
    for (page, text) in pages.filter(|(page, _)| !page.ends_with("/wrap.md")) {
        let state = text.lines().find_map(|line| line.strip_prefix("state: "));
        if !state.is_some_and(|state| STATES.contains(&state)) {
            found.push(Finding::of(page, format!("needs a line `state:` with one of {STATES:?}")));
        }
        let (_, limits) = text.split_once("\nlimits:\n").unwrap_or_default();
        let list = limits.trim_start().split("\n\n").next().unwrap_or("");
        let Some(list) = list.strip_prefix("- ") else {
            found.push(Finding::of(page, "needs a line `limits:` and a list under it"));
            continue;
        };
        let causeless = list.split("\n- ").filter(|limit| !limit.contains("because"));
        let what = |limit| format!("says no cause (`because`): {limit}");
        found.extend(causeless.map(|limit| Finding::of(page, what(limit))));
    }
    found
}

/// Finds error codes without a row that explains their cause and remedy.
fn errors(tree: &Tree) -> Vec<Finding> {
    let page = tree.text(ERRORS).unwrap_or("");
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.contains("/src/")) {
        if path.starts_with("xtask/") || source::is_for_tests(tree, path) {
            continue;
        }
        let words = source::shipped(text).split('"');
        let codes = words.filter(|word| word.starts_with("E-") && !word.contains(' '));
        let rowless = codes.filter(|code| !page.contains(&format!("\n| `{code}` | ")));
        found.extend(rowless.map(|code| Finding::of(ERRORS, format!("{code} has no row: {path}"))));
    }
    found
}

/// Finds incomplete rows in the log of decisions.
fn decisions(tree: &Tree) -> Vec<Finding> {
    let lines = tree.text(DECISIONS).unwrap_or("").lines().enumerate();
    let rows: Vec<_> = lines.filter(|(_, line)| line.starts_with('|')).skip(2).collect();
    if rows.is_empty() {
        return vec![Finding::of(DECISIONS, "has no decisions")];
    }
    let wrong = |row: &str| {
        let columns: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let &[proposal, by, outcome, reason, link] = columns.as_slice() else {
            return Some("needs five columns");
        };
        let is_reason =
            reason.contains(|c: char| c.is_ascii_digit()) || reason.split(' ').count() >= 8;
        match () {
            () if proposal.is_empty() || by.is_empty() => Some("leaves a column empty"),
            () if ORIGINS.contains(&by) => Some("says how it was proposed, and not by whom"),
            () if !["adopted", "dropped"].iter().any(|word| outcome.starts_with(word)) => {
                Some("is neither adopted nor dropped")
            }
            () if !is_reason => Some("decides by neither a figure nor a reason"),
            () if !(link.starts_with('[') && link.ends_with(')')) => Some("has no link at its end"),
            () => None,
        }
    };
    rows.into_iter()
        .filter_map(|(i, row)| Some(Finding::at(DECISIONS, i + 1, wrong(row)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "| proposal | by | | what decided | where |\n|---|---|---|---|---|\n";
    const ROW: &str = "| x | post 004 | adopted | 2.6 against 4.3 ticks | [6](a.md) |";

    /// Returns the findings for a valid tree in which the text of `page` is replaced.
    fn found(page: &str, text: &str) -> Vec<String> {
        let readme = format!(
            "# x\n## Try it, no root\n```sh\n{}\n{}\n```\n## Next\n```sh\nls\n```\n",
            README_COMMANDS[0], README_COMMANDS[1]
        );
        let log = format!("{HEAD}{ROW}\n");
        let source = "impl W {\n    fn turn(&mut self) {\n        self.rx();\n\n        self.tx();\n    }\n}\n";
        let mut files = vec![
            ("README.md", readme.as_str()),
            (DECISIONS, log.as_str()),
            ("docs/a.md", ""),
            ("docs/adr/0001.md", "# Top\n"),
            ("crates/x/src/worker.rs", source),
            ("crates/x/src/tap/mod.rs", "struct Tap;\nimpl Driver for Tap {}\n"),
            ("docs/ports/tap.md", "state: experimental\n\nlimits:\n\n- one,\n  because of x\n"),
        ];
        files.retain(|(path, _)| *path != page);
        files.push((page, text));
        let found = check(&Tree::of(&files));
        found.into_iter().filter(|f| f.path == page).map(|f| f.to_string()).collect()
    }

    #[test]
    fn a_link_to_a_missing_file_is_found() {
        for dead in [
            "[x](gone.md)",
            "[x](../gone.md#part)",
            "[x](../../out.md)",
            "[x](../../README.md)",
            "[`a`](gone.rs)",
        ] {
            assert_eq!(found("docs/b.md", dead).len(), 1, "{dead}");
        }
        let fine = "# Here\n[a](adr/0001.md#top) [b](adr/) [c](../README.md) [d](#here)\n\
                    [a](https://example.org/x) [a](mailto:x@example.org) `[b](gone.md)`\n```\n[a](gone.md)\n```";
        assert_eq!(found("docs/b.md", fine), [""; 0]);
    }

    #[test]
    fn a_link_to_a_section_that_its_page_does_not_have_is_found() {
        let page = "## Two words: `a_b`, (c)\n## Same\n## Same\n<a id=\"named\"></a>\n#none\n\
                    ```\n# fenced\n```\n";
        let faults = |to: &str| found("docs/b.md", &format!("{page}[x]({to})\n")).len();
        for known in ["#two-words-a_b-c", "#same", "#same-1", "#named", "b.md#same"] {
            assert_eq!(faults(known), 0, "{known}");
        }
        for unknown in ["#same-2", "#Same", "#fenced", "#none", "adr/0001.md#same"] {
            assert_eq!(faults(unknown), 1, "{unknown}");
        }
    }

    #[test]
    fn a_quotation_must_stand_in_the_file_in_one_piece() {
        let quote = |code: &str| {
            found(WALK, &format!("text\n```rust crates/x/src/worker.rs\n{code}```\n")).len()
        };
        assert_eq!(quote("self.rx();\n\nself.tx();\n"), 0);
        assert_eq!(quote("fn turn(&mut self) {\n    self.rx();\n"), 0);
        assert_eq!((quote("self.rx();\nself.tx();\n"), quote("")), (1, 1));
        assert_eq!(found(WALK, "```rust crates/x/src/gone.rs\nself.rx();\n```\n").len(), 1);
        assert_eq!(found(WALK, "```rust\nself.rx();\n```\n").len(), 1, "a walk without code");
        assert!(check(&Tree::of(&[])).iter().any(|finding| finding.path == WALK), "no walk");
        // On the other pages, too; a README without the commands to try has a finding for those.
        for (page, others) in [("README.md", 1), ("docs/b.md", 0)] {
            let quote = |code: &str| {
                found(page, &format!("```rust crates/x/src/worker.rs\n{code}\n```\n")).len()
            };
            assert_eq!((quote("self.rx();"), quote("self.xx();")), (others, others + 1), "{page}");
        }
    }

    #[test]
    fn the_readmes_commands_must_be_the_ones_that_are_run() {
        assert_eq!(found("docs/b.md", ""), [""; 0]);
        let readme = "## Try it\n```sh\ncargo run --release -- forward\ncargo test --all\n```\n";
        assert_eq!(found("README.md", readme).len(), 1);
        assert_eq!(found("README.md", "").len(), 1);
    }

    #[test]
    fn a_driver_has_a_page_with_its_state_and_the_causes_of_its_limits() {
        let good =
            "# tap\nstate: experimental\n\nlimits:\n\n- one queue,\n  because of the ioctl\n";
        assert_eq!(found("docs/ports/tap.md", good), [""; 0]);
        for (is, bad) in [("experimental", "fine"), ("because of", "see"), ("limits:", "Limits")] {
            assert_eq!(found("docs/ports/tap.md", &good.replace(is, bad)).len(), 1, "{bad}");
        }
        let tree = Tree::of(&[("crates/x/src/tap.rs", "struct Tap;\nimpl Driver for Tap {}\n")]);
        assert_eq!(drivers(&tree).len(), 1);
    }

    #[test]
    fn a_code_of_an_error_without_a_row_is_found() {
        let source = "fn f() { Error::new(\"E-GONE\") }\n#[cfg(test)]\nmod tests { const X: &str = \"E-X\"; }\n";
        let found = |page: &str| {
            let tests = "const WORD: &str = \"E-XTASK\";\n";
            let sources = [("crates/x/src/e.rs", source), ("xtask/src/e.rs", tests)];
            let found = check(&Tree::of(&[(ERRORS, page), sources[0], sources[1]]));
            found.iter().filter(|finding| finding.path == ERRORS).count()
        };
        assert_eq!(found("\n| `E-GONE` | 1 |"), 0);
        assert_eq!((found("\n| `E-OTHER` | 1 |"), found("\n| `E-GONE-OTHER` | 1 |")), (1, 1));
    }

    /// S2.25: the log of this tree has what post 002 decided, and who had proposed it there.
    #[test]
    fn decisions_of_post_002_are_in_the_log_with_their_proposers() {
        let log = include_str!("../../../docs/decisions.md");
        let link = "[post 002](../tests/seeds/002_79d1c05c8b9613cb.txt)";
        let rows: Vec<Vec<&str>> = log
            .lines()
            .filter(|line| line.contains(link))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        for (what, by, outcome) in [
            ("`tx_queue_len`", "Patrick", "dropped"),
            ("`dev_deactivate`", "Patrick", "adopted"),
            ("`sch_generic.c`", "Patrick", "adopted"),
            ("`free_netdev`", "Patrick", "adopted there, the first of the two"),
            ("/sys", "Stephen and Patrick", "adopted"),
            ("ethtool", "Stephen", "adopted"),
            ("Stop interrupts", "Evgeniy", "adopted"),
            ("`ipoib_send()`", "Michael Tsirkin", "adopted"),
            ("`NETIF_F_BATCH_SKBS`", "Krishna Kumar", "adopted"),
            ("`xmit_slots`", "Krishna Kumar", "dropped"),
            ("Unsigned ring indices", "Krishna Kumar", "adopted"),
            ("statically", "Patrick", "dropped"),
            ("no packet for a batch", "Patrick", "dropped"),
            ("even single packets", "Sridhar", "dropped"),
        ] {
            let found = rows.iter().find(|row| row[0].contains(what));
            let row = found.unwrap_or_else(|| panic!("no decision about {what}"));
            assert!(row[1].starts_with(by) && row[2].starts_with(outcome), "{row:?}");
        }
        assert_eq!(rows.len(), 14);
    }

    #[test]
    fn a_decision_has_a_proposer_an_outcome_a_figure_and_a_page() {
        assert_eq!(found(DECISIONS, &format!("{HEAD}{ROW}")), [""; 0]);
        // Eight words are a reason without a figure, a digit makes fewer words one.
        for reason in ["it would hold every packet of a flow", "4.3 ticks"] {
            let row = ROW.replace("2.6 against 4.3 ticks", reason);
            assert_eq!(found(DECISIONS, &format!("{HEAD}{row}")), [""; 0], "{reason}");
        }
        for bad in [
            "| x | post 004 | adopted | 2.6 against 4.3 ticks |",
            "| x | | adopted | 2.6 against 4.3 ticks | [6](a.md) |",
            "| x | design | adopted | 2.6 against 4.3 ticks | [6](a.md) |",
            "| x | post 004 | perhaps | 2.6 against 4.3 ticks | [6](a.md) |",
            "| x | post 004 | dropped | it is slow | [6](a.md) |",
            "| x | post 004 | dropped | it would hold every packet of flows | [6](a.md) |",
            "| x | post 004 | dropped | 2.6 against 4.3 ticks | a page |",
            "",
        ] {
            assert_eq!(found(DECISIONS, &format!("{HEAD}{bad}")).len(), 1, "{bad}");
        }
    }
}
