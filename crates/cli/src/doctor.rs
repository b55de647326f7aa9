//! The command `linerate doctor`: checks a port or the machine, and prints the findings.

mod tried;

use std::io::{self, BufRead, IsTerminal, Write};
use std::net::Ipv4Addr;
use std::time::Duration;

use clap::Parser;
use linerate::{Code, Driver, Registry, Spec};
use linerate_ctl::doctor::{self, Finding, Fix, Level, Proof, Trial, worst};
use linerate_ctl::json;
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::HostUse;
use linerate_sys::text::wrapped_at;

use crate::counters::Counters;
use crate::errors::{CHECK, Failure, RUNTIME, USAGE, to_type};
use crate::screen::Screen;
use crate::signals::{self, Signals};
use crate::undo;
use tried::tried;

/// Greatest width of a line; a command that users paste may be wider.
const COLUMNS: usize = 80;
/// Column at which the text of a finding begins, after for instance `warn  `.
const INDENT: usize = 6;
/// Column at which a reason or a remedy begins, after `      why: `.
const DEEP_INDENT: usize = INDENT + 5;

/// Check whether a port can be opened here and in which mode, with a remedy for each problem
///
/// Doctor tries the real operations and undoes them. It opens an xdp port with a filter that takes
/// no traffic from the kernel. The driver of real hardware may take the link down for a moment, so
/// doctor opens a port on hardware, on a bond, bridge or VLAN of it, or on a TAP that already
/// exists, only with --try. With --try,
/// doctor also sends an ARP request to a neighbour through the socket of an xdp port, receives only
/// the reply, and reports whether the reply came and how long the link was down.
///
/// Without PORT doctor checks the machine, and opens ports in a network namespace that it creates.
#[derive(Debug, Parser)]
#[command(after_long_help = EXAMPLES)]
pub struct Doctor {
    /// A port: driver:arg[,key=value]; IFACE alone means xdp:IFACE
    pub port: Option<String>,
    /// Open the port even if that can disturb other users of the interface
    #[arg(long = "try", requires = "port")]
    pub full: bool,
    /// With --try of an xdp port: the neighbour for the ARP request; by default the gateway, or a
    /// known neighbour
    #[arg(long, value_name = "ADDR", requires = "full", value_parser = peer)]
    pub peer: Option<Ipv4Addr>,
    /// With --try: do not ask for confirmation on an interface that the host itself uses
    #[arg(long, requires = "full")]
    pub yes: bool,
    /// Restore the settings of interfaces that killed runs have changed, in this network namespace
    #[arg(long, conflicts_with_all = ["port", "full", "peer", "yes"])]
    pub undo: bool,
    /// Print one JSON document on stdout, errors included; the exit status stays the same
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  linerate doctor                               check this machine
  linerate doctor eth0                          check xdp:eth0; the filter takes no traffic
  linerate doctor packet:eth0,udp=7777          check that no other program uses the UDP port
  linerate doctor xdp:eth0,udp=7777             check what the driver supports for one flow
  linerate doctor --try xdp:eth0,write,mode=zerocopy   check zero copy
  linerate doctor --try eth0 --peer 192.0.2.1   check that packets pass and the link stays up
  linerate doctor memif:/run/x.sock             check that the server accepts a connection
  linerate doctor tap:t0 --json
  linerate doctor --undo                        restore settings after kill -9

A finding is ok, warn (it works, but slower or with fewer features than
possible; or it was not tried) or miss (it does not work), with the reason and
the remedy. Before doctor proposes a command, it tries the command in a separate
network namespace, or checks that the program exists. Other commands, and those
that fail there, are marked unverified.

Exit status: 0 nothing is missing, 1 doctor itself failed, for example to print
its result, 2 wrong request, or the trial was not agreed to,
3 something is missing, 129, 130 or 143 if SIGHUP, SIGINT or SIGTERM came while
a port was checked or settings were restored.";

impl Doctor {
    /// Examines the port or the machine and prints the findings; returns the exit status.
    ///
    /// # Errors
    /// An invalid port text.
    pub fn run(&self, drivers: &Registry, screen: &Screen) -> Result<u8, Failure> {
        let port = self.port.as_deref().map(|text| port_text(text, drivers.of_links()));
        let (mut shown, mut ended) = (None, None);
        let mut findings = match &port {
            Some(port) => {
                let spec = drivers.parse(port)?;
                shown = Some(spec.shown_text());
                let trial = self.trial(&spec, drivers.of_links())?;
                let signals = watched()?;
                let tried = tried(&spec, trial, drivers.of_links());
                let _until_the_end = undo::record(tried.as_deref(), drivers, screen);
                let found = doctor::check_with(port, trial, drivers);
                ended = signals.wait(Duration::ZERO);
                found
            }
            None if self.undo => {
                let signals = watched()?;
                let found = undo::undo(screen);
                ended = signals.wait(Duration::ZERO);
                found
            }
            None => machine(),
        };
        if let Some(failure) = refused(port.as_deref(), &findings) {
            return Err(failure);
        }
        if !self.undo {
            findings.extend(undo::pending().into_iter().map(|left| {
                let mut finding = Finding::new(Level::Warn, left);
                finding.fix(undo::UNDO);
                finding
            }));
            findings.extend(undo::unread());
            findings.extend(undo::unlooked().filter(|_| port.is_none()));
        }
        for fix in findings.iter_mut().filter_map(|finding| finding.fix.as_mut()) {
            complete(fix, to_type);
        }
        screen.result(|| text(&findings), || json::doctor(shown.as_deref(), &findings))?;
        Ok(match ended {
            Some(signal) => signals::status(signal),
            None if worst(&findings) == Level::Miss => CHECK,
            None => 0,
        })
    }
}

impl Doctor {
    /// Returns how far the examination may go; asks the user before it tries an interface that the
    /// host itself uses.
    fn trial(&self, spec: &Spec, of_links: Option<&dyn Driver>) -> Result<Trial, Failure> {
        let name = of_links.map_or("", Driver::name);
        if self.peer.is_some() && spec.driver != name {
            return Err(spec
                .error(format!("--peer: only a port of {name} sends an ARP request"))
                .fix("leave --peer out")
                .into());
        }
        let used = || match Interface::open(&spec.arg) {
            Ok(interface) => HostUse::of(&interface),
            // The examination reports a name without an interface.
            Err(e) if matches!(e.code, Code::NoDevice | Code::PortSyntax) => Ok(None),
            Err(e) => Err(e),
        };
        if self.full
            && !self.yes
            && spec.driver == name
            && let Some(risk) = risk(&spec.arg, used())
        {
            let (input, is_terminal) = (io::stdin().lock(), io::stdin().is_terminal());
            agreed(spec, &risk, input, is_terminal)?;
        }
        Ok(match self.peer {
            Some(peer) => Trial::Asking(peer),
            None if self.full => Trial::Full,
            None => Trial::Careful,
        })
    }
}

/// Parses the address of `--peer`.
fn peer(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|_| "an IPv4 address, as 192.0.2.1, because doctor asks by ARP".into())
}

