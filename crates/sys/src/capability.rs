//! Capabilities: the set that a port requires, and the command that grants the set to the program.
//!
//! `setcap` replaces what a file has. The advised command names what the file has already as
//! well, so that following one piece of advice does not undo the one before.
//!
//! Source: capabilities(7), include/uapi/linux/capability.h.

use std::env;

use crate::error::Error;

/// Names of capabilities by number, without `cap_`.
const NAMES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];
/// Beginning of the advice when the kernel refuses a call; the command follows it.
const ROOT: &str = "run as root or with ";
const SETCAP: &str = "setcap ";
/// The file attribute with a file's capabilities; the next constant is its greatest length.
const ATTRIBUTE: &str = "security.capability";
const ATTRIBUTE_BYTES: usize = 24;

/// A set of capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u64);

impl Capabilities {
    /// No capability.
    pub const NONE: Self = Capabilities(0);
    /// Ports of UDP and TCP below 1024.
    pub const NET_BIND_SERVICE: Self = Capabilities(1 << 10);
    /// Configuration of interfaces, and attachment of programs and queues to them.
    pub const NET_ADMIN: Self = Capabilities(1 << 12);
    /// Packet sockets, AF_XDP sockets.
    pub const NET_RAW: Self = Capabilities(1 << 13);
    /// Locked memory beyond RLIMIT_MEMLOCK.
    pub const IPC_LOCK: Self = Capabilities(1 << 14);
    /// Mounts, among much else.
    pub(crate) const SYS_ADMIN: Self = Capabilities(1 << 21);
    /// Programs and maps of BPF.
    pub const BPF: Self = Capabilities(1 << 39);
    /// The capabilities that an AF_XDP port requires. The last one is for its packet memory,
    /// because most users' RLIMIT_MEMLOCK is too small for it; all are advised together, so that no
    /// second try is needed.
    pub const XDP: Self = Self::NET_ADMIN.and(Self::NET_RAW).and(Self::BPF).and(Self::IPC_LOCK);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Capabilities(self.0 | other.0)
    }

    /// Returns true if the calling thread has all of them.
    #[must_use]
    pub(crate) fn are_held(self) -> bool {
        let held = rustix::thread::capabilities(None);
        held.is_ok_and(|sets| sets.effective.bits() & self.0 == self.0)
    }

    /// Returns the remedy for missing capabilities.
    #[must_use]
    pub fn remedy(self) -> String {
        let names: Vec<String> = self.names().iter().map(|n| n.to_ascii_uppercase()).collect();
        let names = match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => names.concat(),
        };
        format!("{ROOT}{names}: {}", self.command())
    }

    /// Returns the command that gives these capabilities to this program, in addition to those that
    /// its file has.
    #[must_use]
    pub fn command(self) -> String {
        let all = self.and(of_this_file()).names().join(",");
        format!("{SETCAP}{all}+ep {}", this_file())
    }

    /// Returns the error with these capabilities added, if its advice names capabilities: a user
    /// who follows the advice then avoids the next refusal too.
    #[must_use]
    pub fn added_to(self, mut e: Error) -> Error {
        let Some((words, command)) = e.fix.split_once(SETCAP) else { return e };
        let command = command.split_once('+').map_or(command, |(names, _)| names);
        e.fix = match words.split_once(ROOT) {
            Some((before, names)) => before.to_owned() + &named(names).and(self).remedy(),
            None => words.to_owned() + &named(command).and(self).command(),
        };
        e
    }

    fn names(self) -> Vec<String> {
        let name = |bit: usize| match NAMES.get(bit) {
            Some(name) => format!("cap_{name}"),
            // A capability that is newer than this program has no name here; setcap accepts its
            // number.
            None => bit.to_string(),
        };
        (0..64).filter(|bit| self.0 >> bit & 1 == 1).map(name).collect()
    }
}

