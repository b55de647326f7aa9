//! Debian's kernel packages through apt, with lists and settings separate from the system's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Time limit of one apt command, in the syntax of timeout(1).
const LIMIT: &str = "180s";
/// The release whose security archive has 6.1 and whose backports have 6.12.
const RELEASE: &str = "bookworm";
/// Debian's keys that sign its archives.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Downloads the newest package of the series that `depending` depends on and unpacks it into `to`.
///
/// apt compares what it downloads with the archive's signed checksums.
pub fn unpack(cache: &Path, depending: &str, series: &str, to: &Path) -> Result<()> {
    let apt = Apt::new(cache)?;
    // By default, apt treats an archive that it cannot reach as a warning; this setting makes it an
    // error.
    said(apt.run("apt-get").args(["-o", "APT::Update::Error-Mode=any", "update"]))?;
    let known = said(apt.run("apt-cache").args(["show", depending]))?;
    let package = dependency(&known, series)
        .with_context(|| format!("the archives have no {depending} of Linux {series}"))?;
    let deb = to.join("deb");
    fs::create_dir(&deb)?;
    said(apt.run("apt-get").args(["--quiet", "download", &package]).current_dir(&deb))?;
    let file = fs::read_dir(&deb)?.next().context("apt downloaded nothing")??.path();
    said(Command::new("dpkg").arg("-x").args([file.as_path(), to]))?;
    fs::remove_dir_all(&deb)?;
    Ok(())
}

/// An apt with lists, cache and settings of its own.
struct Apt {
    state: PathBuf,
}

impl Apt {
    fn new(cache: &Path) -> Result<Apt> {
        let state = std::path::absolute(cache)?.join("apt");
        for folder in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(state.join(folder))?;
        }
        let format = ["indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"];
        let known = said(Command::new("apt-get").args(format))?;
        let sources = sources(&known).context("apt knows no archive of Debian: apt-get update")?;
        fs::write(state.join("sources.list"), sources)?;
        Ok(Apt { state })
    }

    fn run(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args([LIMIT, program]).stdin(Stdio::null());
        for (option, value) in [
            ("Dir::Etc::SourceList", self.state.join("sources.list")),
            ("Dir::Etc::SourceParts", "/dev/null".into()),
            ("Dir::State::Lists", self.state.join("lists")),
            ("Dir::Cache", self.state.clone()),
            // As root, apt would switch to a user who cannot write in this folder.
            ("APT::Sandbox::User", "root".into()),
        ] {
            command.arg("-o").arg(format!("{option}={}", value.display()));
        }
        command
    }
}

/// Runs `command` and returns its stdout; the error is the first error message that the command
/// printed.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let error = said.lines().find(|line| line.starts_with("E: ")).unwrap_or("it said nothing");
        bail!("{error} ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the sources of both series, from the archives `URI RELEASE` that this machine uses.
fn sources(known: &str) -> Option<String> {
    let rows: Vec<(&str, &str)> = known.lines().filter_map(|line| line.split_once(' ')).collect();
    let uri = |wanted: &str| rows.iter().find(|(_, release)| *release == wanted).map(|row| row.0);
    let here = rows.iter().find_map(|(_, release)| release.strip_suffix("-security"))?;
    let (main, security) = (uri(here)?, uri(&format!("{here}-security"))?);
    let row =
        |uri: &str, suite: &str| format!("deb [signed-by={KEYS}] {uri} {RELEASE}-{suite} main\n");
    Some(row(main, "backports") + &row(security, "security"))
}

/// Returns the package of `series` on which one of the packages in the text of `apt-cache show`
/// depends.
fn dependency(shown: &str, series: &str) -> Option<String> {
    let field = |stanza: &str, key: &str| {
        stanza.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()))
    };
    let of_series = |stanza: &&str| {
        let version = field(stanza, "Version:").unwrap_or_default();
        version.strip_prefix(series).is_some_and(|rest| rest.starts_with('.'))
    };
    // apt-cache prints the newest version first.
    let stanza = shown.split("\n\n").find(of_series)?;
    let depends = field(stanza, "Depends:")?;
    depends.split([' ', ',']).find(|name| name.starts_with("linux-image-")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_picks_among_the_versions_of_a_package() {
        let shown = "Package: linux-image-amd64\nVersion: 6.12.95-1~bpo12+1\nDepends: \
                     linux-image-6.12.95+deb12-amd64 (= 6.12.95-1~bpo12+1)\n\n\
                     Package: linux-image-amd64\nVersion: 6.1.192-2\nDepends: \
                     linux-image-6.1.0-56-amd64 (= 6.1.192-2)\n";
        let found = |series| dependency(shown, series);
        assert_eq!(found("6.1").as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(found("6.12").as_deref(), Some("linux-image-6.12.95+deb12-amd64"));
        assert_eq!(found("6.6"), None);
    }

    #[test]
    fn the_machines_own_archives_are_asked_for_the_release() {
        let known = "http://a/debian/ trixie\nhttp://a/debian/ trixie-updates\n\
                     http://b/security/ trixie-security\n";
        let keys = format!("deb [signed-by={KEYS}]");
        let expected = format!(
            "{keys} http://a/debian/ bookworm-backports main\n\
             {keys} http://b/security/ bookworm-security main\n"
        );
        assert_eq!(sources(known), Some(expected));
        assert_eq!(sources("http://c/ jammy\n"), None);
        assert_eq!(sources(""), None);
    }
}
