//! `linerate lab seeds`, as its users run it.

#[path = "../../../crates/cli/tests/command/mod.rs"]
mod command;

use std::fs;

use command::run;
use linerate_testing::Scratch;

const POSTS: [(&str, &str); 2] = [
    ("002_79d1c05c8b9613cb.txt", include_str!("../../../tests/seeds/002_79d1c05c8b9613cb.txt")),
    ("003_5ab5121f9d39ea70.txt", include_str!("../../../tests/seeds/003_5ab5121f9d39ea70.txt")),
];

#[test]
fn all_five_posts_are_computed_again_and_nothing_fails() {
    let told = run("lab seeds");
    assert_eq!((told.exit, told.err.as_str()), (Some(0), ""), "{told:?}");
    let last = told.out.lines().last().unwrap();
    assert!(last.contains("checks, all as expected") && last.contains("shown above"), "{last}");
    for part in ["68 of 68", "24 of 24", "-61.8 %", "1,827,798", "DISAGREE", "18,456"] {
        assert!(told.out.contains(part), "{part}");
    }
    assert!(told.out.lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn one_document_holds_the_posts_that_were_asked_for_in_order() {
    let all = run("lab seeds --json").document();
    assert_eq!(all["schema"], "linerate-seeds/1");
    assert_eq!(all["posts"].as_array().unwrap().len(), 5);
    assert_eq!(all["outcome"]["failed"].as_array().unwrap().len(), 0);
    let two = run("lab seeds skbinit 0 4 --json").document();
    let ids: Vec<_> = two["posts"].as_array().unwrap().iter().map(|post| &post["id"]).collect();
    assert_eq!(ids, ["000", "004"]);
}

#[test]
fn as_posted_is_the_posts_own_table_and_nothing_else() {
    let told = run("lab seeds 3 --as-posted");
    assert_eq!((told.exit, told.err.as_str()), (Some(0), ""));
    let table: String = POSTS[1].1.lines().skip(5).take(68).map(|row| format!("{row}\n")).collect();
    assert_eq!(told.out, table);
}

#[test]
fn a_copy_whose_figures_do_not_hold_fails_its_check_by_name() {
    let copies = Scratch::new();
    let (file, text) = POSTS[1];
    let ranked = "mod_timer 1551 6997 5446";
    assert!(text.contains(ranked));
    let copy = text.replace(ranked, "mod_timer 1551 6997 5445");
    fs::write(copies.0.join(file), copy).unwrap();
    let told = run(&format!("lab seeds 003 --from {}", copies.0.display()));
    assert_eq!(told.exit, Some(3), "{told:?}");
    let last = told.out.lines().last().unwrap();
    assert!(told.out.contains("FAILED") && last.contains("post 003, line "), "{last}");
    assert!(told.out.contains("line 10: row 5: mod_timer 1551 6997 5445 posted"), "{}", told.out);
    let document = run(&format!("lab seeds 003 --json --from {}", copies.0.display()));
    assert_eq!(document.exit, Some(3));
    assert!(document.document()["outcome"]["failed"][0][1]["posted"].is_string());
    let bare = run(&format!("lab seeds 003 --as-posted --from {}", copies.0.display()));
    assert_eq!(bare.exit, Some(3));
    assert!(bare.err.contains("mod_timer") && !bare.out.contains("FAILED"), "{bare:?}");
}

#[test]
fn a_copy_that_cannot_be_read_is_told_of_by_its_line() {
    let copies = Scratch::new();
    let (file, text) = POSTS[0];
    let copy = text.replace("Size:512 Procs:8          69777", "Size:512 Procs:8          6977x");
    fs::write(copies.0.join(file), copy).unwrap();
    let words = format!("lab seeds 002 --from {}", copies.0.display());
    let told = run(&words);
    assert_eq!((told.exit, told.out.as_str()), (Some(1), ""), "{told:?}");
    assert!(
        told.err.starts_with("error[E-FILE]: cannot read post 002\n  why: line 117: "),
        "{told:?}"
    );
    assert_eq!(run(&format!("{words} --json")).document()["error"]["code"], "E-FILE");
    fs::write(copies.0.join(file), b"one line\nand \xff another\n").unwrap();
    let told = run(&words);
    assert!(told.err.contains("line 2 is not UTF-8"), "{told:?}");
    let told = run(&format!("lab seeds 004 --from {}", copies.0.display()));
    assert!(told.exit == Some(1) && told.err.contains("No such file"), "{told:?}");
}

#[test]
fn every_table_is_written_as_numbers() {
    let directory = Scratch::new();
    let theirs = directory.0.join("theirs");
    fs::write(&theirs, "precious").unwrap();
    std::os::unix::fs::symlink(&theirs, directory.0.join("004_cycles.csv")).unwrap();
    let told = run(&format!("lab seeds --csv {}", directory.0.display()));
    assert_eq!((told.exit, told.err.as_str()), (Some(0), ""));
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "precious", "written through a link");
    for path in told.out.lines() {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.lines().count() >= 2, "{path}: {text}");
    }
    let loads = fs::read_to_string(directory.0.join("001_packets_per_interrupt.csv")).unwrap();
    assert_eq!(loads.lines().nth(1), Some("25,2,3.5,1.75,45,17,2.6470588235294117"));
    let stream = run("lab seeds 4 --csv -");
    assert!(stream.out.starts_with("# 004_cycles.csv\nkernel,function,"), "{stream:?}");
}

#[test]
fn unknown_post_is_a_usage_error_that_names_all_posts() {
    for words in ["lab seeds 005", "lab seeds napi", "lab seeds --as-posted --csv -", "lab seed"] {
        let told = run(words);
        assert_eq!((told.exit, told.out.as_str()), (Some(2), ""), "{words}: {told:?}");
    }
    let told = run("lab seeds 005");
    assert!(told.err.contains("003, bounce"), "{told:?}");
    let help = run("lab");
    assert!(help.exit == Some(2) && help.err.contains("seeds"), "{help:?}");
    assert_eq!(run("lab seeds --help").exit, Some(0));
}