/// Starts to watch for signals: none must end this process while a device is changed.
fn watched() -> Result<Signals, Failure> {
    Signals::watch().map_err(|e| {
        Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
    })
}

/// Returns the risk of a trial on an interface that the host itself uses, or may use because the
/// kernel did not answer.
fn risk(interface: &str, used: linerate::Result<Option<HostUse>>) -> Option<String> {
    let uses = match used {
        Ok(None) => return None,
        Ok(Some(used)) => format!("uses {interface} itself ({used})"),
        Err(e) => format!("may use {interface} itself ({})", e.why),
    };
    Some(format!(
        "the host {uses}, and the driver of {interface} may take the link down for seconds"
    ))
}

/// Asks at a terminal if the interface of `port` may be tried in spite of the risk; refuses if
/// there is no terminal.
fn agreed(
    port: &Spec,
    risk: &str,
    mut input: impl BufRead,
    is_terminal: bool,
) -> Result<(), Failure> {
    let refused = |why: &str, fix| {
        let what = format!("{}:{} was not tried", port.driver, port.arg);
        Failure::new(USAGE, "E-USAGE", &what, why.into(), fix)
    };
    if !is_terminal {
        let why = format!("{risk}; confirmation needs a terminal at standard input");
        return Err(refused(&why, "if a short loss of the link is acceptable now: add --yes"));
    }
    let lost = "a remote session over it would lose its link, too";
    // The answer is no if the question cannot be read.
    let asked = write!(io::stderr(), "{risk}; {lost}. Continue? [y/N] ");
    let mut answer = String::new();
    let read = input.read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" if read.is_ok() && asked.is_ok() => Ok(()),
        _ => {
            Err(refused("the answer was no", "leave --try out: then doctor does not open the port"))
        }
    }
}

