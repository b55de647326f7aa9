//! `cargo xtask keep`: copies the document of a run into `results/`, without names of a machine or
//! a person.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{ENDING, FOLDER, SCHEMA, is_hash, word};
use crate::steps::Done;

/// Keys of the environment that identify a machine and do not affect any figure.
const OF_A_MACHINE: [&str; 4] = ["irq_affinity", "cmdline", "load", "psi"];
/// Folders at the root that a stored document must not name, because they belong to a person or a
/// machine.
const PRIVATE: [&str; 5] = ["home", "root", "tmp", "work", "srv"];

/// The arguments, as the usage shows them.
pub const ARGUMENTS: &str = "RUN MACHINE [PART]";

/// Stores a run: `keep RUN MACHINE [PART]`, with the run's `run.json` or its directory.
///
/// MACHINE is the make of the CPU, its family and its model: `amd-family26-model2`. PART names the
/// cells of a run that has only some of its experiment's, so that it does not replace the others'
/// document: `packet` makes `coalesce-packet.json.gz`.
pub fn keep(root: &Path, args: &[String]) -> Result<Done> {
    let (run, machine, part) = match args {
        [run, machine] => (run, machine, None),
        [run, machine, part] => (run, machine, Some(part)),
        _ => bail!(
            "cargo xtask keep {ARGUMENTS}, as in: cargo xtask keep lab/20261122T134312Z-pool amd-family26-model2"
        ),
    };
    for word in [machine].into_iter().chain(part) {
        if !is_plain(word) {
            bail!(
                "{word:?} is not of small letters, digits and hyphens, as amd-family26-model2 is"
            );
        }
    }
    let run = Path::new(run);
    let path = if run.is_dir() { run.join("run.json") } else { run.into() };
    let text = fs::read_to_string(&path).with_context(|| {
        format!(
            "cannot read {} (a run that was interrupted has none: linerate lab run --resume)",
            path.display()
        )
    })?;
    let mut document: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} is no document", path.display()))?;
    if document["schema"] != SCHEMA || document["run"]["complete"] != true {
        bail!("{} is not the document of a complete run", path.display());
    }
    let commit = word(&document, "/run/tool/commit");
    if !is_hash(commit) {
        bail!(
            "{} was measured by a build of {commit:?}, which is no commit: commit the sources, build and run again",
            path.display()
        );
    }
    strip(&mut document);
    let host = fs::read_to_string("/proc/sys/kernel/hostname")
        .context("cannot read this machine's name, which the document must not have")?;
    if let Some(name) = private(&document.to_string(), host.trim()) {
        bail!("{} still has {name:?} in it: run it again from another folder", path.display());
    }
    let experiment = document["experiment"]["id"].as_str().unwrap_or_default();
    if !is_plain(experiment) {
        bail!("{} does not say of which experiment it is", path.display());
    }
    let part = part.map(|part| format!("-{part}")).unwrap_or_default();
    let to = store(root, machine, &format!("{experiment}{part}"), &document)?;
    let bytes = fs::metadata(&to)?.len();
    let at = to.strip_prefix(root).unwrap_or(&to).display();
    Ok(Done::from(format!("{at} ({bytes} bytes); now: cargo xtask tables")))
}

/// Returns true for a word of which a name in `results/` may consist.
pub fn is_plain(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !word.is_empty() && word.chars().all(is_plain)
}

/// Writes a document to its place in `results/`, and returns its path.
pub fn store(root: &Path, machine: &str, name: &str, document: &Value) -> Result<PathBuf> {
    let to = root.join(FOLDER).join(machine).join(format!("{name}{ENDING}"));
    fs::create_dir_all(to.parent().unwrap_or(root))?;
    pack(document, &to)?;
    Ok(to)
}

/// Writes a document through gzip, without a time or a name in its header.
pub(super) fn pack(document: &Value, to: &Path) -> Result<()> {
    let mut gzip = Command::new("gzip")
        .args(["-9", "-n", "-c"])
        .stdin(Stdio::piped())
        .stdout(fs::File::create(to).with_context(|| format!("cannot write {}", to.display()))?)
        .spawn()
        .context("cannot start gzip (apt-get install gzip)")?;
    let input = gzip.stdin.take().context("gzip has no input")?;
    serde_json::to_writer(std::io::BufWriter::new(input), document)?;
    if !gzip.wait()?.success() {
        bail!("gzip could not write {}", to.display());
    }
    Ok(())
}

