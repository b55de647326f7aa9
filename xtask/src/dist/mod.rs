//! Campaign `dist`: the files for distribution, each tested as far as this machine can.
//!
//! ```text
//! target/dist/  linerate-VERSION-TARGET, linerate-lab-VERSION-TARGET   static programs
//!               linerate_VERSION_amd64.deb                             the same, man pages, completions, a unit
//!               linerate-VERSION.cdx.json                              the packages that it is compiled from (CycloneDX)
//!               SHA256SUMS                                             of all of these
//! ```
//!
//! A step that this machine cannot do is skipped with the reason; one that fails, fails the
//! campaign, after the others.

mod binaries;
mod deb;
mod notices;
mod published;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::steps::Done;

/// One step: its name, a description, and its function.
type Step = (&'static str, &'static str, fn(&Place) -> Result<Outcome>);

const STEPS: [Step; 10] = [
    (
        "static",
        "x86-64 programs without a C library, and the first command of one",
        binaries::native,
    ),
    ("aarch64", "the same for aarch64, tried in QEMU's user mode", binaries::foreign),
    (
        "units",
        "unit tests of wire, ring and skb as aarch64 code, in QEMU's user mode",
        binaries::tests,
    ),
    (
        "pages",
        "man pages and completions of bash, zsh and fish, from the commands' definitions",
        deb::pages,
    ),
    (
        "notices",
        "the foreign packages in the programs, with the texts of their licences",
        notices::write,
    ),
    ("unit", "the systemd unit, as systemd-analyze judges it", deb::unit),
    ("deb", "the Debian package (cargo-deb), and what is in it", deb::package),
    (
        "sbom",
        "the packages that the x86-64 programs are compiled from, with licences and checksums",
        sbom::write,
    ),
    (
        "package",
        "each crate to be published builds from what cargo would upload",
        published::package,
    ),
    (
        "semver",
        "the crates' interfaces keep the version's promise (cargo-semver-checks)",
        published::semver,
    ),
];

/// Result of a step that did not fail.
pub enum Outcome {
    Done(String),
    /// The reason for skipping the step, and a remedy.
    Skipped(&'static str, String),
}

/// The source tree, and the folder and names of the files for distribution.
pub struct Place {
    root: PathBuf,
    out: PathBuf,
    version: String,
    baseline: Option<String>,
}

/// Runs every step, or those of `--only`, and prints a table of them.
pub fn run(root: &Path, args: &[String]) -> Result<Done> {
    let (mut only, mut baseline) = (Vec::new(), None);
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--only", Some(names)) => only.extend(names.split(',').map(str::to_owned)),
            ("--baseline-rev", Some(commit)) => baseline = Some(commit.clone()),
            ("--help" | "-h", _) => {
                print!("{}", help());
                return Ok(Done::default());
            }
            (option @ ("--only" | "--baseline-rev"), None) => {
                bail!("{option} lacks its value\n\n{}", help())
            }
            (word, _) => bail!("there is no option {word}\n\n{}", help()),
        }
    }
    if let Some(name) = only.iter().find(|name| STEPS.iter().all(|(step, ..)| step != name)) {
        bail!("there is no step {name}\n\n{}", help());
    }
    let out = cargo::target_dir(root).join("dist");
    let place = Place { root: root.to_owned(), out, version: version(root)?, baseline };
    if only.is_empty() {
        place.remove_old()?;
    }
    fs::create_dir_all(&place.out)?;
    let mut table = Vec::new();
    for (name, about, act) in STEPS {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            eprintln!("{name:<9} {about} ...");
            table.push((name, act(&place)));
        }
    }
    let sums = place.checksums()?;
    eprintln!();
    for (name, outcome) in &table {
        eprintln!("{}", row(name, outcome));
    }
    refuse_failed(&table)?;
    Ok(Done::from(format!("{sums} files and their SHA256SUMS in {}", place.out.display())))
}

