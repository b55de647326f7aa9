//! Figures in pages that come from no document: they are marked as *reported, not kept*, and their
//! section has the command and the commit that gave them, or a section of the campaigns to which it
//! links has both.

use super::render::{BEGIN, END};
use crate::tidy::{Finding, slug};

/// The page of the campaigns.
pub const CAMPAIGNS: &str = "docs/campaigns.md";

/// Text in a page that marks figures without a document: in the section of a table, or, with
/// [`ALL`], before the first section of the page.
const UNKEPT: &str = "reported, not kept";
const ALL: &str = "figures on this page are reported, not kept";

/// Finds the figures of a page that come from no document and lack the mark, the command or the
/// commit; `campaigns` is the text of [`CAMPAIGNS`].
pub fn check(path: &str, text: &str, campaigns: &str) -> Vec<Finding> {
    if path != "README.md" && !path.starts_with("docs/") {
        return Vec::new();
    }
    unmarked(path, text).into_iter().chain(unstated(path, text, campaigns)).collect()
}

/// Finds tables of measured figures that are not rendered and not marked as having no document.
///
/// A figure is measured if it stands beside its interval or range, as in `1.43 [1.40, 1.54]`.
fn unmarked(path: &str, text: &str) -> Option<Finding> {
    let (all, mut inside, mut says_so) = (are_all_unkept(text), false, false);
    let mut fenced = false;
    for (i, line) in text.lines().enumerate() {
        let is_fence = line.starts_with("```");
        fenced ^= is_fence;
        if fenced || is_fence {
            continue;
        }
        inside = (inside || line.starts_with(BEGIN)) && line != END;
        says_so =
            all || (says_so && !line.starts_with('#')) || line.to_lowercase().contains(UNKEPT);
        if line.starts_with('|') && !inside && !says_so && has_interval(line) {
            let what = format!(
                "comes from no document, and nothing above it in its section says {UNKEPT:?}"
            );
            return Some(Finding::at(path, i + 1, what));
        }
    }
    None
}

/// Finds sections with marked figures that name no command or no commit.
fn unstated(path: &str, text: &str, campaigns: &str) -> Vec<Finding> {
    let all = are_all_unkept(text);
    let (mut found, mut inside, mut fenced) = (Vec::new(), false, false);
    let (mut said, mut first) = (String::new(), 1);
    for (i, line) in text.lines().chain(["# "]).enumerate() {
        fenced ^= line.starts_with("```");
        if line.starts_with('#') && !fenced {
            let lacking = lacking(&said, all, campaigns);
            found.extend(lacking.map(|what| Finding::at(path, first, what)));
            (said, first) = (String::new(), i + 1);
        }
        if !fenced {
            inside = (inside || line.starts_with(BEGIN)) && line != END;
        }
        if !inside {
            said += line;
            said.push(' ');
        }
    }
    found
}

/// Returns what a section lacks; `all` means that its page marks every figure.
fn lacking(said: &str, all: bool, campaigns: &str) -> Option<String> {
    let is_marked = said.to_lowercase().replace(ALL, "").contains(UNKEPT);
    let has_figures = is_marked || (all && has_interval(said));
    if !has_figures {
        return None;
    }
    let what = unnamed(said)?;
    let links = said.split("campaigns.md#").skip(1).filter_map(|rest| rest.split(')').next());
    let mut sections = links.filter_map(|anchor| section(campaigns, anchor));
    if sections.any(|said| unnamed(&said).is_none()) {
        return None;
    }
    Some(format!(
        "has figures that are {UNKEPT}, and names neither their {what} nor a section of {CAMPAIGNS} that has both \
         command and commit"
    ))
}

/// Returns the one of command and commit that a section does not name; `None` if it names both.
fn unnamed(said: &str) -> Option<&'static str> {
    let has = |part: &&str| said.contains(*part);
    if !["`linerate ", "sudo linerate ", "cargo "].iter().any(has) {
        return Some("command");
    }
    let has_commit = said.split(|c: char| !c.is_alphanumeric()).any(is_commit);
    (!has_commit).then_some("commit")
}

/// Returns the section of a page that has this anchor, up to the next heading of its level.
fn section(page: &str, anchor: &str) -> Option<String> {
    let (mut said, mut level, mut fenced) = (String::new(), 0, false);
    for line in page.lines() {
        fenced ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        let marks = line.len() - title.len();
        if marks > 0 && !fenced {
            if level > 0 && marks <= level {
                break;
            }
            if level == 0 && slug(title.trim()) == anchor {
                level = marks;
            }
        }
        if level > 0 {
            said += line;
            said.push(' ');
        }
    }
    (level > 0).then_some(said)
}

/// Returns true if a page says before its first section that none of its figures has a document.
fn are_all_unkept(text: &str) -> bool {
    text.split("\n## ").next().unwrap_or_default().to_lowercase().contains(ALL)
}

/// Returns true for a shortened commit: hexadecimal digits, at least one of them a letter and one a
/// number.
fn is_commit(word: &str) -> bool {
    let has = |is: fn(&char) -> bool| word.chars().any(|c| is(&c));
    (7..=40).contains(&word.len())
        && word.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
        && has(char::is_ascii_digit)
        && has(char::is_ascii_lowercase)
}

