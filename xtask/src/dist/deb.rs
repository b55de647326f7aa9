//! The Debian package, with its files besides the programs: man pages, completions, the systemd
//! unit.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::binaries::{NATIVE, PROGRAMS, absent};
use super::{Outcome, Place, is_here, notices};
use crate::cargo;

const UNIT: &str = "linerate@.service";
/// The highest exposure that `systemd-analyze security` may find, of 100.
const EXPOSURE: &str = "30";

/// Writes the man pages and completions at their paths in the package.
pub fn pages(place: &Place) -> Result<Outcome> {
    let folder = place.built(NATIVE).join("pages");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let mut command = cargo::cargo(&place.root);
    command.args(["run", "--locked", "--quiet", "--package", "linerate-dist", "--"]);
    cargo::quiet(command.arg(&folder))?;
    let (mut pages, has_man) = (0, cargo::located("man").is_some());
    for entry in fs::read_dir(folder.join("man"))? {
        let path = entry?.path();
        pages += 1;
        // A page for which man(1) prints a warning is an error.
        if has_man {
            let mut man = Command::new("man");
            let output =
                man.args(["--warnings", "-l"]).arg(&path).env("MANWIDTH", "100").output()?;
            if !output.status.success() || !output.stderr.is_empty() {
                let said = String::from_utf8_lossy(&output.stderr);
                bail!("{}: man(1): {}: {}", path.display(), output.status, said.trim());
            }
        }
        cargo::quiet(Command::new("gzip").arg("-9n").arg(&path))?;
    }
    let script = folder.join("linerate.bash");
    cargo::quiet(Command::new("bash").arg("-n").arg(&script))?;
    let unread = if has_man { "" } else { " (not read: there is no man)" };
    Ok(Outcome::Done(format!("{pages} man pages{unread}, completions for bash, zsh and fish")))
}

/// Checks the unit with systemd, including its rating of the service's privileges.
pub fn unit(place: &Place) -> Result<Outcome> {
    if !is_here("systemd-analyze") {
        return Ok(Outcome::Skipped(
            "there is no systemd-analyze",
            "apt-get install systemd".into(),
        ));
    }
    let unit = fs::read_to_string(place.root.join("dist").join(UNIT))?;
    // systemd only needs a program that exists, so replace ours by one that is installed
    // everywhere.
    let copy = cargo::target_dir(&place.root).join(UNIT.replace('@', "@tried"));
    fs::write(&copy, unit.replace("/usr/bin/linerate", "/bin/true"))?;
    let output =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let own: Vec<&str> = said.lines().filter(|line| line.contains("linerate@")).collect();
    if !own.is_empty() {
        bail!("{}", own.join("; "));
    }
    let mut judge = Command::new("systemd-analyze");
    judge.args(["security", "--no-pager", "--offline=yes", "--threshold", EXPOSURE]).arg(&copy);
    let said = cargo::quiet(&mut judge)?;
    let verdict = said
        .lines()
        .rev()
        .find_map(|line| Some(line.split_once("level for ")?.1))
        .and_then(|line| line.split_whitespace().nth(1));
    let exposure = verdict.context("no verdict")?;
    Ok(Outcome::Done(format!("verified; its exposure is {exposure} of 10")))
}

/// Builds the package, and compares its contents with the expected ones.
pub fn package(place: &Place) -> Result<Outcome> {
    if !is_here("cargo-deb") {
        return Ok(Outcome::Skipped(
            "there is no cargo-deb",
            "cargo install --locked cargo-deb".into(),
        ));
    }
    let built = place.built(NATIVE);
    let written = ["pages/man/linerate.1.gz", notices::PATH];
    for needed in PROGRAMS.into_iter().chain(written) {
        if !built.join(needed).is_file() {
            if let Some(Outcome::Skipped(_, fix)) = absent(NATIVE) {
                return Ok(Outcome::Skipped("the static programs were not built", fix));
            }
            bail!("{needed} is not built: run the steps static, pages and notices before");
        }
    }
    let mut command = cargo::cargo(&place.root);
    command.args(["deb", "--locked", "--no-build", "--no-strip", "--target", NATIVE]);
    command.args(["--package", "linerate-dist", "--output"]).arg(&place.out);
    let made = cargo::quiet(&mut command)?;
    let path = made.lines().last().context("cargo-deb names no file")?.trim();
    let listed = cargo::quiet(Command::new("dpkg-deb").args(["--contents", path]))?;
    refuse_incomplete(path, &listed)?;
    let kib = fs::metadata(path)?.len() / 1024;
    Ok(Outcome::Done(format!(
        "{kib} KiB, {} files",
        listed.lines().filter(|line| line.starts_with('-')).count()
    )))
}

/// Fails if the list of a package's files lacks one that is wanted.
fn refuse_incomplete(path: &str, listed: &str) -> Result<()> {
    let missing: Vec<&str> = WANTED.into_iter().filter(|file| !listed.contains(file)).collect();
    if !missing.is_empty() {
        bail!("{path} lacks {}", missing.concat().trim_end().replace('\n', ", "));
    }
    Ok(())
}

const WANTED: [&str; 8] = [
    "./usr/bin/linerate\n",
    "./usr/bin/linerate-lab\n",
    "./usr/lib/systemd/system/linerate@.service\n",
    "./usr/share/man/man1/linerate-forward.1.gz\n",
    "./usr/share/bash-completion/completions/linerate\n",
    "./usr/share/doc/linerate/THIRD-PARTY\n",
    "./usr/share/doc/linerate/copyright\n",
    "./usr/share/doc/linerate/examples/example.conf\n",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_that_lacks_a_file_is_refused_with_its_name() {
        let whole =
            WANTED.map(|file| format!("-rw-r--r-- root/root 9 2026-11-29 12:00 {file}")).concat();
        assert!(refuse_incomplete("x.deb", &whole).is_ok());
        let listed = whole.replace("copyright", "copyright.gz").replace("linerate-lab", "lab");
        assert_eq!(
            refuse_incomplete("x.deb", &listed).unwrap_err().to_string(),
            "x.deb lacks ./usr/bin/linerate-lab, ./usr/share/doc/linerate/copyright"
        );
    }
}