/// Completes the text of a port: a name alone is an interface for the driver that tries links. If
/// the user gave no filter, adds one that takes no traffic.
fn port_text(text: &str, of_links: Option<&dyn Driver>) -> String {
    // A colon after the first comma is an option's, as in `eth0,not=tcp:22`.
    let name = text.split(',').next().unwrap_or_default();
    match of_links {
        Some(driver) if !name.contains(':') => {
            // If the text has options, the user chose a filter.
            let is_whole = text.is_empty() || text.contains(',');
            let quiet = if is_whole { "" } else { driver.on_machine().link_trial };
            let comma = if quiet.is_empty() { "" } else { "," };
            format!("{}:{text}{comma}{quiet}", driver.name())
        }
        _ => text.to_owned(),
    }
}

/// Returns the findings on the machine, including those on programs that only the tools need.
fn machine() -> Vec<Finding> {
    let mut findings = doctor::machine();
    findings.push(match Counters::start() {
        Ok(_) => Finding::new(Level::Ok, "cycles and instructions can be counted"),
        Err(e) => Finding::of(Level::Warn, &e),
    });
    findings
}

/// Replaces by `to_type` the words that stand for the user's command; removes a command of which a
/// part is then left out, because it cannot be pasted.
fn complete(fix: &mut Fix, to_type: impl Fn(&str) -> String) {
    fix.text = to_type(&fix.text);
    if let Some(command) = fix.command.take() {
        let command = to_type(&command);
        if command.contains('…') {
            fix.proof = Proof::Unverified;
        } else {
            fix.command = Some(command);
        }
    }
}

/// Returns the failure for an invalid port text, in the form that other commands use. Without a
/// `port` the findings are of no text: `--undo` reads the names of interfaces in records, and
/// reports the changes that it could restore in spite of an invalid one.
fn refused(port: Option<&str>, findings: &[Finding]) -> Option<Failure> {
    port?;
    let code = Code::PortSyntax.as_str();
    let finding = findings.iter().find(|finding| finding.code == Some(code))?;
    let fix = finding.fix.as_ref().map_or(String::new(), |fix| to_type(&fix.text));
    let why = finding.why.clone().unwrap_or_default();
    Some(Failure::new(USAGE, code, &finding.what, why, &fix))
}

/// Formats all findings, in order.
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

/// Formats a remedy: wraps words, but keeps a command on one line, so that users can paste it.
fn remedy(fix: &Fix) -> String {
    let label = match fix.proof {
        Proof::Unverified => "      fix (unverified): ",
        Proof::Ran | Proof::Found => "      fix: ",
    };
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
        None => wrapped(label, &fix.text, DEEP_INDENT),
    }
}