/// Fails if a step of the table has.
fn refuse_failed(table: &[(&str, Result<Outcome>)]) -> Result<()> {
    let failed = table.iter().filter(|(_, outcome)| outcome.is_err()).count();
    if failed > 0 {
        bail!("{failed} of {} steps failed", table.len());
    }
    Ok(())
}

fn help() -> String {
    let mut text =
        String::from("cargo xtask dist [--only STEP[,STEP]] [--baseline-rev COMMIT]\n\n");
    for (name, about, _) in STEPS {
        text += &format!("  {name:<9} {about}\n");
    }
    text + "\n--baseline-rev names the commit that `semver` compares with: the newest tag v* unless given.\n"
}

fn row(name: &str, outcome: &Result<Outcome>) -> String {
    match outcome {
        Ok(Outcome::Done(note)) => format!("{name:<9} done     {note}"),
        Ok(Outcome::Skipped(why, fix)) => format!("{name:<9} skipped  {why} ({fix})"),
        Err(error) => format!("{name:<9} FAILED   {error:#}"),
    }
}

/// Returns the version of all our crates.
fn version(root: &Path) -> Result<String> {
    let manifest: toml::Table = fs::read_to_string(root.join("Cargo.toml"))?.parse()?;
    let version = manifest["workspace"]["package"]["version"].as_str();
    Ok(version.context("the workspace has no version")?.to_owned())
}

impl Place {
    /// Returns the folder in which cargo builds for a target.
    fn built(&self, target: &str) -> PathBuf {
        cargo::target_dir(&self.root).join(target).join("release")
    }

    /// Removes the files of an earlier run: if a step fails or is skipped, no later step may pack
    /// or sum up an old file instead.
    fn remove_old(&self) -> Result<()> {
        if self.out.exists() {
            fs::remove_dir_all(&self.out)?;
        }
        let built = self.built(binaries::NATIVE);
        let pages = built.join("pages");
        if pages.exists() {
            fs::remove_dir_all(&pages)?;
        }
        for program in binaries::PROGRAMS.map(|name| built.join(name)) {
            if program.exists() {
                fs::remove_file(&program).with_context(|| program.display().to_string())?;
            }
        }
        Ok(())
    }

    /// Writes the checksums of all files, and returns their number.
    fn checksums(&self) -> Result<usize> {
        let mut names: Vec<String> = fs::read_dir(&self.out)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name != "SHA256SUMS")
            .collect();
        names.sort();
        if !names.is_empty() {
            let mut command = Command::new("sha256sum");
            let sums = cargo::quiet(command.arg("--").args(&names).current_dir(&self.out))?;
            fs::write(self.out.join("SHA256SUMS"), sums)?;
        }
        Ok(names.len())
    }
}

/// Returns true if a program can be started.
fn is_here(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_requests_are_refused_with_the_steps_there_are() {
        let refused = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            run(Path::new("/nowhere"), &args).err().unwrap().to_string()
        };
        for (args, why) in [
            (&["--only", "rpm"][..], "there is no step rpm"),
            (&["--only"], "--only lacks its value"),
            (&["--baseline"], "there is no option --baseline"),
        ] {
            let said = refused(args);
            assert!(said.contains(why) && said.contains("\n  deb "), "{said}");
        }
    }

    #[test]
    fn the_table_says_why_a_step_was_skipped_and_what_to_do() {
        let skipped =
            Ok(Outcome::Skipped("there is no cargo-deb", "cargo install cargo-deb".into()));
        assert_eq!(
            row("deb", &skipped),
            "deb       skipped  there is no cargo-deb (cargo install cargo-deb)"
        );
        assert_eq!(row("deb", &Ok(Outcome::Done("x".into()))), "deb       done     x");
        assert!(row("deb", &Err(anyhow::anyhow!("broke"))).contains("FAILED   broke"));
        let table = [("unit", skipped), ("deb", Err(anyhow::anyhow!("broke")))];
        assert!(refuse_failed(&table[..1]).is_ok());
        assert_eq!(refuse_failed(&table).unwrap_err().to_string(), "1 of 2 steps failed");
    }
}
