//! The rule for SPECIFICATION.md: each row occurs once and in order, all of its evidence exists,
//! and an experiment or a guest's table that proves a row has a run that is kept or reported.

use crate::tidy::{Finding, Tree};

/// The file that the rule checks.
pub const SPEC: &str = "SPECIFICATION.md";

/// Number of rows for each of the five posts.
const ROWS: [usize; 5] = [31, 25, 41, 24, 19];

const PENDING: &str = "[pending]";

/// The page that reports runs whose documents are not kept.
const CAMPAIGNS: &str = "docs/campaigns.md";

/// The page that reports the tables of guests.
const QEMU: &str = "docs/qemu.md";

/// The guest whose table is about cache lines, and the page that reports it.
const BOUNCE: &str = "bounce";
const LINES: &str = "docs/lines.md";

/// Scripts of guests that print no table of their own.
const NO_TABLES: [&str; 3] = ["init", "scenarios", "table"];

/// Finds rows that are missing, out of order, incomplete, or with false evidence.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(SPEC) else { return vec![Finding::of(SPEC, "is missing")] };
    let mut found = Vec::new();
    let posts = ROWS.iter().enumerate();
    let mut wanted = posts.flat_map(|(s, n)| (1..=*n).map(move |row| format!("S{s}.{row}")));
    for (i, line) in text.lines().enumerate() {
        let Some((number, rest)) = row(line) else { continue };
        let mut report = |what: String| found.push(Finding::at(SPEC, i + 1, what));
        match wanted.next() {
            Some(next) if next == number => {}
            Some(next) => {
                report(format!("{number} stands where {next} should"));
                return found;
            }
            None => report(format!("{number} is a row too many")),
        }
        match evidence(rest) {
            Some(named) => {
                let is_proved = !rest.ends_with(PENDING);
                let wrong = |name: &&str| {
                    let unrun = || unrun(tree, number, name).filter(|_| is_proved);
                    refuted(tree, name).or_else(unrun)
                };
                named.iter().filter_map(wrong).for_each(report);
            }
            None => report(format!("{number} ends neither in {PENDING} nor in evidence")),
        }
    }
    if let Some(next) = wanted.next() {
        found.push(Finding::of(SPEC, format!("{next} is missing")));
    }
    found
}

/// Returns each row's number and its evidence.
pub fn rows(text: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    let rows = text.lines().filter_map(row);
    rows.map(|(number, rest)| (number, evidence(rest).unwrap_or_default()))
}

/// Parses number and text of a row: `- **S0.1** text`.
fn row(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("- **S")?;
    line.strip_prefix("- **")?.split_once("** ")
}

/// Returns the evidence at the end of a row: code spans `kind: name`, optionally with the mark for
/// pending.
///
/// None if there is neither. Both together mean that a part is shown and a part is not.
fn evidence(text: &str) -> Option<Vec<&str>> {
    let pending = text.strip_suffix(PENDING);
    let mut rest = pending.unwrap_or(text).trim_end();
    let mut named = Vec::new();
    while let Some((before, span)) = rest.strip_suffix('`').and_then(|rest| rest.rsplit_once('`')) {
        if !["test: ", "bench: ", "lab: ", "guest: "].iter().any(|kind| span.starts_with(kind)) {
            break;
        }
        named.push(span);
        rest = before.trim_end().trim_end_matches(',').trim_end();
    }
    (pending.is_some() || !named.is_empty()).then_some(named)
}

/// Returns why a piece of evidence is invalid; `None` if the test or file that it names exists.
fn refuted(tree: &Tree, evidence: &str) -> Option<String> {
    let (kind, name) = evidence.split_once(": ")?;
    let exists = match kind {
        "test" => test_exists(tree, name),
        "bench" => tree.ending(&format!("/benches/{name}.rs")).next().is_some(),
        "guest" => {
            let scenarios = tree.text("xtask/src/qemu/scenarios.sh").unwrap_or_default();
            is_table(tree, name) || scenarios.contains(&format!("\nscenario_{name}() {{\n"))
        }
        _ => tree.ending(&format!("lab/experiments/{name}.toml")).next().is_some(),
    };
    (!exists).then(|| format!("`{evidence}` does not exist"))
}

/// Returns true if a guest's script of that name prints a table.
fn is_table(tree: &Tree, name: &str) -> bool {
    let script = format!("xtask/src/qemu/{name}.sh");
    !NO_TABLES.contains(&name) && tree.text(&script).is_some()
}

