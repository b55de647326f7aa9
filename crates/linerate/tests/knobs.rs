//! Checks that docs/knobs.md equals the page generated from the declarations.

use std::fmt::Write as _;
use std::path::Path;

use linerate::knob::{ENGINE, MODERATION, POOL, PORT};

const HEAD: &str = "\
# Settings

Each is declared once, in `linerate::knob`: builders clamp by it, the command's flags and help are made of it, and the lab's
factors have its range. `hot_list`, `frame_size`, `sample`, `budget` and `tx_batch` are flags (`--hot-list`); those of `moderation` are
parts of a mode (`--moderation adaptive:latency=250us`); `memory` is an option of `memif:`; `backlog` is a call of `EngineBuilder`.
A program can change those marked yes at run time; `linerate tune` changes `tx_batch` and the mode.
This page is rendered from the declarations: `LINERATE_RENDER=1 cargo test -p linerate --test knobs`.

| name | values | default | at run time | effect |
|---|---|---|---|---|
";

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
        let (unit, default, effect) = (knob.unit, knob.default_text(), knob.effect);
        writeln!(page, "| `{}` | {knob} {unit} | {default} | {live} | {effect} |", knob.name)
            .unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/knobs.md");
    if std::env::var_os("LINERATE_RENDER").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, page, "docs/knobs.md is not what the declarations say");
}