/// Returns the capabilities that `text` names, in upper or lower case.
fn named(text: &str) -> Capabilities {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let bit = |word: &str| {
        let word = word.to_ascii_lowercase();
        let named = word.strip_prefix("cap_")?;
        NAMES.iter().position(|name| *name == named)
    };
    Capabilities(words.filter_map(bit).fold(0, |set, bit| set | 1 << bit))
}

/// Returns the path of this program, quoted for a shell.
fn this_file() -> String {
    let Ok(path) = env::current_exe() else { return "PROGRAM".into() };
    let path = path.to_string_lossy().into_owned();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    if path.chars().all(is_plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// Returns the capabilities that this program's file gives to the user who starts it.
fn of_this_file() -> Capabilities {
    let mut bytes = [0; ATTRIBUTE_BYTES];
    match rustix::fs::getxattr("/proc/self/exe", ATTRIBUTE, &mut bytes) {
        Ok(n) => permitted(bytes.get(..n).unwrap_or_default()),
        // The file has no capabilities, or they cannot be read.
        Err(_) => Capabilities::NONE,
    }
}

/// Returns the permitted set in a `struct vfs_cap_data`: a word of magic, then a permitted and an
/// inheritable word, once or twice.
fn permitted(bytes: &[u8]) -> Capabilities {
    let word = |at: usize| {
        let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
        u64::from(u32::from_le_bytes(four.unwrap_or_default()))
    };
    Capabilities(word(4) | word(12) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn capability_that_the_kernel_does_not_have_is_not_held() {
        assert!(Capabilities::NONE.are_held());
        assert!(!Capabilities(1 << 63).and(Capabilities::NET_RAW).are_held());
    }

    #[test]
    fn advice_names_the_capabilities_and_the_program() {
        let exe = env::current_exe().unwrap();
        let xdp = Capabilities::XDP.remedy();
        let expected = format!(
            "run as root or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK and CAP_BPF: \
             setcap cap_net_admin,cap_net_raw,cap_ipc_lock,cap_bpf+ep {}",
            exe.display()
        );
        assert_eq!(xdp, expected);
        assert!(
            Capabilities::NET_RAW.remedy().starts_with("run as root or with CAP_NET_RAW: setcap")
        );
    }

    #[test]
    fn capabilities_of_other_ports_are_added_to_advice_only() {
        let e = |fix: &str| Error::new(Code::Permission, "a", "b").fix(fix);
        let low = Capabilities::NET_BIND_SERVICE.remedy();
        let both = Capabilities::XDP.added_to(e(&low)).fix;
        assert_eq!(both, Capabilities::XDP.and(Capabilities::NET_BIND_SERVICE).remedy());
        let behind = Capabilities::NET_RAW.added_to(e(&format!("make it, or {low}"))).fix;
        assert!(
            behind.starts_with(
                "make it, or run as root or with CAP_NET_BIND_SERVICE and CAP_NET_RAW:"
            )
        );
        let memory = format!("a smaller pool, or: {}", Capabilities::IPC_LOCK.command());
        let memory = Capabilities::NET_RAW.added_to(e(&memory)).fix;
        assert!(
            memory.starts_with("a smaller pool, or: setcap cap_net_raw,cap_ipc_lock+ep "),
            "{memory}"
        );
        assert_eq!(Capabilities::XDP.added_to(e("chmod +r x")).fix, "chmod +r x");
    }

    #[test]
    fn the_attribute_of_a_file_is_read_whole_or_cut_off() {
        let mut bytes = vec![1, 0, 0, 2];
        bytes.extend((1u32 << 13).to_le_bytes());
        bytes.extend(u32::MAX.to_le_bytes());
        bytes.extend((1u32 << 7).to_le_bytes());
        bytes.extend(u32::MAX.to_le_bytes());
        assert_eq!(permitted(&bytes), Capabilities::NET_RAW.and(Capabilities::BPF));
        assert_eq!(permitted(&bytes[..12]), Capabilities::NET_RAW);
        assert_eq!(permitted(&[]), Capabilities::NONE);
        assert_eq!(Capabilities(1 << 41).names(), ["41"]);
    }
}