/// Returns why an experiment or a guest's table does not prove a row; `None` if a document of it is
/// kept or a page reports its command, and for evidence of another kind.
fn unrun(tree: &Tree, number: &str, evidence: &str) -> Option<String> {
    let (kind, name) = evidence.split_once(": ")?;
    let (is_reported, remedy) = match kind {
        "lab" => {
            let document = format!("/{name}.json.gz");
            let is_kept = tree.ending(&document).any(|(path, _)| path.starts_with("results/"));
            let is_reported = is_kept || reports(tree, CAMPAIGNS, ["lab", "run", name]);
            let report = format!("report `linerate lab run {name}` in {CAMPAIGNS}");
            (is_reported, format!("keep one (results/README.md), {report}"))
        }
        "guest" if is_table(tree, name) => {
            let page = if name == BOUNCE { LINES } else { QEMU };
            let is_reported = reports(tree, page, ["xtask", "qemu", name]);
            (is_reported, format!("report `cargo xtask qemu {name}` in {page}"))
        }
        _ => return None,
    };
    let why = format!("{number}: `{evidence}` has no run: {remedy}, or mark the row {PENDING}");
    (!is_reported).then_some(why)
}

/// Returns true if `page` has the words of a command, outside of its blocks of code (fenced, or
/// indented by four spaces), which say how to run it and report nothing.
fn reports(tree: &Tree, page: &str, command: [&str; 3]) -> bool {
    let prose = tree.text(page).unwrap_or_default().split("\n```").step_by(2);
    let lines = prose.flat_map(str::lines).filter(|line| !line.starts_with("    "));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.windows(3).any(|words| {
        let last = words[2].trim_end_matches(|c: char| !c.is_alphanumeric());
        [words[0], words[1], last] == command
    })
}

/// Returns true if cargo runs a test of that path: `linerate_ring::spsc::tests::wraps`, or for a
/// file outside the library `linerate_tests::netns::ping_crosses`.
fn test_exists(tree: &Tree, name: &str) -> bool {
    let parts: Vec<&str> = name.split("::").collect();
    let [package, modules @ .., test] = parts.as_slice() else { return false };
    let named = format!("name = \"{}\"", package.replace('_', "-"));
    let manifests = tree.ending("Cargo.toml").filter(|(_, text)| text.lines().any(|l| l == named));
    let mut folders = manifests.map(|(path, _)| path.trim_end_matches("Cargo.toml"));
    folders.any(|folder| {
        (0..=modules.len()).any(|n| {
            // The first `n` modules are files, the others are inline modules in the last file.
            let (outer, inline) = modules.split_at(n);
            files(folder, &outer.join("/")).iter().filter_map(|path| tree.text(path)).any(|text| {
                inline.iter().all(|module| text.contains(&format!("mod {module} {{")))
                    && has_test(text, test)
            })
        })
    })
}

/// Returns the files that may contain the module at `path`.
fn files(folder: &str, path: &str) -> Vec<String> {
    if path.is_empty() {
        return vec![format!("{folder}src/lib.rs"), format!("{folder}src/main.rs")];
    }
    let within = ["src/", "tests/", "examples/", ""].iter();
    let endings = [".rs", "/mod.rs", "/main.rs"];
    within.flat_map(|at| endings.map(|end| format!("{folder}{at}{path}{end}"))).collect()
}

