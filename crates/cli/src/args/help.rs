//! The text of the help: examples, ports and exit statuses.

use linerate::Registry;

const PROGRAMS: &str = "\
Commands for measurement (linerate runs the program linerate-lab for them):
  lab      repeat an experiment on this machine, with a control and statistics
  profile  show the CPU time of each function
  lines    show which functions move cache lines between CPUs, by a MODEL
  ndr      find the highest rate without loss

PORT is [name=]driver:arg[,key=value]…; name is what reports and `linerate tune` call it.
xdp, packet and tap need root or capabilities, verbs needs its device's files, the others nothing:
`linerate doctor PORT` names what is missing.
";
/// Column at which the description of a driver begins.
const PORT_COLUMNS: usize = 24;

const STATUS: &str = "
Exit status: 0 done, 1 failed while running, 2 wrong request, 3 a check failed, 5 not possible on
this machine, 6 the ledger does not balance, 129, 130 or 143 ended by SIGHUP, SIGINT or SIGTERM.";

pub(super) const FORWARD: &str = "\
Examples:
  linerate forward                                  self-test, without privilege
  linerate forward xdp:eth0 xdp:eth1                connect two interfaces by AF_XDP
  linerate forward packet:eth0 packet:eth1          connect any two interfaces, with copies; faster
                                                    for TCP over veth: superframes stay whole
  linerate forward packet:eth0 pcap:out.pcapng --for 10s
  linerate forward pcap:in.pcap pcap:out.pcapng     copy a capture
  linerate forward xdp:eth0 memif:/run/x.sock       an interface into another process's memory
  linerate forward memif:/run/x.sock,role=server sink:   that other process: listens and verifies
  linerate forward null: null: --for 2s --json      the cost of the path
  linerate forward null: null: --for 2s --pool      the cost of packet memory, too

The line `cost` has totals divided by the packets that left by ports other than rings. Cycles and
instructions are those of the whole process; a figure that is not available is printed as `-`.
In the line `calls`, rx+xmit counts calls of the ports' drivers: one for each batch and queue, empty
polls included. These calls are not syscalls; one call may make no syscall or several.

`linerate --help` lists the ports.";

pub(super) const GEN: &str = "\
Examples:
  linerate gen ring:r0 --rate 1Mpps --size imix --flows 1000 --for 5s
  linerate gen packet:veth0 --rate 100kpps --count 1M
  linerate gen xdp:veth0 --rate 1Mpps --for 5s      sends only
  linerate gen xdp:eth0 --to 192.0.2.7:7777 --rate 1Mpps --flows 16 --for 10s

A UDP socket at 192.0.2.7, port 7777, receives the datagrams. To verify them, run there
`linerate forward xdp:eth0,udp=7777 sink:`. It checks the bytes of each numbered datagram, counts
reordered and lost packets, and ends with status 3 if a datagram is damaged.

`linerate --help` lists the ports.";

/// Returns the text after the options: the programs, the ports and the exit statuses.
pub(super) fn after_help(drivers: &Registry) -> String {
    let mut text = PROGRAMS.to_owned();
    for driver in drivers.drivers() {
        let help = driver.help();
        let mut head = format!("  {}", help.usage);
        for line in help.text.lines() {
            // Put the description on the next line if the usage is too long, or if this is not the
            // first line.
            if head.len() + 2 > PORT_COLUMNS {
                text += &head;
                text.push('\n');
                head.clear();
            }
            text += &format!("{head:PORT_COLUMNS$}{line}\n");
            head.clear();
        }
        if help.text.is_empty() {
            text += &format!("{head}\n");
        }
    }
    text + STATUS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_driver_and_no_other() {
        let help = after_help(&Registry::default());
        let listed: Vec<&str> = help
            .lines()
            .filter_map(|line| line.strip_prefix("  ")?.split_once(':'))
            .map(|(driver, _)| driver)
            .filter(|driver| !driver.starts_with(' '))
            .collect();
        let drivers = Registry::default();
        let drivers: Vec<&str> = drivers.drivers().iter().map(|driver| driver.name()).collect();
        assert_eq!(listed, drivers);
    }
}
