//! The kernel's version, and what it has from which on.

use super::finding::Findings;
use super::proc;

/// AF_XDP as it is used here: attached by a link.
const LINKS: (u32, u32) = (5, 9);
/// TAP with segmentation of UDP.
const TAP_USO: (u32, u32) = (6, 2);
/// AF_XDP with packets in several frames.
pub(super) const FRAGS: (u32, u32) = (6, 6);

/// Major and minor number of the kernel.
pub(super) fn version() -> Option<(u32, u32)> {
    numbers(&proc::text("/proc/sys/kernel/osrelease")?)
}

/// Compares the kernel with what is used of it.
pub(super) fn examine(found: &mut Findings) {
    match version() {
        Some(version) => judge(version, found),
        None => {
            found.warn("the kernel does not tell its version").why("/proc is not mounted");
        }
    }
}

fn judge((major, minor): (u32, u32), found: &mut Findings) {
    const NEEDS: [((u32, u32), &str); 3] = [
        (LINKS, "xdp needs 5.9"),
        (TAP_USO, "superframes of UDP by tap need 6.2"),
        (FRAGS, "packets longer than a frame by xdp need 6.6"),
    ];
    let lacks: Vec<&str> =
        NEEDS.iter().filter(|(from, _)| (major, minor) < *from).map(|(_, what)| *what).collect();
    if lacks.is_empty() {
        found.ok(format!("Linux {major}.{minor}: has everything that is used"));
    } else {
        found.warn(format!("Linux {major}.{minor} is old")).why(lacks.join("; "));
    }
}

/// `6.18.44-foo` is (6, 18).
fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_release_is_read_and_judged() {
        assert_eq!(numbers("6.18.44-foo\n"), Some((6, 18)));
        assert_eq!(numbers("5.10-rc1"), Some((5, 10)));
        assert_eq!((numbers("six"), numbers("6")), (None, None));
        assert!(version().is_some());
        let of = |version| {
            let mut found = Findings::default();
            judge(version, &mut found);
            found.into_vec().remove(0)
        };
        assert_eq!(of((6, 6)).level, Level::Ok);
        let old = of((5, 15));
        assert_eq!(old.level, Level::Warn);
        assert!(old.why.unwrap().starts_with("superframes of UDP"));
        assert!(of((5, 4)).why.unwrap().starts_with("xdp needs 5.9"));
    }
}
