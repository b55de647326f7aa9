//! Failures and exit statuses.

use linerate::Kind;
use linerate_ctl::ErrorReport;

/// Failure of a run that could start: a port that died, a worker that ended early.
pub const RUNTIME: u8 = 1;
/// The request is invalid.
pub const USAGE: u8 = 2;
/// A check failed: a sink found packets lost, out of order, duplicated or damaged; doctor found
/// something missing.
pub const CHECK: u8 = 3;
/// The error code for a failed verification.
pub const UNVERIFIED: &str = "E-VERIFY";
/// The machine was too noisy for a result.
pub const INCONCLUSIVE: u8 = 4;
/// This machine, kernel or privilege cannot do it.
pub const UNSUPPORTED: u8 = 5;
/// The ledger does not balance.
pub const UNBALANCED: u8 = 6;
/// Base of the exit status after a signal; the signal's number is added.
pub const SIGNAL: u8 = 128;

/// The failure of a command without a result.
#[derive(Debug)]
pub struct Failure {
    /// The failure in its parts: what, why and what to do.
    pub error: ErrorReport,
    /// The exit status.
    pub exit: u8,
}

impl Failure {
    /// Returns a failure whose code is not one of the library's.
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
        Failure { error: ErrorReport::from(&e), exit }
    }
}

/// Formats the parts of a failure, each on a line of its own.
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
    fn a_failure_is_told_in_lines() {
        let e = Error::new(Code::NoDevice, "cannot open veth7", "no such device").fix("ip link");
        let lines = "error[E-NODEV]: cannot open veth7\n  why: no such device\n  fix: ip link\n";
        assert_eq!(text(&ErrorReport::from(&e)), lines);
    }
}
