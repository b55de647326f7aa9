//! Step `packages`: how many foreign packages the facade brings into a user's build.

use std::path::Path;

use anyhow::{Result, bail};

use crate::ratchet::{self, Ratchet};
use crate::shipped::{self, Package};

/// The most that the facade may ever bring in; the ratchet holds a number at or below it.
const CEILING: usize = 25;

/// Counts the packages below `linerate` and compares them with the ratchet.
pub fn run(root: &Path) -> Result<String> {
    judge(&shipped::tree(root, &["linerate"])?, Ratchet::read(root)?.packages)
}

fn judge(packages: &[Package], allowed: usize) -> Result<String> {
    let names: Vec<_> =
        packages.iter().filter(|package| package.foreign).map(|p| p.name.as_str()).collect();
    let n = names.len();
    if allowed > CEILING {
        bail!("{} allows {allowed} packages, the rule says {CEILING}", ratchet::PATH);
    }
    if n > allowed {
        bail!("linerate brings in {n} foreign packages, {allowed} allowed: {}", names.join(" "));
    }
    let hint = if n < allowed {
        format!("; {} can go down from {allowed}", ratchet::PATH)
    } else {
        String::new()
    };
    Ok(format!("{n} foreign packages{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(n: usize) -> Vec<Package> {
        let ours = Package { name: "linerate".into(), ..Package::default() };
        let package = Package { name: "dep".into(), foreign: true, ..Package::default() };
        [vec![ours], vec![package; n]].concat()
    }

    #[test]
    fn one_package_more_than_the_ratchet_is_refused() {
        assert_eq!(judge(&foreign(4), 4).unwrap(), "4 foreign packages");
        assert!(judge(&foreign(5), 4).is_err());
    }

    #[test]
    fn the_ratchet_itself_cannot_pass_the_ceiling() {
        assert!(judge(&foreign(1), CEILING + 1).is_err());
    }
}
