//! Readers of files in /proc and /sys. They return `None` for a file that does not exist.

use std::fs;

/// Returns a file's text.
#[must_use]
pub fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Returns the number that is the only content of a file.
#[must_use]
pub fn number(path: &str) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// Returns the first number after `label` at the start of a line of `text`: `HugePages_Free:  3`.
#[must_use]
pub fn labelled(text: &str, label: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns a text with the amount of memory that this process may lock.
#[must_use]
pub fn memlock() -> String {
    let limits = text("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => "memlock unlimited".into(),
        Some(bytes) => match bytes.parse::<u64>() {
            Ok(bytes) => format!("memlock {}", size(bytes)),
            Err(_) => "memlock unknown".into(),
        },
        None => "memlock unknown".into(),
    }
}

/// Formats a number of bytes in KiB, or in MiB rounded up.
#[must_use]
pub fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes.div_ceil(1 << 10)),
        _ => format!("{} MiB", bytes.div_ceil(1 << 20)),
    }
}

/// Returns the name and number of a process that has the socket with that inode, if this process
/// may see it.
#[must_use]
pub fn holder_of(inode: u64) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    let holds = |folder: &fs::DirEntry| {
        let fds = fs::read_dir(folder.path().join("fd")).into_iter().flatten().flatten();
        fds.into_iter()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == &wanted[..]))
    };
    let mut processes = fs::read_dir("/proc").ok()?.flatten().filter(|folder| {
        folder.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
    });
    let process = processes.find(holds)?;
    let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
    Some(format!("{} (process {})", name.trim_end(), process.file_name().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_sizes_are_read_and_written() {
        let text = "MemTotal: 5 kB\nHugePages_Free:       3\nx";
        assert_eq!(labelled(text, "HugePages_Free:"), Some(3));
        assert_eq!((labelled(text, "x"), labelled(text, "y")), (None, None));
        assert_eq!(
            (size(1), size(65_536), size(1 << 20)),
            ("1 KiB".into(), "64 KiB".into(), "1 MiB".into())
        );
        assert!(memlock().starts_with("memlock "));
    }

    #[test]
    fn the_holder_of_a_socket_is_found() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        let link = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
        let inode = link.to_str().unwrap().trim_matches(|c: char| !c.is_ascii_digit());
        let holder = holder_of(inode.parse().unwrap()).unwrap();
        assert!(holder.ends_with(&format!("(process {})", std::process::id())), "{holder}");
        assert_eq!(holder_of(u64::MAX), None);
    }
}
