//! The facts that a reader needs in order to trust a run.

use super::view::View;
use super::words::{n, shown};

impl View<'_> {
    /// Returns the facts that a reader needs in order to trust the run, as pairs of subject and
    /// value.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let (head, env) = (&self.run.run, &self.run.env);
        let said = |key: &str| match &env[key] {
            serde_json::Value::String(text) => Some(shown(text)),
            _ => None,
        };
        let tool = |key: &str| head.tool.get(key).map_or("unknown".into(), |text| shown(text));
        let machine = ["cpu", "kernel", "virt", "clocksource"].into_iter().filter_map(said);
        let (rates, costs, all) = self.pairs();
        let [a, b] = self.sides();
        let title = self.experiment.as_ref().map_or(String::new(), |e| format!(": {}", e.title));
        let floor = self.floor_pct().map_or("n/a: no control was measured".into(), |width| {
            format!("±{width:.2} % at most, of the headline: identical code differed by that",)
        });
        let program = format!(
            "{}, commit {}, built by {} for {}",
            tool("version"),
            tool("commit"),
            tool("rustc"),
            tool("target_cpu")
        );
        let mut facts = vec![
            ("experiment", format!("{}{}", shown(&self.run.experiment.id), shown(&title))),
            ("sides", format!("A = {a}, B = {b}")),
            ("machine", known(machine.collect::<Vec<_>>().join("; "))),
            ("CPUs", known(cpus(env))),
            ("counters", counters(env)),
            ("program", program),
            (
                "pairs",
                format!("{} attempted; costs from {}, rates from {}", n(all), n(costs), n(rates)),
            ),
            ("A/A floor", floor),
            (
                "run",
                format!(
                    "{}, {} to {}, seed {}",
                    shown(&head.id),
                    shown(&head.started),
                    shown(&head.finished),
                    head.seed
                ),
            ),
            ("command", self.command()),
        ];
        facts.extend(head.note.iter().map(|note| ("note", shown(note))));
        facts
    }

    /// The command, as a shell takes it again: the program by its name, wherever it was.
    pub fn command(&self) -> String {
        let quoted = |arg: &String| {
            let arg = shown(arg);
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
            match !arg.is_empty() && arg.chars().all(plain) {
                true => arg,
                false => format!("'{}'", arg.replace('\'', "'\\''")),
            }
        };
        let argv = &self.run.run.argv;
        let program = argv.first().map(|path| path.rsplit('/').next().unwrap_or(path).to_owned());
        let words = program.iter().chain(argv.iter().skip(1)).map(quoted);
        known(words.collect::<Vec<_>>().join(" "))
    }
}

/// `0 dut, 1 gen`
fn cpus(env: &serde_json::Value) -> String {
    let each = env["cpus"].as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(|cpu| {
        let role = cpu["role"].as_str().unwrap_or("role not said");
        Some(format!("{} {}", cpu["id"].as_u64()?, shown(role)))
    });
    each.take(64).collect::<Vec<_>>().join(", ")
}

fn counters(env: &serde_json::Value) -> String {
    match env["pmu"]["available"].as_bool() {
        Some(true) => "of the CPU's events".into(),
        Some(false) => "none: this machine does not let the CPU's events be counted".into(),
        None => "not said".into(),
    }
}

fn known(text: String) -> String {
    if text.is_empty() { "not recorded".into() } else { text }
}
