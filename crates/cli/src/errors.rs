//! Failures of a command, and exit statuses.

use linerate::Kind;
use linerate_ctl::ErrorReport;

/// Exit status: a run failed after its start, because a port failed or a worker ended early.
pub const RUNTIME: u8 = 1;
/// Exit status: the request is invalid.
pub const USAGE: u8 = 2;
/// Exit status: a check failed. A sink found packets lost, out of order, duplicated or damaged, or
/// doctor found something missing.
pub const CHECK: u8 = 3;
/// The error code for a failed verification.
pub const UNVERIFIED: &str = "E-VERIFY";
/// Exit status: the machine was too noisy for a result.
pub const INCONCLUSIVE: u8 = 4;
/// Exit status: this machine, kernel or privilege does not support the request.
pub const UNSUPPORTED: u8 = 5;
/// Exit status: the ledger does not balance.
pub const UNBALANCED: u8 = 6;
/// Base of the exit status after a signal; the signal's number is added.
pub const SIGNAL: u8 = 128;

/// The failure of a command that has no result.
#[derive(Debug)]
pub struct Failure {
    /// The failure in its parts: what, why and what to do.
    pub error: ErrorReport,
    /// The exit status.
    pub exit: u8,
}

impl Failure {
    /// Returns a failure with a code that the library does not define.
    pub fn new(exit: u8, code: &str, what: &str, why: String, fix: &str) -> Failure {
        let error = ErrorReport { code: code.into(), what: what.into(), why, fix: fix.into() };
        Failure { error, exit }
    }
}

impl From<linerate::Error> for Failure {
    fn from(e: linerate::Error) -> Failure {
        let exit = match e.kind() {
            Kind::Usage => USAGE,
            Kind::Unsupported => UNSUPPORTED,
            _ => RUNTIME,
        };
        let mut error = ErrorReport::from(&e);
        error.fix = to_type(&error.fix);
        Failure { error, exit }
    }
}

/// Returns the arguments of this process; bytes that are not UTF-8 are replaced.
pub(crate) fn words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Replaces `PROGRAM …` in a remedy of the library by this process's command.
pub fn to_type(fix: &str) -> String {
    fix.replace("PROGRAM …", &again(&words()))
}

/// Returns the command with these arguments in shell syntax, or only its name if an argument needs
/// quotes or has a secret.
fn again(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":,=./_-+@%".contains(c);
    let is_shown =
        |word: &String| !word.is_empty() && word.chars().all(is_plain) && !has_secret(word);
    match words.iter().all(is_shown) {
        true => words.iter().fold("linerate".to_owned(), |text, word| text + " " + word),
        false => "linerate …".into(),
    }
}

/// Returns true if an argument has, or may have, the secret of a memif port, even if a mistake in
/// it makes it no port text.
pub(crate) fn has_secret(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    // `secret-file=` has only the path of a file.
    let has = |text: &str| text.split("secret").skip(1).any(|rest| !rest.starts_with("-file"));
    let sorted = |key: &str| {
        let mut letters: Vec<u8> = key.bytes().collect();
        letters.sort_unstable();
        letters
    };
    // Two letters are often exchanged.
    let is_like =
        |option: &str| sorted(option.split('=').next().unwrap_or_default()) == sorted("secret");
    has(&lower) || lower.split(',').skip(1).any(is_like)
}

/// Formats the parts of a failure, each on its own line.
pub fn text(error: &ErrorReport) -> String {
    let mut text = format!("error[{}]: {}\n  why: {}\n", error.code, error.what, error.why);
    if !error.fix.is_empty() {
        text += &format!("  fix: {}\n", error.fix);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate::{Code, Error};

    #[test]
    fn each_kind_of_error_has_its_exit_status() {
        let exit = |code| Failure::from(Error::new(code, "a", "b")).exit;
        assert_eq!(exit(Code::PortSyntax), USAGE);
        assert_eq!(exit(Code::PoolTooSmall), USAGE);
        assert_eq!(exit(Code::Permission), UNSUPPORTED);
        assert_eq!(exit(Code::NoDevice), RUNTIME);
    }

    #[test]
    fn a_command_is_repeated_as_a_shell_takes_it() {
        let again =
            |words: &[&str]| again(&words.iter().map(|word| (*word).into()).collect::<Vec<_>>());
        let typed = again(&["forward", "xdp:e0,udp=7", "--for", "10s"]);
        assert_eq!(typed, "linerate forward xdp:e0,udp=7 --for 10s");
        let secrets = ["memif:@x,secret=s", "secret:s", "memif:@x,Secret=s", "memif:@x,secert=s"];
        for odd in ["a b", "$(x)", "[::1]:7", "", "a;b", "~"].into_iter().chain(secrets) {
            assert_eq!(again(&["gen", odd]), "linerate …", "{odd}");
        }
        let typed = again(&["gen", "memif:@x,secret-file=/run/x"]);
        assert_eq!(typed, "linerate gen memif:@x,secret-file=/run/x");
    }

    #[test]
    fn a_failure_is_told_in_lines() {
        let e = Error::new(Code::NoDevice, "cannot open veth7", "no such device").fix("ip link");
        let lines = "error[E-NODEV]: cannot open veth7\n  why: no such device\n  fix: ip link\n";
        assert_eq!(text(&ErrorReport::from(&e)), lines);
    }
}
