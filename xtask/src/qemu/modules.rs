//! The modules of a kernel that a guest loads, in loading order.
//!
//! A kernel that is unpacked and not installed has no `modules.dep`; but each module says itself
//! what it depends on, in its `.modinfo`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Modules that the tests and scenarios need: devices for sending and receiving, and the modules
/// between them. A module without a file is built into the kernel, or the tests report it as
/// missing.
pub const WANTED: [&str; 22] = [
    "virtio_pci",
    "virtio_net",
    "e1000",
    "e1000e",
    "veth",
    "tun",
    "dummy",
    "bridge",
    "8021q",
    "macvlan",
    "ifb",
    "sch_netem",
    "sch_tbf",
    "sch_ingress",
    "sch_fq_codel",
    "cls_bpf",
    "act_mirred",
    "af_packet_diag",
    "xsk_diag",
    // Soft-RoCE, with the checksum that it asks the kernel for by name.
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
];

/// A module, as input for the guest's `insmod`.
pub struct Module {
    /// The module's name in the kernel.
    pub name: String,
    /// The object file, uncompressed.
    pub object: Vec<u8>,
}

/// Returns the modules `wanted` with their dependencies, each after its own dependencies.
pub fn in_order(folder: &Path, wanted: &[&str]) -> Result<Vec<Module>> {
    let list = folder.join("modules.order");
    let list = fs::read_to_string(&list).with_context(|| format!("{}", list.display()))?;
    let paths: BTreeMap<String, PathBuf> =
        list.lines().map(|line| (name_of(line), folder.join(line))).collect();
    let mut modules = Vec::new();
    for &wanted in wanted {
        add(wanted, &mut modules, &mut |name| {
            paths.get(name).map(|path| object(path)).transpose()
        })?;
    }
    Ok(modules)
}

/// Adds the module `name` after its dependencies, unless it is present already or does not exist.
fn add(
    name: &str,
    modules: &mut Vec<Module>,
    object: &mut impl FnMut(&str) -> Result<Option<Vec<u8>>>,
) -> Result<()> {
    if modules.iter().any(|module| module.name == name) {
        return Ok(());
    }
    let Some(object_file) = object(name)? else { return Ok(()) };
    for dependency in depends(&object_file) {
        add(&dependency, modules, object)?;
    }
    modules.push(Module { name: name.to_owned(), object: object_file });
    Ok(())
}

/// Returns the kernel's name of a module file such as `kernel/net/sched/sch-netem.ko`.
fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

/// Returns the modules of the line `depends=` of a module's `.modinfo`.
fn depends(object: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let at = object.windows(KEY.len()).position(|window| window == KEY);
    let value = at.map_or(&[][..], |at| &object[at + KEY.len()..]);
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

/// Returns the object file at `path`, or the one with `.xz` if the kernel compresses its modules.
fn object(path: &Path) -> Result<Vec<u8>> {
    if let Ok(bytes) = fs::read(path) {
        return Ok(bytes);
    }
    let compressed = path.with_extension("ko.xz");
    let mut xz = Command::new("xz");
    xz.args(["--decompress", "--stdout"]).arg(&compressed).stdin(Stdio::null());
    let output = xz.output().context("cannot start xz")?;
    if !output.status.success() {
        bail!("{}: {}", compressed.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_stands_behind_what_it_depends_on_and_only_once() {
        let object = |name: &str| match name {
            "virtio_net" => Some("x\0depends=net-failover,virtio\0y"),
            "net_failover" => Some("x\0depends=failover\0"),
            "failover" => Some("x\0depends=\0"),
            _ => None,
        };
        let mut modules = Vec::new();
        for wanted in ["failover", "virtio_net", "gone"] {
            add(wanted, &mut modules, &mut |name| Ok(object(name).map(Vec::from))).unwrap();
        }
        let names: Vec<_> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["failover", "net_failover", "virtio_net"]);
    }

    #[test]
    fn the_kernel_writes_a_dash_as_an_underscore() {
        assert_eq!(name_of("kernel/drivers/net/net-failover.ko"), "net_failover");
    }
}