/// Returns true if a line contains an interval such as `[1.40, 1.54]` or `[1,053 %, 1,675 %]`.
fn has_interval(line: &str) -> bool {
    let is_number = |part: &&str| {
        let digits = part.trim_end_matches([' ', '%']).replace(',', "").replace('−', "-");
        digits.parse::<f64>().is_ok()
    };
    let numbers = |text: &str| {
        let parts: Vec<&str> = text.split(", ").collect();
        parts.len() == 2 && parts.iter().all(is_number)
    };
    line.split('[').skip(1).filter_map(|rest| rest.split(']').next()).any(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_table_names_its_document_or_says_that_there_is_none() {
        let table = "| x | 1.43 [1.40, 1.54] |\n";
        let of = |text: &str| unmarked("README.md", text).is_some();
        assert!(of(&format!("# a\n{table}")));
        assert!(!of(&format!("# a\nOn a Xeon (Reported, not kept):\n\n{table}")));
        assert!(of(&format!("# a\nreported, not kept\n# b\n{table}")), "another section");
        assert!(!of(&format!("{BEGIN}x -->\n{table}{END}\n")));
        assert!(!of("# a\n| x | [page](a.md) | 5 [frames, bytes] |\n"));
        for interval in ["[1,053, 1,675]", "[−1.4 %, +2.0 %]"] {
            assert!(of(&format!("# a\n| x | 1 {interval} |\n")), "{interval}");
        }
        let fence = "```sh\n# of cargo\n```\n";
        assert!(!of(&format!("# a\nReported, not kept:\n{fence}{table}")), "a comment of a shell");
        let quoted = format!("```\n{BEGIN}x -->\n```\n");
        assert!(of(&format!("# a\n{quoted}{table}")), "a quoted mark");
        let page = format!("# a\nAll figures on this page are reported, not kept.\n## b\n{table}");
        assert!(!of(&page) && of(&page.replace("All figures on this page are", "They are")));
        assert!(!check("docs/adr/other.md", table, "").is_empty());
        assert!(check("crates/x/README.md", table, "").is_empty());
    }

    /// S1.16.
    #[test]
    fn figures_without_a_document_have_their_command_and_commit_in_their_section() {
        let found = |text: &str| -> Vec<String> {
            unstated("docs/x.md", text, "").iter().map(ToString::to_string).collect()
        };
        let whole = "# a\n## b\n`cargo bench` at f82b1b4, reported,\nnot kept: 1.4\n";
        assert_eq!(found(whole), [""; 0]);
        for (part, what) in [("cargo bench", "command"), ("f82b1b4", "commit")] {
            let lacking = found(&whole.replace(part, "1000000000"));
            assert!(lacking.len() == 1 && lacking[0].starts_with("docs/x.md:2: "), "{lacking:?}");
            assert!(lacking[0].contains(&format!("neither their {what} ")), "{lacking:?}");
            let linked = whole.replace(part, "[c](campaigns.md)");
            assert_eq!(found(&linked).len(), 1, "a link to the page as a whole names no run");
        }
        for word in ["defaced", "1234567", "f82b1b"] {
            assert_eq!(found(&whole.replace("f82b1b4", word)).len(), 1, "{word} is no commit");
        }
        let elsewhere =
            whole.replace("not kept", "not kept\n```sh\n# cargo x\n```\n## c\nreported, not kept");
        assert_eq!(found(&elsewhere).len(), 1, "the next section");
        let quoted = format!("# a\n```\n{BEGIN}x -->\n```\n`cargo x`, reported, not kept\n");
        assert_eq!(found(&quoted).len(), 1, "behind a quoted mark");
        assert_eq!(found("`cargo x`, reported, not kept\n<!-- results: x -->\nf82b1b4\n").len(), 1);
        let all = "Figures on this page are reported, not kept.\n## b\n1.43 [1.40, 1.54]\n";
        assert_eq!(found(all).len(), 1, "a page that has only such figures");
        assert_eq!(found(&all.replace("1.43 [1.40, 1.54]", "text")), [""; 0]);
    }

    /// S1.16.
    #[test]
    fn a_section_that_a_page_links_to_has_the_command_and_the_commit_itself() {
        let campaigns = "# Campaigns\n## The lab\n### pool: one\n`linerate lab run pool`\n#### More\nat f82b1b4\n\
                         ### No commit\n`linerate lab run pool`\n### No command\nf82b1b4\n## Other\n";
        let found = |anchor: &str| {
            let page = format!("## b\n1.4, reported, not kept ([b](../campaigns.md#{anchor}))\n");
            unstated("docs/adr/x.md", &page, campaigns).len()
        };
        for whole in ["pool-one", "the-lab", "campaigns"] {
            assert_eq!(found(whole), 0, "{whole}");
        }
        for lacking in ["no-commit", "no-command", "other", "pool"] {
            assert_eq!(found(lacking), 1, "{lacking}");
        }
        let half =
            "## b\n`linerate lab run pool`, reported, not kept ([b](campaigns.md#no-command))\n";
        assert_eq!(unstated("docs/x.md", half, campaigns).len(), 1, "perhaps of two runs");
    }
}
