//! Tests with a full disk, in a mount namespace of its own.

use std::path::Path;
use std::process::Command;

use super::*;
use crate::record::read;
use linerate_testing::Scratch;

/// Environment variable with the path of the small disk, for the child process.
const DISK: &str = "LINERATE_TEST_SMALL_DISK";

/// Exit code of the shell that cannot mount the small disk.
const NO_MOUNT: i32 = 77;

#[test]
fn on_a_full_disk_the_pairs_so_far_are_kept_and_it_is_said_how_to_go_on() {
    if let Some(disk) = std::env::var_os(DISK) {
        return on_a_small_disk(Path::new(&disk));
    }
    let scratch = Scratch::new();
    let mount = "mount -t tmpfs -o size=48k none \"$LINERATE_TEST_SMALL_DISK\" || exit 77; \
                 exec \"$0\" --exact --nocapture \
                 runner::tests::full::\
                 on_a_full_disk_the_pairs_so_far_are_kept_and_it_is_said_how_to_go_on";
    let child = Command::new("unshare")
        .args(["--mount", "sh", "-c", mount])
        .arg(std::env::current_exe().unwrap())
        .env(DISK, &scratch.0)
        .output();
    let child = match child {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return println!("skipped: there is no `unshare` command");
        }
        child => child.unwrap(),
    };
    let told = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    if child.status.code() == Some(NO_MOUNT) || told.starts_with("unshare: ") {
        return println!("skipped: no small disk can be mounted: {told}");
    }
    assert!(told.contains("running 1 test"), "{told}");
    assert!(child.status.success(), "{told}");
}

fn on_a_small_disk(disk: &Path) {
    let mut experiment = grid();
    experiment.plan.looks = vec![60];
    let request = request_in(disk, experiment.clone());
    let e = Simulated::new().run(&request).unwrap_err();
    let dir = crate::record::find(disk, "last").unwrap();
    assert_eq!(e.code, Code::File);
    assert!(e.what.ends_with("pairs.ndjson"), "{e}");
    assert!(e.why.starts_with("No space left on device"), "{e}");
    assert!(e.why.ends_with(&format!("; the pairs so far are in {}", dir.display())), "{e}");
    let said = e.to_string();
    assert_eq!(
        (said.matches("the pairs so far").count(), said.matches("--resume").count()),
        (1, 1)
    );
    assert!(e.fix.contains(&format!("linerate lab run --resume {}", dir.display())), "{e}");
    let half = read(&dir).unwrap();
    let pairs = half.cells[0].pairs.len();
    assert!(pairs > 3 && !half.run.complete, "{pairs} pairs");
    assert!(codes(&half).contains(&"W-CUT"), "{:?}", half.warnings);
}
