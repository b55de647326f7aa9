//! The text below a rendered table, by which its figures can be judged and measured again: quantity, tool, workload,
//! device, machine, and the document with the raw output.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::render::number;
use super::{ENDING, FOLDER, file, word};

/// The figures of whole sides, which no experiment's file defines.
const HEADS: [(&str, &str); 1] =
    [("memory_bytes", "Memory held for packets, at the end of a side.")];
/// The beginning of a definition that refers to the metric before it.
const SAME: &str = "The same";

/// Returns the definition of a metric, with the definitions that it refers to, and the tool, the workload and the
/// device of its document.
pub fn stated(document: &Value, metric: &str) -> Result<String> {
    let (mut defined, names) = (Vec::new(), metric.split(','));
    for name in names {
        defined.push(definition(document, name)?);
    }
    let id = said(document, "/experiment/id")?;
    let (version, title) = (said(document, "/run/tool/version")?, text(document, "title")?);
    let device = text(document, "device")?;
    Ok(format!(
        "{}\n\nTool: `linerate lab run {id}`, version {version}. Workload: {title}. Device: {device}.",
        defined.join(" ")
    ))
}

/// Returns the source of a figure: a link to the document, with CPU, clock, kernel, date, commit and noise.
pub fn source(machine: &str, document: &Value, up: &str) -> Result<String> {
    let noise = &document["env"]["noise"]["aa_half_width_pct"];
    let mhz = document["env"]["mhz"].as_f64().context("the document does not say /env/mhz")?;
    let virt =
        document["env"]["virt"].as_str().map_or(String::new(), |virt| format!(" under {virt}"));
    Ok(format!(
        "[{machine}]({up}{FOLDER}{machine}/{}{ENDING}): {}, {} MHz, {}{virt}, {}, commit {:.7}, median A/A ±{} %",
        said(document, "/experiment/id")?,
        said(document, "/env/cpu")?,
        number(mhz),
        said(document, "/env/kernel")?,
        said(document, "/run/started")?.split('T').next().unwrap_or_default(),
        said(document, "/run/tool/commit")?,
        noise.as_f64().map_or("-".to_owned(), number),
    ))
}

/// Returns the definition of a metric by the experiment's file, after the one that it refers to.
pub fn definition(document: &Value, name: &str) -> Result<String> {
    if let Some(head) = name.strip_prefix("head:") {
        let found = HEADS.iter().find(|(known, _)| *known == head);
        let (_, about) = found.with_context(|| format!("{head} is not defined in HEADS"))?;
        return Ok(format!("`{head}`: {about}"));
    }
    let file = file(document);
    let metrics = file.get("metric").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let named = |metric: &toml::Value| {
        Some((metric.get("name")?.as_str()?.to_owned(), metric.get("about")?.as_str()?.to_owned()))
    };
    let all: Vec<(String, String)> = metrics.iter().filter_map(named).collect();
    let Some(at) = all.iter().position(|(known, _)| known == name) else {
        bail!("the experiment does not say what {name} is");
    };
    let first = all[..=at].iter().rposition(|(_, about)| !about.starts_with(SAME)).unwrap_or(at);
    let told = all[first..=at].iter().map(|(name, about)| format!("`{name}`: {about}"));
    Ok(told.collect::<Vec<_>>().join(" "))
}

/// Returns a text of the experiment's file, without a full stop at its end.
fn text(document: &Value, key: &str) -> Result<String> {
    let said = file(document);
    let said = said.get(key).and_then(toml::Value::as_str).filter(|text| !text.is_empty());
    let said = said.with_context(|| format!("the experiment does not say its {key}"))?;
    Ok(said.trim_end_matches('.').to_owned())
}

/// Returns a text of the document.
fn said<'a>(document: &'a Value, pointer: &str) -> Result<&'a str> {
    match word(document, pointer) {
        "-" | "" | "unknown" => bail!("the document does not say {pointer}"),
        word => Ok(word),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::document;
    use super::*;

    /// S1.16.
    #[test]
    fn figure_without_tool_quantity_raw_output_or_conditions_is_refused() {
        let whole = document();
        let told = stated(&whole, "ticks_per_packet").unwrap();
        for part in [
            "`ticks_per_packet`: Ticks",
            "`linerate lab run buffers`, version 0.1.0",
            "Workload: Buffers.",
            "Device: none.",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let from = source("amd", &whole, "../").unwrap();
        for part in
            ["(../results/amd/buffers.json.gz)", "AMD EPYC, 2,596 MHz, Linux 6.18 under KVM, "]
        {
            assert!(from.contains(part), "{part}: {from}");
        }
        let without = |pointer: &str| {
            let mut document = whole.clone();
            *document.pointer_mut(pointer).unwrap() = json!(null);
            stated(&document, "ticks_per_packet").is_err() || source("amd", &document, "").is_err()
        };
        for pointer in [
            "/run/tool/version",
            "/run/tool/commit",
            "/run/config_toml",
            "/run/started",
            "/env/cpu",
            "/env/mhz",
            "/env/kernel",
            "/experiment/id",
        ] {
            assert!(without(pointer), "{pointer}");
        }
        for key in ["title", "device", "about"] {
            let mut document = whole.clone();
            let toml = word(&whole, "/run/config_toml").replace(key, "other");
            document["run"]["config_toml"] = toml.into();
            assert!(stated(&document, "ticks_per_packet").is_err(), "{key}");
        }
        assert!(stated(&whole, "head:memory_bytes").is_ok() && stated(&whole, "head:x").is_err());
    }

    #[test]
    fn definition_that_refers_to_another_follows_it() {
        let told = stated(&document(), "p99_ticks").unwrap();
        assert!(
            told.starts_with(
                "`p50_ticks`: Ticks, median. `p99_ticks`: The same, 99th percentile.\n"
            ),
            "{told}"
        );
    }
}
