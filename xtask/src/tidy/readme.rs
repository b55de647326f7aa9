//! The README's two commands are the ones that `cargo xtask check` runs.

use crate::tidy::{Finding, Tree};

/// What a newcomer is asked to type, in this order.
pub const COMMANDS: [&str; 2] = ["cargo run --release -- forward", "cargo test --workspace"];

const README: &str = "README.md";
const HEADING: &str = "## Try it";

/// Finds commands under "Try it" that nobody runs.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(README) else {
        return vec![Finding::of(README, "is missing")];
    };
    let mut lines = text.lines().enumerate();
    let Some((start, _)) = lines.find(|(_, line)| line.starts_with(HEADING)) else {
        return vec![Finding::of(README, format!("has no heading `{HEADING}`"))];
    };
    let section = lines.map(|(_, line)| line).take_while(|line| !line.starts_with("## "));
    let mut fenced = false;
    let mut commands = Vec::new();
    for line in section {
        match line.trim() {
            "```sh" => fenced = true,
            "```" => fenced = false,
            command if fenced && !command.is_empty() => commands.push(command),
            _ => {}
        }
    }
    if commands == COMMANDS {
        return Vec::new();
    }
    let what = format!("says {commands:?}, the check runs {COMMANDS:?}");
    vec![Finding::at(README, start + 1, what)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        check(&Tree::of(&[(README, text)])).len()
    }

    #[test]
    fn the_commands_must_be_the_ones_that_are_run() {
        let good = format!(
            "# x\n## Try it, no root\n```sh\n{}\n{}\n```\n## Next\n```sh\nls\n```\n",
            COMMANDS[0], COMMANDS[1]
        );
        assert_eq!(found(&good), 0);
        assert_eq!(found(&good.replace("--workspace", "--all")), 1);
        assert_eq!(found(&good.replace("```sh", "```text")), 1);
        assert_eq!(found(&good.replace("Try it", "Use it")), 1);
    }

    #[test]
    fn a_missing_readme_is_found() {
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
