//! Remedies for findings, and the extent to which doctor has tested each.
//!
//! A command is tested before it is shown. A command of `ip` or `ethtool` about one interface runs
//! on a veth of the same name in a network namespace of its own, where it can change nothing. If it
//! fails there, it is shown as not verified: it may need a property that a veth lacks. For any
//! other command, and if such a namespace cannot be made, doctor checks that the program is
//! installed. A command with a placeholder, as IFACE, cannot be tested, nor can a command with
//! further words after it. A command in which a shell would read a character as more than itself is
//! text only: the name of an interface, as `a;reboot`, may have such characters.

use std::env;
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};

use linerate_sys::netns::Netns;
use linerate_sys::text::harmless;

#[cfg(feature = "json")]
use serde::Serialize;

/// Folders that the shell of root searches in addition to the `PATH` of this process.
const ROOT_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// Words that the user must replace before a command can run.
const PLACEHOLDERS: [&str; 8] =
    ["IFACE", "NAME", "ADDRESS", "PID", "PROGRAM", "USER", "GATEWAY", "N"];
/// Words that stand for the command of the user's program. The command `linerate` replaces them by
/// its own command, so they are no placeholder.
const OWN_COMMAND: &str = "PROGRAM …";
/// Characters that a shell reads as more than themselves, unless they are quoted.
const SHELL_SYNTAX: &str = ";&|<>()$`\\\"*?[]{}!#~";

/// A remedy for a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(Serialize))]
#[non_exhaustive]
pub struct Fix {
    /// The remedy as text, including the command.
    pub text: String,
    /// The command at the end of `text`, ready to paste, if there is one without placeholders and
    /// without characters that a shell would read as more than themselves. The words `PROGRAM …` in
    /// it stand for the command of the user's program.
    pub command: Option<String>,
    /// Extent to which the command was tested.
    pub proof: Proof,
}

/// Extent to which a command was tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "json", derive(Serialize), serde(rename_all = "lowercase"))]
pub enum Proof {
    /// The command ran successfully in a network namespace of its own.
    Ran,
    /// The command's program is installed; the command was not run.
    Found,
    /// The command was not tested, or it failed in the network namespace.
    Unverified,
}

