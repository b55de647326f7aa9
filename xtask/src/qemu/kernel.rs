//! The kernels that guests run: Debian's packages, unpacked into a cache and never installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::qemu::apt;

/// A long-term series of kernels that is in use.
pub struct Series {
    /// The series's number, as given on the command line.
    pub name: &'static str,
    /// The series's folder in the cache.
    folder: &'static str,
    /// The package that depends on the newest kernel of the series.
    package: &'static str,
}

/// All series of kernels. The first series has the flavour for virtual machines, which boots
/// fastest but lacks `/dev/port` and drivers of old cards. The second series has the flavour with
/// both.
pub const SERIES: [Series; 2] =
    [Series { name: "6.1", folder: "6.1", package: "linux-image-cloud-amd64" }, NEWEST];

/// The series in the flavour with drivers of old cards.
pub const WITH_CARDS: [Series; 2] =
    [Series { name: "6.1", folder: "6.1-cards", package: "linux-image-amd64" }, NEWEST];

const NEWEST: Series = Series { name: "6.12", folder: "6.12", package: "linux-image-amd64" };

/// A kernel that can be booted.
#[derive(Clone)]
pub struct Kernel {
    /// The kernel's series, as given on the command line.
    pub series: &'static str,
    /// Output of `uname -r`.
    pub version: String,
    folder: PathBuf,
}

impl Kernel {
    /// Returns the kernel of `series` from `cache`, after downloading it if necessary.
    ///
    /// A cached kernel is never updated; delete its folder to download a newer one.
    pub fn obtain(cache: &Path, series: &Series) -> Result<Kernel> {
        let folder = cache.join(series.folder);
        if !folder.exists() {
            // Unpack under another name and rename afterwards, so that an interrupted run leaves no
            // incomplete kernel.
            let partial = cache.join(format!("{}.partial", series.folder));
            if partial.exists() {
                fs::remove_dir_all(&partial)?;
            }
            fs::create_dir_all(&partial)?;
            eprintln!("qemu: Linux {}: downloading {} ...", series.name, series.package);
            apt::unpack(cache, series.package, series.name, &partial)?;
            fs::rename(&partial, &folder)?;
        }
        Kernel::at(folder, series.name)
    }

    /// Returns the kernel in the folder that the variable `LINERATE_GUEST_KERNEL` names; `None` if
    /// it is not set.
    pub fn told() -> Option<Result<Kernel>> {
        let folder = std::env::var_os("LINERATE_GUEST_KERNEL")?;
        Some(Kernel::at(folder.into(), "told"))
    }

    fn at(folder: PathBuf, series: &'static str) -> Result<Kernel> {
        let boot = fs::read_dir(folder.join("boot")).context("the package has no /boot")?;
        let names = boot.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let version =
            names.filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned)).next();
        let version = version.context("the package has no kernel in /boot")?;
        let kernel = Kernel { series, version, folder };
        if !kernel.modules().is_dir() {
            bail!("the package has no {}", kernel.modules().display());
        }
        Ok(kernel)
    }

    /// Returns the path of the image that a boot loader loads.
    pub fn image(&self) -> PathBuf {
        self.folder.join("boot").join(format!("vmlinuz-{}", self.version))
    }

    /// Returns the folder of the kernel's modules.
    pub fn modules(&self) -> PathBuf {
        self.folder.join("lib/modules").join(&self.version)
    }
}

/// Returns the folder for kernels: in the user's cache if the user has one, else below `target`.
pub fn cache(target: &Path) -> PathBuf {
    match std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()) {
        Some(folder) => Path::new(&folder).join("linerate/kernels"),
        None => target.join("qemu/kernels"),
    }
}
