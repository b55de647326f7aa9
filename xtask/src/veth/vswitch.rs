//! Open vSwitch in user space with AF_XDP ports: its daemons, a database of their own, two flows.
//!
//! Source: Documentation/intro/install/afxdp.rst of Open vSwitch.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::veth::child::Running;
use crate::veth::programs::{DUT_CPU, Place, pinned};

/// Its programs, and Debian's package of each.
pub const PROGRAMS: [(&str, &str); 5] = [
    ("ovs-vswitchd", "openvswitch-switch"),
    ("ovsdb-server", "openvswitch-common"),
    ("ovsdb-tool", "openvswitch-common"),
    ("ovs-vsctl", "openvswitch-switch"),
    ("ovs-ofctl", "openvswitch-common"),
];

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Time limit of the switch for a command.
const PATIENCE: &str = "--timeout=20";

/// Starts a switch that sends what comes in by `a` out of `b`, and the other way round. Its CPU time
/// is that of the switch, without the database's.
pub fn start([a, b]: [&str; 2], place: &Place<'_>) -> Result<Running> {
    let folder = place.folder.join("vswitch");
    // What the last one left: it is killed, and cleans nothing up.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut database = database(&folder, place)?;
    let socket = folder.join("db.sock");
    database.until("has a socket", || Ok(socket.exists()))?;
    let socket = format!("unix:{}", socket.display());
    let tell = |words: &str| {
        let mut command = Command::new("ovs-vsctl");
        command.arg(format!("--db={socket}")).arg(PATIENCE).args(words.split_whitespace());
        told(&mut command)
    };
    tell("--no-wait init")?;
    let cpus = 1 << DUT_CPU;
    tell(&format!("--no-wait set Open_vSwitch . other_config:pmd-cpu-mask={cpus:#x}"))?;
    let mut command = pinned(DUT_CPU);
    command.args(["ovs-vswitchd", &socket, "-vconsole:warn"]);
    command.arg(unixctl(&folder, "switch")).env("OVS_RUNDIR", &folder);
    let mut switch = Running::start(command, "vswitch", place.folder)?.beside(database);
    let set_up = || -> Result<()> {
        tell("add-br br0 -- set bridge br0 datapath_type=netdev")?;
        for (n, port) in [(1, a), (2, b)] {
            tell(&format!(
                "add-port br0 {port} -- set interface {port} type=afxdp ofport_request={n}"
            ))?;
        }
        flows(&folder)
    };
    // Why the switch ended says more than that it does not answer.
    set_up().or_else(|error| switch.still().and(Err(error)))?;
    Ok(switch)
}

fn database(folder: &Path, place: &Place<'_>) -> Result<Running> {
    let file = folder.join("conf.db");
    told(Command::new("ovsdb-tool").arg("create").arg(&file).arg(SCHEMA))?;
    let mut command = Command::new("ovsdb-server");
    command.arg(&file).arg(format!("--remote=punix:{}", folder.join("db.sock").display()));
    command.arg(unixctl(folder, "database")).arg("-vconsole:warn");
    Running::start(command, "ovsdb-server", place.folder)
}

/// Both ways, whatever it is: what testpmd and `linerate forward` do as well.
fn flows(folder: &Path) -> Result<()> {
    let bridge = format!("unix:{}", folder.join("br0.mgmt").display());
    for flow in ["in_port=1,actions=output:2", "in_port=2,actions=output:1"] {
        told(Command::new("ovs-ofctl").args([PATIENCE, "add-flow", &bridge, flow]))?;
    }
    Ok(())
}

fn unixctl(folder: &Path, of: &str) -> String {
    format!("--unixctl={}", folder.join(of).with_extension("ctl").display())
}

/// Runs `command` to its end.
fn told(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {}", output.status, said.trim());
    }
    Ok(())
}
