//! Test that the experiment in docs/howto-lab.md runs without changes.

use std::path::Path;

use linerate_lab::experiment::Experiment;

#[test]
fn the_experiment_of_the_howto_is_one() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/howto-lab.md");
    let Ok(page) = std::fs::read_to_string(page) else {
        return println!("skipped: the crate is not in its tree");
    };
    let (_, rest) = page.split_once("```toml\n").expect("the page has a file in it");
    let (file, _) = rest.split_once("\n```").expect("that ends");
    let experiment = Experiment::parse(file, "budget.toml").unwrap();
    assert_eq!((experiment.cells.len(), experiment.cells(true).count()), (2, 1));
}