/// Returns true if `text` has a test function of that name that is not ignored.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let head = format!("fn {name}(");
    lines.iter().enumerate().filter(|(_, line)| line.contains(&head)).any(|(i, _)| {
        let before = lines[..i].iter().rev();
        let before = before.take_while(|line| line.starts_with(['#', '/']));
        let attributes: Vec<_> = before.filter(|line| line.starts_with("#[")).collect();
        attributes.iter().any(|line| line.ends_with("#[test]") || line.contains("::test"))
            && !attributes.iter().any(|line| line.starts_with("#[ignore"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a specification whose rows all end with `end`.
    fn all(end: &str) -> String {
        let posts = ROWS.iter().enumerate();
        posts
            .flat_map(|(s, n)| (1..=*n).map(move |row| format!("- **S{s}.{row}** Text. {end}\n")))
            .collect()
    }

    fn found(spec: &str) -> Vec<String> {
        let ring = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn wraps() {}\n    /// As spsc::tests::wraps, but no #[test]\n    fn idle() {}\n    #[test]\n    #[ignore]\n    fn slow() {}\n}\n";
        let fenced = "```sh\ncargo xtask qemu batch\n```\n";
        let indented = "    cargo xtask qemu zerocopy\n";
        let qemu = format!("`cargo xtask\nqemu shape`: 12 ms\n{fenced}{indented}");
        let tree = Tree::of(&[
            (SPEC, spec),
            ("crates/ring/Cargo.toml", "[package]\nname = \"linerate-ring\"\n"),
            ("crates/ring/src/spsc.rs", ring),
            ("crates/ring/benches/spsc.rs", ""),
            ("tests/Cargo.toml", "[package]\nname = \"linerate-tests\"\n"),
            ("tests/tests/netns.rs", "#[test]\nfn ping_crosses() {}\n"),
            ("instruments/lab/experiments/kept.toml", ""),
            ("xtask/src/qemu/scenarios.sh", "# A veth.\nscenario_veth() {\n}\n"),
            ("xtask/src/qemu/init.sh", ""),
            ("xtask/src/qemu/table.sh", ""),
            ("xtask/src/qemu/shape.sh", ""),
            ("xtask/src/qemu/batch.sh", ""),
            ("xtask/src/qemu/zerocopy.sh", ""),
            (QEMU, qemu.as_str()),
            ("results/amd/kept.json.gz", ""),
            ("instruments/lab/experiments/told.toml", ""),
            ("instruments/lab/experiments/tol.toml", ""),
            (CAMPAIGNS, "`linerate lab\nrun told`: +1 %\n```sh\nlinerate lab run tol\n```\n"),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_row_stands_once_and_in_order() {
        let good = all(PENDING);
        assert_eq!(found(&good), [""; 0]);
        let gone = good.replace("- **S2.7** Text. [pending]\n", "");
        assert!(found(&gone)[0].contains("S2.8 stands where S2.7 should"));
        let last = good.replace("- **S4.19** Text. [pending]\n", "");
        assert_eq!(found(&last), ["SPECIFICATION.md: S4.19 is missing"]);
        assert_eq!(found(&format!("{good}- **S4.20** Text. [pending]\n")).len(), 1);
    }

    #[test]
    fn a_row_without_an_end_is_found() {
        assert_eq!(found(&all(PENDING).replacen(PENDING, "`cycles`", 1)).len(), 1);
    }

    #[test]
    fn evidence_must_exist() {
        let with = |end: &str| found(&all(PENDING).replacen(PENDING, end, 1)).len();
        assert_eq!(with("`test: linerate_ring::spsc::tests::wraps`"), 0);
        assert_eq!(with("`test: linerate_tests::netns::ping_crosses`, `bench: spsc`"), 0);
        assert_eq!(with("`test: linerate_ring::spsc::tests::idle`"), 1);
        assert_eq!(with("`test: linerate_ring::spsc::tests::slow`"), 1, "it is ignored");
        assert_eq!(with("`test: linerate_ring::spsc::other::wraps`"), 1);
        assert_eq!(with("`test: linerate_ring::tests::wraps`"), 1);
        assert_eq!(with("`test: linerate_tests::netns::gone` [pending]"), 1);
        assert_eq!(with("`bench: gone`, `test: linerate_tests::netns::ping_crosses`"), 1);
        assert_eq!(with("`lab: pool`"), 1);
        assert_eq!(with("`guest: irqs`"), 1);
        assert_eq!(with("`guest: veth`"), 0);
        assert_eq!(with("`guest: vet`"), 1);
        assert_eq!(with("`guest: batch` [pending]"), 0);
        for no_table in NO_TABLES {
            assert_eq!(with(&format!("`guest: {no_table}` [pending]")), 1, "{no_table}");
        }
    }

    #[test]
    fn an_experiment_proves_a_row_only_if_a_run_is_kept_or_reported() {
        let with = |end: &str| found(&all(PENDING).replacen(PENDING, end, 1));
        assert_eq!(with("`lab: kept`, `lab: told`"), [""; 0]);
        assert_eq!(with("`lab: tol` [pending]"), [""; 0], "a part is missing, perhaps the run");
        let unrun = with("`lab: tol`, `lab: kept`");
        let said =
            ["SPECIFICATION.md:1: S0.1: `lab: tol` has no run: ", "`linerate lab run tol` in"];
        assert!(unrun.len() == 1 && said.iter().all(|part| unrun[0].contains(part)), "{unrun:?}");
    }

    #[test]
    fn a_guest_s_table_proves_a_row_only_if_a_run_is_reported() {
        let with = |end: &str| found(&all(PENDING).replacen(PENDING, end, 1));
        assert_eq!(with("`guest: shape`, `guest: veth`"), [""; 0]);
        let unrun = with("`guest: batch`, `guest: shape`");
        let said = "`guest: batch` has no run: report `cargo xtask qemu batch` in docs/qemu.md, or";
        assert!(unrun.len() == 1 && unrun[0].contains(said), "{unrun:?}");
        // An indented block is code, too.
        let unrun = with("`guest: zerocopy`");
        let said = "`guest: zerocopy` has no run: report ";
        assert!(unrun.len() == 1 && unrun[0].contains(said), "{unrun:?}");
    }

    #[test]
    fn the_table_of_cache_lines_is_reported_on_their_page() {
        let of = |qemu: &str, lines: &str| {
            let script = ("xtask/src/qemu/bounce.sh", "");
            unrun(&Tree::of(&[script, (QEMU, qemu), (LINES, lines)]), "S0.1", "guest: bounce")
        };
        let said = "`cargo xtask qemu bounce --runs 5`: 59.9 %\n";
        assert_eq!(of("", said), None);
        let why = of(said, "    cargo xtask qemu bounce\n").expect("no report");
        assert!(why.contains("report `cargo xtask qemu bounce` in docs/lines.md, or"), "{why}");
    }
}
