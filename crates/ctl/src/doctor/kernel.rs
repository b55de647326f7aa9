//! The kernel's version, and what drivers have from which on.

use linerate_port::Registry;
use linerate_port::doctor::Findings;
use linerate_port::doctor::kernel::version;

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
    let drivers = Registry::default();
    let needs = drivers.drivers().iter().flat_map(|driver| driver.on_machine().kernels);
    let mut lacks: Vec<_> = needs.filter(|(from, _)| (major, minor) < *from).collect();
    lacks.sort_unstable();
    if lacks.is_empty() {
        found.ok(format!("Linux {major}.{minor}: has everything that is used"));
    } else {
        let lacks: Vec<&str> = lacks.into_iter().map(|(_, what)| *what).collect();
        found.warn(format!("Linux {major}.{minor} is old")).why(lacks.join("; "));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_release_is_judged_by_what_drivers_use() {
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
