//! Checks that docs/knobs.md equals the page generated from the declarations.

use std::fmt::Write as _;
use std::path::Path;

use linerate::knob::{ENGINE, MODERATION, POOL, PORT};

const HEAD: &str = "\
# Settings

Each setting is declared once, in `linerate::knob`. Builders limit a value to its range; the command's flags and help, and the lab's
experiments, use the same range. Flags of the command: `--hot-list`, `--frame-size`, `--sample`, `--budget`, `--tx-batch`. The settings
`moderation_…` are written in a mode (`--moderation adaptive:latency=250us`), `memory` is an option of `memif:`, and `backlog` is a call of `EngineBuilder`.
A program can change a setting at run time if the column says yes; `linerate tune` changes `tx_batch` and the moderation.
This page is rendered from the declarations: `LINERATE_RENDER=1 cargo test -p linerate --test knobs`.

| name | values | default | at run time | effect |
|---|---|---|---|---|
";

/// Default of `tx_batch`.
const AUTO: &str = "`auto`: all waiting packets if there are at most 64; if there are more, as many as have 256 KiB, but at least 64";

#[test]
fn page_of_settings_is_rendered_from_the_declarations() {
    let mut page = HEAD.to_owned();
    for knob in POOL.into_iter().chain(ENGINE).chain(MODERATION).chain(PORT) {
        let live = match knob.name {
            // A running engine does not change those of its workers.
            "hot_list" => "yes, of a program's own `Local`",
            _ if knob.live => "yes",
            _ => "no",
        };
        let (unit, effect) = (knob.unit, knob.effect);
        let (values, default) = match knob.name {
            // The default is no number.
            "tx_batch" => (format!("{knob} {unit}, or `auto`"), AUTO.to_owned()),
            _ => (format!("{knob} {unit}"), knob.default_text()),
        };
        writeln!(page, "| `{}` | {values} | {default} | {live} | {effect} |", knob.name).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/knobs.md");
    if std::env::var_os("LINERATE_RENDER").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, page, "docs/knobs.md is not what the declarations say");
}
