//! `linerate doctor`.

use clap::Parser;
use linerate::{Code, Registry};
use linerate_ctl::doctor::{self, Finding, Fix, Level, Proof, Trial, worst};
use linerate_ctl::json;

use crate::counters::Counters;
use crate::errors::{CHECK, Failure, USAGE};
use crate::screen::Screen;

/// Columns of a line, a command to paste apart.
const COLUMNS: usize = 80;
/// Column at which the text of a finding begins: `warn  `.
const INDENT: usize = 6;
/// Column at which a reason or a remedy begins: `      why: `.
const DEEP_INDENT: usize = INDENT + 5;

/// Check whether a port can be opened here and in which mode, with a remedy for each problem
///
/// It tries the real operations and undoes them: nothing is inferred where it can be tried. A port of
/// xdp is opened with a filter that takes no one's traffic. On hardware, whose driver may take the
/// link down for a moment, and on a TAP that exists already, that is done with --try only.
///
/// Without PORT it checks the machine, and opens ports in a network namespace of its own.
#[derive(Debug, Parser)]
#[command(after_long_help = EXAMPLES)]
pub struct Doctor {
    /// A port: driver:arg[,key=value]; a name alone is that of an interface, for xdp
    pub port: Option<String>,
    /// Open the port also where others could notice it
    #[arg(long = "try", requires = "port")]
    pub full: bool,
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  linerate doctor                               what this machine has
  linerate doctor eth0                          the same as xdp:eth0
  linerate doctor packet:eth0,udp=7777          is the port free, or whose is it
  linerate doctor xdp:eth0,udp=7777             what its driver gives for one flow
  linerate doctor --try xdp:eth0,write,mode=zerocopy   can it do without copies
  linerate doctor memif:/run/x.sock             does its server come to terms
  linerate doctor tap:t0 --json

A finding is ok, warn (it works, but slower or with less than there could be;
or it was not tried) or miss (it does not work), with the reason and what to
do. Commands to paste were tried in a network namespace of doctor's own, or
their program is there; else they are marked unverified.

Exit status: 0 nothing is missing, 2 wrong request, 3 something is missing.";

impl Doctor {
    /// Looks, and prints what was found; the exit status.
    ///
    /// # Errors
    /// A port text that makes no sense.
    pub fn run(&self, drivers: &Registry, screen: &Screen) -> Result<u8, Failure> {
        let port = self.port.as_deref().map(port_text);
        let findings = match &port {
            Some(port) => {
                drivers.parse(port)?;
                let trial = if self.full { Trial::Full } else { Trial::Careful };
                doctor::check_with(port, trial, drivers)
            }
            None => machine(),
        };
        if let Some(finding) = findings.iter().find(|f| f.code == Some(Code::PortSyntax.as_str())) {
            return Err(refusal(finding));
        }
        screen.result(|| text(&findings), || json::doctor(port.as_deref(), &findings))?;
        Ok(if worst(&findings) == Level::Miss { CHECK } else { 0 })
    }
}

/// Returns the name of an interface alone is a port of xdp.
fn port_text(text: &str) -> String {
    if text.contains(':') { text.to_owned() } else { format!("xdp:{text}") }
}

/// Returns the machine, and what only the tools use of it.
fn machine() -> Vec<Finding> {
    let mut findings = doctor::machine();
    findings.push(match Counters::start() {
        Ok(_) => Finding::new(Level::Ok, "cycles and instructions can be counted"),
        Err(e) => Finding::of(Level::Warn, &e),
    });
    findings
}

/// Returns a request that makes no sense is refused as every command does.
fn refusal(finding: &Finding) -> Failure {
    let fix = finding.fix.as_ref().map_or("", |fix| &fix.text);
    let (code, why) = (finding.code.unwrap_or_default(), finding.why.clone().unwrap_or_default());
    Failure::new(USAGE, code, &finding.what, why, fix)
}

/// Formats all findings, in the order in which they were made.
fn text(findings: &[Finding]) -> String {
    findings.iter().map(lines).collect()
}

fn lines(finding: &Finding) -> String {
    let level = match finding.level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        Level::Miss => "miss",
    };
    let mut text = wrapped(&format!("{level:<INDENT$}"), &finding.what, INDENT);
    if let Some(why) = &finding.why {
        text += &wrapped("      why: ", why, DEEP_INDENT);
    }
    if let Some(fix) = &finding.fix {
        text += &remedy(fix);
    }
    text
}

/// Words are wrapped; a command has a line of its own, however long, so that it can be pasted.
fn remedy(fix: &Fix) -> String {
    let label = "      fix: ";
    match &fix.command {
        Some(command) => {
            let words = fix.text.strip_suffix(command.as_str()).unwrap_or_default().trim_end();
            match words {
                "" => format!("{label}{command}\n"),
                words => {
                    wrapped(label, words, DEEP_INDENT) + &format!("{:DEEP_INDENT$}{command}\n", "")
                }
            }
        }
        None if fix.proof == Proof::Unverified => {
            wrapped("      fix (unverified): ", &fix.text, DEEP_INDENT)
        }
        None => wrapped(label, &fix.text, DEEP_INDENT),
    }
}

/// `text` behind `label`, in lines that begin at `indent`.
fn wrapped(label: &str, text: &str, indent: usize) -> String {
    let mut lines = label.to_owned();
    let mut column = label.chars().count();
    let mut first = true;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if !first && column + 1 + len > COLUMNS {
            lines += &format!("\n{:indent$}", "");
            column = indent;
        } else if !first {
            lines.push(' ');
            column += 1;
        }
        lines += word;
        column += len;
        first = false;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate::Error;

    #[test]
    fn findings_are_told_in_80_columns_and_commands_in_one_line() {
        let long = "a veth, up, with a carrier, whose other end is in another network namespace";
        let fix = "run as root or with CAP_NET_RAW and CAP_NET_ADMIN, or let the program have both of \
                   them: sh -c 'setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep linerate'";
        let e = Error::new(Code::Permission, "cannot open x", "not permitted").fix(fix);
        let found = [
            Finding::new(Level::Ok, format!("v0: {long}")),
            Finding::of(Level::Miss, &e),
            Finding::of(Level::Warn, &Error::new(Code::Memory, "y", "z").fix("ask for less")),
            Finding::of(Level::Warn, &Error::new(Code::Memory, "y", "z").fix("sh -c true")),
        ];
        let screen = "\
ok    v0: a veth, up, with a carrier, whose other end is in another network
      namespace
miss  cannot open x
      why: not permitted
      fix: run as root or with CAP_NET_RAW and CAP_NET_ADMIN, or let the program
           have both of them:
           sh -c 'setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep linerate'
warn  y
      why: z
      fix (unverified): ask for less
warn  y
      why: z
      fix: sh -c true
";
        assert_eq!(text(&found), screen);
    }

    #[test]
    fn a_name_alone_is_an_interface_for_xdp() {
        assert_eq!((port_text("eth0"), port_text("null:")), ("xdp:eth0".into(), "null:".into()));
    }
}
