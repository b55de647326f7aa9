//! The text below a rendered table, by which its figures can be judged and measured again:
//! quantity, tool, workload, device, machine, and the document with the raw output.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::number::{median, number};
use super::{ENDING, FOLDER, file, is_hash, word};

/// The figures of whole sides, which no experiment's file defines.
const HEADS: [(&str, &str); 1] =
    [("memory_bytes", "Memory held for packets, at the end of a side.")];
/// The beginning of a definition that refers to the metric before it.
const SAME: &str = "The same";

/// Returns the text of [`subject`].
pub fn stated(document: &Value, metric: &str) -> Result<String> {
    let [defined, id, title, device] = subject(document, metric)?;
    Ok(format!("{defined}\n\nTool: `linerate lab run {id}`. Workload: {title}. Device: {device}."))
}

/// Returns what a document measures: the definitions of metrics, with those that they refer to, the
/// experiment, the workload and the device.
pub fn subject(document: &Value, metric: &str) -> Result<[String; 4]> {
    let mut defined = Vec::new();
    for name in metric.split(',') {
        defined.push(definition(document, name)?);
    }
    let id = said(document, "/experiment/id")?.to_owned();
    Ok([defined.join(" "), id, text(document, "title")?, text(document, "device")?])
}

/// Returns the source of a figure: a link to the document, with CPU, clock, kernel, date, version
/// and commit of the tool, and the noise of the metric in `cells`. `name` is the document's, which
/// may be of a part of the experiment.
pub fn source(
    [machine, name]: [&str; 2],
    document: &Value,
    up: &str,
    metric: &str,
    cells: &[&Value],
) -> Result<String> {
    let commit = said(document, "/run/tool/commit")?;
    if !is_hash(commit) {
        bail!("{machine}: {commit} is no commit: run a build of a commit, with nothing changed");
    }
    let mhz = document["env"]["mhz"].as_f64().context("the document does not say /env/mhz")?;
    let virt =
        document["env"]["virt"].as_str().map_or(String::new(), |virt| format!(" under {virt}"));
    Ok(format!(
        "[{machine}]({up}{FOLDER}{machine}/{name}{ENDING}): {}, {} MHz, {}{virt}, {}, version {}, commit {commit:.7}{}",
        said(document, "/env/cpu")?,
        number(mhz),
        said(document, "/env/kernel")?,
        said(document, "/run/started")?.split('T').next().unwrap_or_default(),
        said(document, "/run/tool/version")?,
        noise(metric, cells),
    ))
}

/// Returns the noise of one metric or several: the median of what identical code differed by in the
/// cells. A figure of whole sides has none.
fn noise(metric: &str, cells: &[&Value]) -> String {
    if metric.starts_with("head:") {
        return String::new();
    }
    let of = |name: &str| {
        let all = cells.iter().map(|cell| cell["metrics"][name]["aa_half_width_pct"].as_f64());
        let mut all: Vec<f64> = all.flatten().collect();
        let whose = if name == metric { String::new() } else { format!(" of {name}") };
        match median(&mut all) {
            Some(pct) => format!(", median A/A{whose} ±{} %", number(pct)),
            None => format!(", no A/A{whose}"),
        }
    };
    metric.split(',').map(of).collect()
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

/// Returns a figure of a whole side, stored under `case=bulk load=max/a` with the factors in any
/// order.
pub fn of_side(document: &Value, at: &Value, side: &str, name: &str) -> Option<f64> {
    let wanted = at.as_object()?;
    let is = |key: &str| {
        let (cell, of) = key.rsplit_once('/').unwrap_or(("", key));
        let pairs: Vec<(&str, &str)> =
            cell.split(' ').filter_map(|one| one.split_once('=')).collect();
        of == side
            && pairs.len() == wanted.len()
            && pairs.iter().all(|(k, v)| wanted.get(*k).and_then(Value::as_str) == Some(*v))
    };
    let (_, figures) = document["heads"].as_object()?.iter().find(|(key, _)| is(key))?;
    figures[name].as_f64()
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
            "`linerate lab run buffers`",
            "Workload: Buffers.",
            "Device: none.",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let from = source(["amd", "buffers-ring"], &whole, "../", "ticks_per_packet", &[]).unwrap();
        for part in [
            "(../results/amd/buffers-ring.json.gz)",
            "AMD EPYC, 2,596 MHz, Linux 6.18 under KVM, ",
            ", version 0.1.0, commit ada9ede",
        ] {
            assert!(from.contains(part), "{part}: {from}");
        }
        let without = |pointer: &str| {
            let mut document = whole.clone();
            *document.pointer_mut(pointer).unwrap() = json!(null);
            stated(&document, "ticks_per_packet").is_err()
                || source(["amd", "buffers"], &document, "", "ticks_per_packet", &[]).is_err()
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
    fn figure_of_a_build_of_changed_sources_is_refused() {
        let mut changed = document();
        changed["run"]["tool"]["commit"] = "ada9edeeca8c-dirty".into();
        let error = source(["amd", "buffers"], &changed, "", "ticks_per_packet", &[]).unwrap_err();
        assert!(error.to_string().contains("-dirty"), "{error}");
    }

    #[test]
    fn noise_is_that_of_the_metric_in_the_cells_of_the_table() {
        let cell = |x: f64, y: f64| json!({"metrics": {"x": {"aa_half_width_pct": x}, "y": {"aa_half_width_pct": y}, "z": {}}});
        let cells = [cell(1.0, 10.0), cell(3.0, 30.0), json!({"metrics": {}})];
        let cells: Vec<&Value> = cells.iter().collect();
        assert_eq!(noise("x", &cells), ", median A/A ±2.00 %");
        assert_eq!(noise("x", &cells[1..]), ", median A/A ±3.00 %");
        assert_eq!(noise("x,z", &cells), ", median A/A of x ±2.00 %, no A/A of z");
        assert_eq!(noise("z", &cells), ", no A/A");
        assert_eq!(noise("head:memory_bytes", &cells), "");
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