/// Formats `text` after `label`; wraps it at `indent`.
fn wrapped(label: &str, text: &str, indent: usize) -> String {
    wrapped_at(COLUMNS, text, label, &" ".repeat(indent))
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
    fn command_with_a_part_left_out_is_not_ready_to_paste() {
        let e = Error::new(Code::Permission, "x", "y").fix("there: sh -c PROGRAM …");
        let with = |own: &str| {
            let mut fix = Finding::of(Level::Miss, &e).fix.unwrap();
            complete(&mut fix, |text| text.replace("PROGRAM …", own));
            (remedy(&fix), fix.command)
        };
        let command = "sh -c linerate walk".to_owned();
        let whole = format!("      fix: there:\n           {command}\n");
        assert_eq!(with("linerate walk"), (whole, Some(command)));
        let part = "      fix (unverified): there: sh -c linerate …\n".to_owned();
        assert_eq!(with("linerate …"), (part, None));
    }

    #[test]
    fn only_findings_about_the_text_of_a_port_refuse_the_request() {
        let of = |code| Finding::of(Level::Miss, &Error::new(code, "x", "y").fix("z"));
        let found = [of(Code::NoDevice), of(Code::PortSyntax)];
        let failure = refused(Some("xdp:x,ring=3"), &found).unwrap();
        let error = failure.error;
        assert_eq!((failure.exit, &*error.code, &*error.fix), (USAGE, "E-PORT-SYNTAX", "z"));
        assert!(refused(Some("xdp:x"), &found[..1]).is_none());
        // A record with an invalid name of an interface: the other findings are printed, too.
        assert!(refused(None, &found).is_none());
    }

    #[test]
    fn command_whose_trial_failed_is_marked() {
        let e = Error::new(Code::Memory, "y", "z").fix("sh -c true");
        let mut fix = Finding::of(Level::Warn, &e).fix.unwrap();
        fix.proof = Proof::Unverified;
        assert_eq!(remedy(&fix), "      fix (unverified): sh -c true\n");
    }

    #[test]
    fn interface_that_the_host_uses_or_may_use_is_a_risk() {
        let interface = Interface::open("lo").unwrap().name();
        let address = Ipv4Addr::new(192, 0, 2, 9).into();
        let used = HostUse { interface, kind: linerate_sys::rtnl::UseKind::Address(address) };
        let uses = "the host uses lo itself (lo has the address 192.0.2.9), and the driver";
        assert!(risk("lo", Ok(Some(used))).unwrap().starts_with(uses));
        assert_eq!(risk("eth0", Ok(None)), None);
        let e = Error::new(Code::System, "cannot use network interface eth0", "rtnetlink: busy");
        let may = risk("eth0", Err(e)).unwrap();
        assert!(may.starts_with("the host may use eth0 itself (rtnetlink: busy)"), "{may}");
    }

    #[test]
    fn interface_that_the_host_uses_is_tried_only_if_someone_agrees() {
        let port = Registry::default().parse("xdp:eth0").unwrap();
        for (said, agrees) in
            [("y\n", true), ("yes\n", true), ("n\n", false), ("\n", false), ("", false)]
        {
            assert_eq!(agreed(&port, "a risk", said.as_bytes(), true).is_ok(), agrees, "{said:?}");
        }
        let refused = agreed(&port, "a risk", "y\n".as_bytes(), false).unwrap_err();
        assert_eq!(refused.error.what, "xdp:eth0 was not tried");
        assert_eq!((refused.exit, refused.error.code.as_str()), (USAGE, "E-USAGE"));
        assert!(
            refused.error.why.contains("needs a terminal") && refused.error.fix.contains("--yes")
        );
    }

    #[test]
    fn a_name_alone_is_an_interface_for_xdp() {
        for (text, port) in [
            ("null:", "null:"),
            ("", "xdp:"),
            ("eth0", "xdp:eth0,ethertype=0x88b6"),
            ("eth0,udp=7", "xdp:eth0,udp=7"),
            ("eth0,not=tcp:22", "xdp:eth0,not=tcp:22"),
            ("eth0,dst=fd00::9", "xdp:eth0,dst=fd00::9"),
            ("a=packet:eth0,udp=7", "a=packet:eth0,udp=7"),
        ] {
            assert_eq!(port_text(text, Registry::default().of_links()), port);
        }
    }
}
