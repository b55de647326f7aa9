//! Step `nocc`: our programs and libraries build on a machine with Rust and a linker, without C
//! tools.
//!
//! The build sees an empty environment and a `PATH` of a few tools. `cc` is there because rustc
//! links with it, behind a script that refuses to compile. A build script could still call a tool
//! by its full path, so the packages are looked at as well: none may link a native library or
//! bring in one of the packages that run C tools.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::shipped;

/// The packages to build, with their dependencies.
const SHIPPED: [&str; 3] = ["linerate", "linerate-cli", "linerate-lab-cli"];

/// Packages that exist to run C tools.
const C_TOOLS: [&str; 6] = ["autotools", "bindgen", "cc", "cmake", "pkg-config", "vcpkg"];

/// Tools that a linker needs in `PATH` besides `cc`, and tools that build scripts expect.
const TOOLS: [&str; 10] = ["as", "ld", "sh", "cat", "cp", "ls", "mkdir", "mv", "rm", "uname"];

/// Environment variables that the build keeps: the folders of Rust and its downloads.
const KEPT: [&str; 4] = ["HOME", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];

/// Builds the shipped tree with the C tools hidden.
pub fn run(root: &Path) -> Result<String> {
    let packages = shipped::tree(root, &SHIPPED, shipped::TARGET)?;
    refuse_c(shipped::linking(root, &packages)?, &packages)?;
    // Download before the build, because the bare environment may lack what downloads need (a
    // proxy, certificates).
    cargo::quiet(cargo::cargo(root).args(["fetch", "--locked"]))?;

    let target = cargo::target_dir(root).join("nocc");
    let path = bare_path(root, &target)?;
    let mut command = cargo::within(path.join("cargo"), cargo::LIMIT);
    command.env_clear().env("PATH", &path).env("CARGO_TARGET_DIR", &target);
    for name in KEPT {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    // Build without optimisation: the step only checks that the build succeeds.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.current_dir(root).args(["build", "--locked", "--offline"]);
    for name in SHIPPED {
        command.args(["--package", name]);
    }
    cargo::quiet(&mut command)?;
    Ok(format!("{} packages, none with C", packages.len()))
}

/// Fails if packages are `linking` native libraries, or run C tools.
fn refuse_c(linking: Vec<String>, packages: &BTreeSet<String>) -> Result<()> {
    let mut found = linking;
    let name = |package: &String| package.split(' ').next().unwrap_or_default().to_owned();
    found.extend(packages.iter().map(name).filter(|name| C_TOOLS.contains(&name.as_str())));
    if !found.is_empty() {
        bail!("the shipped tree needs C: {}", found.join(", "));
    }
    Ok(())
}

/// Returns a folder with Rust, the tools above and a `cc` that only links.
fn bare_path(root: &Path, target: &Path) -> Result<PathBuf> {
    let path = target.join("path");
    if path.exists() {
        fs::remove_dir_all(&path)?;
    }
    fs::create_dir_all(&path)?;
    let mut rustc = Command::new("rustc");
    let sysroot = cargo::quiet(rustc.args(["--print", "sysroot"]).current_dir(root))?;
    let rust = Path::new(sysroot.trim()).join("bin");
    for tool in ["cargo", "rustc"] {
        symlink(rust.join(tool), path.join(tool))?;
    }
    for tool in TOOLS {
        symlink(located(tool)?, path.join(tool))?;
    }
    let script = format!(
        "#!/bin/sh\n\
         for word; do\n\
         \x20 case $word in\n\
         \x20   -c|-E|-S|*.c|*.cc|*.cpp|*.cxx|*.s) echo 'cc: only linking is allowed' >&2; exit 1 ;;\n\
         \x20 esac\n\
         done\n\
         exec {} \"$@\"\n",
        located("cc")?.display()
    );
    let cc = path.join("cc");
    fs::write(&cc, script)?;
    fs::set_permissions(&cc, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn located(tool: &str) -> Result<PathBuf> {
    cargo::located(tool).with_context(|| format!("{tool} is not in PATH"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_that_link_libraries_or_run_c_tools_are_refused() {
        let packages = |names: [&str; 2]| names.map(|name| format!("{name} v1.0.0")).into();
        assert!(refuse_c(Vec::new(), &packages(["libc", "cc-like"])).is_ok());
        let why = refuse_c(Vec::new(), &packages(["libc", "cc"])).unwrap_err().to_string();
        assert_eq!(why, "the shipped tree needs C: cc");
        assert!(refuse_c(vec!["zlib links z".into()], &packages(["libc", "zlib"])).is_err());
    }
}
