//! Findings of an examination, each with its severity, reason and remedy.

use linerate_skb::Error;
use linerate_sys::text::harmless;

#[cfg(feature = "json")]
use serde::Serialize;

use super::fix::Fix;
use crate::obtained::Obtained;

/// Severity of a finding, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "json", derive(Serialize), serde(rename_all = "lowercase"))]
pub enum Level {
    /// The property is as it should be.
    Ok,
    /// The port works, but slower or with fewer features than possible; or the property could not
    /// be tested.
    Warn,
    /// The port does not work.
    Miss,
}

/// One examined property.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// Severity of the finding.
    pub level: Level,
    /// The object that was examined, and its state.
    pub what: String,
    /// Reason why the level is not `Ok`, in the words of the kernel or program that refused.
    pub why: Option<String>,
    /// Remedy; `None` if none is known.
    pub fix: Option<Fix>,
    /// Stable identifier of the refusal, for scripts: `E-PERM`.
    pub code: Option<&'static str>,
}

/// Returns the worst of `findings`; [`Level::Ok`] if there are none.
#[must_use]
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|f| f.level).max().unwrap_or(Level::Ok)
}

impl Finding {
    /// Makes a finding from `what`, the examined object and its state, without a reason or a
    /// remedy.
    #[must_use]
    pub fn new(level: Level, what: impl Into<String>) -> Finding {
        Finding { level, what: plain(what), why: None, fix: None, code: None }
    }

    /// Makes a finding from the error `e`, with its code, its reason and its remedy.
    #[must_use]
    pub fn of(level: Level, e: &Error) -> Finding {
        let mut finding = Finding::new(level, e.what.as_str());
        finding.code = Some(e.code.as_str());
        finding.why(e.why.as_str()).fix(&e.fix);
        finding
    }

    /// Adds the reason why the level is not `Ok`.
    pub fn why(&mut self, why: impl Into<String>) -> &mut Finding {
        self.why = Some(plain(why));
        self
    }

    /// Adds the remedy: a command or a setting.
    pub fn fix(&mut self, text: impl AsRef<str>) -> &mut Finding {
        self.fix = Fix::of(text.as_ref());
        self
    }
}

/// Escapes `text`, which may contain another user's bytes, so that a terminal does not execute
/// control sequences in it.
fn plain(text: impl Into<String>) -> String {
    harmless(&text.into()).into_owned()
}

/// The findings of an examination, in the order in which they were made.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Adds a finding that a property is as it should be.
    pub fn ok(&mut self, what: impl Into<String>) -> &mut Finding {
        self.add(Finding::new(Level::Ok, what))
    }

    /// Adds a finding that something works but could be better, or was not tested.
    pub fn warn(&mut self, what: impl Into<String>) -> &mut Finding {
        self.add(Finding::new(Level::Warn, what))
    }

    /// Adds the error of a failed operation.
    pub fn miss(&mut self, e: &Error) -> &mut Finding {
        self.add(Finding::of(Level::Miss, e))
    }

    /// Adds a finding that something does not work, for a cause that is no refused operation.
    pub fn fail(&mut self, what: impl Into<String>) -> &mut Finding {
        self.add(Finding::new(Level::Miss, what))
    }

    /// Adds, as a warning, the error of an operation that is not required.
    pub fn lack(&mut self, e: &Error) -> &mut Finding {
        self.add(Finding::of(Level::Warn, e))
    }

    /// Adds a finding for each property that an opened port has, and for each that it lacks.
    pub fn opened(&mut self, obtained: Obtained) {
        self.ok(format!("opens: {} {}", obtained.device, obtained.mode));
        for refused in &obtained.refused {
            let (what, why) = refused.split_once(": ").unwrap_or((refused, ""));
            let finding = self.warn(format!("not obtained: {what}"));
            if let Some((why, fix)) = commanded(why) {
                finding.why(why).fix(fix);
            } else if !why.is_empty() {
                finding.why(why);
            }
        }
    }

    /// Returns true if there are no findings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the findings.
    #[must_use]
    pub fn into_vec(self) -> Vec<Finding> {
        self.0
    }

    fn add(&mut self, finding: Finding) -> &mut Finding {
        let at = self.0.len();
        self.0.push(finding);
        &mut self.0[at]
    }
}

/// Splits a reason into its text and the command at its end, if it has one.
fn commanded(why: &str) -> Option<(&str, &str)> {
    const COMMANDS: [&str; 3] = ["ethtool ", "ip ", "sysctl "];
    let (why, command) = why.rsplit_once(": ")?;
    COMMANDS.iter().any(|c| command.starts_with(c)).then_some((why, command))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_skb::Code;

    #[test]
    fn levels_rise_from_well_to_missing() {
        assert!(Level::Ok < Level::Warn && Level::Warn < Level::Miss);
        assert_eq!(worst(&[]), Level::Ok);
        let mut found = Findings::default();
        found.ok("a");
        found.warn("b");
        assert_eq!(worst(&found.into_vec()), Level::Warn);
    }

    #[test]
    fn an_error_is_told_in_its_parts() {
        let mut found = Findings::default();
        found.miss(&Error::new(Code::Busy, "cannot open x", "another process has it"));
        let f = &found.into_vec()[0];
        assert_eq!(
            (f.level, f.what.as_str(), f.code),
            (Level::Miss, "cannot open x", Some("E-BUSY"))
        );
        assert_eq!((f.why.as_deref(), &f.fix), (Some("another process has it"), &None));
    }

    #[test]
    fn each_missing_mode_is_a_warning_with_its_command() {
        let mut obtained = Obtained::new("v0", "AF_XDP generic copy", 1518);
        obtained.refused = vec![
            "native: the driver has no XDP".into(),
            "checksums: elsewhere; cheaper, at the other end: ethtool -K v7 tx off".into(),
            "odd".into(),
        ];
        let mut found = Findings::default();
        found.opened(obtained);
        let found = found.into_vec();
        assert_eq!(found[0].what, "opens: v0 AF_XDP generic copy");
        assert_eq!(found[1].what, "not obtained: native");
        assert_eq!(found[1].why.as_deref(), Some("the driver has no XDP"));
        assert_eq!(found[2].why.as_deref(), Some("elsewhere; cheaper, at the other end"));
        assert_eq!(found[2].fix.as_ref().unwrap().text, "ethtool -K v7 tx off");
        assert_eq!((found[3].what.as_str(), &found[3].why), ("not obtained: odd", &None));
    }
}