impl Fix {
    /// Creates a fix from `text`, with the proof of its command; `None` if the text is empty.
    pub(super) fn of(text: &str) -> Option<Fix> {
        if text.is_empty() {
            return None;
        }
        let text = harmless(text).into_owned();
        let command = command_in(&text).filter(|command| is_complete(command)).map(str::to_owned);
        let proof = command.as_deref().map_or(Proof::Unverified, proof);
        Some(Fix { text, command, proof })
    }
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the command for a full trial of `port`, which others can notice.
pub(crate) fn full_trial(port: &str) -> String {
    let exe = env::current_exe().ok();
    let exe = exe.filter(|exe| exe.file_name().is_some_and(|name| name == "linerate"));
    let exe = exe.map_or("linerate".into(), |exe| exe.to_string_lossy().into_owned());
    format!("{exe} doctor --try {port}")
}

/// Returns the command that is at the end of `text`, if there is one.
fn command_in(text: &str) -> Option<&str> {
    let parts = text.match_indices(": ").map(|(at, _)| &text[at + 2..]);
    std::iter::once(text).chain(parts).find(|part| part.split(' ').next().is_some_and(is_here))
}

/// Returns true if no word of the command is a placeholder, nothing is left out, no words follow
/// the command, and a shell reads each character as itself.
fn is_complete(command: &str) -> bool {
    let others = command.replace(OWN_COMMAND, "");
    let has_more = others.contains('…') || has_shell_syntax(&others);
    !has_more && !others.split_whitespace().any(|word| PLACEHOLDERS.contains(&word))
}

/// Returns true if a shell reads a character outside of single quotes as more than itself, or if a
/// quote has no end.
fn has_shell_syntax(command: &str) -> bool {
    let (mut chars, mut is_quoted) = (command.chars(), false);
    while let Some(c) = chars.next() {
        match c {
            '\'' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            // An escaped quote, as between the two parts of a quoted path that has a quote.
            '\\' if chars.next() == Some('\'') => {}
            c if SHELL_SYNTAX.contains(c) => return true,
            _ => {}
        }
    }
    is_quoted
}

fn proof(command: &str) -> Proof {
    let words: Vec<&str> = command.split_whitespace().collect();
    let interface = match words[..] {
        ["ip", "link", "set", "dev", name, ..]
        | ["ip", "link", "set", name, ..]
        | ["ethtool", _, name, ..] => Some(name),
        _ => None,
    };
    match interface.and_then(|name| runs(&words, name)) {
        Some(true) => Proof::Ran,
        Some(false) => Proof::Unverified,
        None => Proof::Found,
    }
}

/// Runs the command on a veth called `name` and returns true if it succeeds; `None` if the command
/// cannot be tested.
fn runs(words: &[&str], name: &str) -> Option<bool> {
    let (program, args) = words.split_first()?;
    let netns = Netns::new().ok()?;
    netns.quiet().ok()?;
    netns.ip(&format!("link add {name} type veth")).ok()?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    netns.run(move || command.status()).ok()?.ok().map(|status| status.success())
}

/// Returns true if a program of that name is installed.
#[must_use]
pub fn is_here(program: &str) -> bool {
    let is_file = |path: &Path| path.metadata().is_ok_and(|found| found.is_file());
    if program.is_empty() || program.contains('/') {
        return program.starts_with('/') && is_file(Path::new(program));
    }
    let own = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&own)
        .chain(env::split_paths(ROOT_PATH))
        .any(|folder| is_file(&folder.join(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_or_not() {
        assert!(is_here("sh") && is_here("/bin/sh"));
        assert!(!is_here("no-such-program") && !is_here("") && !is_here("./sh") && !is_here("/"));
    }

    #[test]
    fn a_command_is_found_in_its_sentence() {
        assert_eq!(command_in("sh -c true"), Some("sh -c true"));
        assert_eq!(command_in("end it; if nobody does: sh -c true"), Some("sh -c true"));
        assert_eq!(command_in("ask for less"), None);
        assert_eq!(Fix::of(""), None);
        assert_eq!(Fix::of("ask for less").unwrap().proof, Proof::Unverified);
        let fix = Fix::of("try: sh -c true").unwrap();
        assert_eq!((fix.proof, fix.command.as_deref()), (Proof::Found, Some("sh -c true")));
    }

    #[test]
    fn a_command_with_a_placeholder_is_neither_run_nor_ready_to_paste() {
        for text in [
            "ip link set IFACE up",
            "there: ethtool -K IFACE tx off",
            "sh -c NAME",
            "sh -c USER",
            "sh -c PROGRAM",
            "sh -c GATEWAY",
            "ethtool -X eth7 equal N",
            "sh -c …",
            "sh -c true; sh shows more",
        ] {
            let fix = Fix::of(text).unwrap();
            assert_eq!((fix.proof, fix.command), (Proof::Unverified, None), "{text}");
        }
        let own = Fix::of("there: sh -c PROGRAM …").unwrap();
        assert_eq!((own.proof, own.command.as_deref()), (Proof::Found, Some("sh -c PROGRAM …")));
    }

    #[test]
    fn a_command_in_which_a_shell_would_find_another_one_is_not_ready_to_paste() {
        for name in ["a;reboot", "a&reboot", "a|sh", "$(reboot)", "`reboot`", "a>b", "a'b", "a\\"] {
            let fix = Fix::of(&format!("bring it up: ip link set {name} up")).unwrap();
            assert!(fix.text.contains("ip link set"), "{fix}");
            assert_eq!((fix.proof, fix.command), (Proof::Unverified, None), "{name}");
        }
        let quoted = r"sh '/srv/a b;c/it'\''s'";
        assert_eq!(Fix::of(quoted).unwrap().command.as_deref(), Some(quoted));
        assert_eq!(Fix::of(r"sh '/srv/a'\''s; reboot").unwrap().command.as_deref(), None);
    }

    #[test]
    fn a_command_about_an_interface_is_run_where_it_changes_nothing() {
        let shown = Netns::new().and_then(|netns| netns.ip("link"));
        if linerate_testing::unless(shown, linerate_sys::netns::is_refused).is_none() {
            return;
        }
        assert_eq!(Fix::of("ip link set eth7 up").unwrap().proof, Proof::Ran);
        assert_eq!(Fix::of("bring it up: ip link set eth7 up").unwrap().proof, Proof::Ran);
        assert_eq!(Fix::of("ip link set dev eth7 up").unwrap().proof, Proof::Ran);
        let failed = Fix::of("ip link set eth7 sideways").unwrap();
        assert_eq!(failed.proof, Proof::Unverified);
        assert_eq!(failed.command.as_deref(), Some("ip link set eth7 sideways"));
        assert!(!Path::new("/sys/class/net/eth7").exists());
    }
}
