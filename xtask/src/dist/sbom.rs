//! The software bill of materials, as CycloneDX: every package that the x86-64 programs are
//! compiled from, procedural macros and build dependencies included.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::binaries::NATIVE;
use super::{Outcome, Place};
use crate::{cargo, shipped};

/// Writes the list of packages.
pub fn write(place: &Place) -> Result<Outcome> {
    let lock: toml::Table = fs::read_to_string(place.root.join("Cargo.lock"))?.parse()?;
    let (packages, sums) = (packages(place)?, checksums(&lock));
    let components: Vec<Value> = packages.iter().map(|package| component(package, &sums)).collect();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": "linerate", "version": place.version } },
        "components": components,
    });
    let path = place.out.join(format!("linerate-{}.cdx.json", place.version));
    fs::write(path, format!("{document:#}\n"))?;
    let foreign = components.iter().filter(|part| part["hashes"].is_array()).count();
    Ok(Outcome::Done(format!(
        "{foreign} foreign packages and {} of ours",
        components.len() - foreign
    )))
}

/// Returns cargo's metadata of each package that the x86-64 programs are compiled from.
pub fn packages(place: &Place) -> Result<Vec<Value>> {
    let parts = shipped::tree(&place.root, &["linerate-cli", "linerate-lab-cli"], NATIVE)?;
    let mut command = cargo::cargo(&place.root);
    let metadata = cargo::quiet(command.args(["metadata", "--locked", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let is_part = |package: &Value| {
        shipped::contains(&parts, word(package, "name"), word(package, "version"))
    };
    Ok(packages.iter().filter(|package| is_part(package)).cloned().collect())
}

/// Returns the text of a package's metadata with that key; empty if there is none.
pub fn word<'a>(package: &'a Value, key: &str) -> &'a str {
    package[key].as_str().unwrap_or_default()
}

/// Returns the checksums of foreign packages, by name and version.
fn checksums(lock: &toml::Table) -> BTreeMap<(&str, &str), &str> {
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let sums = packages.filter_map(|package| {
        let name = (package.get("name")?.as_str()?, package.get("version")?.as_str()?);
        Some((name, package.get("checksum")?.as_str()?))
    });
    sums.collect()
}

fn component(package: &Value, sums: &BTreeMap<(&str, &str), &str>) -> Value {
    let [name, version, licence] = ["name", "version", "license"].map(|key| word(package, key));
    let mut part = json!({ "type": "library", "name": name, "version": version });
    part["purl"] = json!(format!("pkg:cargo/{name}@{version}"));
    part["bom-ref"] = part["purl"].clone();
    if !licence.is_empty() {
        // Old manifests write alternatives as MIT/Apache-2.0, which is not valid SPDX.
        part["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    if let Some(sum) = sums.get(&(name, version)) {
        part["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_its_licence_as_spdx_and_its_checksum() {
        let lock =
            "[[package]]\nname = \"x\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n".parse().unwrap();
        let package = json!({ "name": "x", "version": "1.0.0", "license": "MIT/Apache-2.0" });
        let part = component(&package, &checksums(&lock));
        assert_eq!(part["purl"], "pkg:cargo/x@1.0.0");
        assert_eq!(part["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(part["hashes"][0]["content"], "ab");
        let own = component(&json!({ "name": "y", "version": "1.0.0" }), &checksums(&lock));
        assert!(own["hashes"].is_null() && own["licenses"].is_null(), "{own}");
    }
}