/// Removes all data about a machine or a person from a document.
fn strip(document: &mut Value) {
    for env in ["/env", "/env/after"] {
        let Some(env) = document.pointer_mut(env).and_then(Value::as_object_mut) else { continue };
        env.retain(|name, _| !OF_A_MACHINE.contains(&name.as_str()));
        if let Some(kernel) = env.get_mut("kernel") {
            *kernel = kernel.as_str().map(release).unwrap_or_default().into();
        }
    }
    let argv = document.pointer_mut("/run/argv").and_then(Value::as_array_mut);
    for word in argv.into_iter().flatten() {
        let name = word.as_str().and_then(|word| word.rsplit('/').next()).map(str::to_owned);
        *word = name.unwrap_or_default().into();
    }
}

/// Returns `Linux 6.18` for `Linux 6.18.44-name-of-a-build`.
fn release(kernel: &str) -> String {
    let mut parts = kernel.split('.');
    let major = parts.next().unwrap_or_default();
    let minor = parts.next().unwrap_or_default();
    let minor: String = minor.chars().take_while(char::is_ascii_digit).collect();
    format!("{major}.{minor}")
}

/// Returns the private folder or the host name that occurs in the text; `None` if neither does.
fn private(text: &str, host: &str) -> Option<String> {
    let host = Some(host).filter(|host| host.len() >= 4 && *host != "localhost");
    let mut folders = PRIVATE.iter().map(|name| format!("/{name}/"));
    folders
        .find(|name| text.contains(name))
        .or(host.filter(|host| text.contains(host)).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::super::tests::document;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_loses_what_is_of_one_machine_and_keeps_its_figures() {
        let mut kept = document();
        kept["env"]["kernel"] = "Linux 6.18.44-of-a-farm".into();
        kept["env"]["cmdline"] = "root=/dev/x".into();
        kept["env"]["after"] = json!({"load": "1 2 3", "kernel": "Linux 6.1"});
        kept["run"]["argv"] = json!(["a/b/linerate", "lab", "run", "--dir", "x/lab"]);
        strip(&mut kept);
        assert_eq!(kept["env"]["kernel"], "Linux 6.18");
        assert_eq!(kept["env"].get("cmdline"), None);
        assert_eq!(kept["env"]["after"], json!({"kernel": "Linux 6.1"}));
        assert_eq!(kept["run"]["argv"], json!(["linerate", "lab", "run", "--dir", "lab"]));
        assert_eq!(kept["cells"], document()["cells"]);
        assert_eq!(kept["env"]["noise"], document()["env"]["noise"]);
    }

    #[test]
    fn a_folder_or_a_host_that_is_left_is_refused() {
        let folder = std::path::Path::new("/").join("home").join("x").display().to_string();
        let left = |text: &str| private(text, "host7");
        assert_eq!(left(&format!("in {folder}/y")).map(|at| at.len()), Some(6));
        assert_eq!(left("ran on host7").as_deref(), Some("host7"));
        assert_eq!(left("linerate"), None);
        assert_eq!(private("vm and localhost", "localhost"), None);
    }

    #[test]
    fn a_run_that_is_not_complete_or_has_no_place_is_refused_with_what_to_do() {
        let folder = std::env::temp_dir().join(format!("linerate-keep-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let words =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let run = folder.join("run.json").display().to_string();
        let mut document = document();
        let refused = |args: &[&str]| keep(&folder, &words(args)).err().map(|e| format!("{e:#}"));
        fs::write(&run, document.to_string()).unwrap();
        assert!(refused(&[]).unwrap().contains("cargo xtask keep RUN MACHINE"));
        assert!(refused(&[&run, "../up"]).unwrap().contains("amd-family26-model2"));
        assert!(refused(&["gone", "amd"]).unwrap().contains("--resume"));
        assert!(refused(&[&run, "amd"]).unwrap().contains("complete run"));
        document["run"]["complete"] = true.into();
        let commit = document["run"]["tool"]["commit"].take();
        document["run"]["tool"]["commit"] = "ada9edeeca8c-dirty".into();
        fs::write(&run, document.to_string()).unwrap();
        assert!(refused(&[&run, "amd"]).unwrap().contains("-dirty"));
        document["run"]["tool"]["commit"] = commit;
        let folder_of_a_person = Path::new("/").join("home").join("x").join("y");
        document["env"]["cpu"] = folder_of_a_person.to_str().into();
        fs::write(&run, document.to_string()).unwrap();
        assert!(refused(&[&run, "amd"]).unwrap().contains(" still has "));
        document["env"]["cpu"] = "AMD EPYC".into();
        fs::write(&run, document.to_string()).unwrap();
        assert_eq!(refused(&[folder.to_str().unwrap(), "amd"]), None);
        assert!(folder.join("results/amd/buffers.json.gz").exists());
        assert!(refused(&[&run, "amd", "a part"]).unwrap().contains("small letters"));
        assert_eq!(refused(&[&run, "amd", "ring"]), None);
        assert!(folder.join("results/amd/buffers-ring.json.gz").exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
