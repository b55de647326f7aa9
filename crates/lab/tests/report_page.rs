//! The page in a browser that has no network: it opens, it complains of nothing, it asks for nothing.

#[path = "report/fixture.rs"]
mod fixture;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use linerate_lab::report::html;

/// Chromium, if it is installed; else it is said that it is not.
fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&path)
        .flat_map(|dir| names.map(|name| dir.join(name)))
        .find(|file| file.is_file());
    if found.is_none() {
        println!("skipped: no chromium is installed");
    }
    found
}

fn open(chromium: &Path, page: &Path, dir: &Path) -> Output {
    Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--no-first-run", "--disable-background-networking", "--disable-extensions"])
        .args(["--host-resolver-rules=MAP * 0.0.0.0:9", "--proxy-server=0.0.0.0:9"])
        .args(["--enable-logging=stderr", "--v=0", "--window-size=390,900"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("--log-net-log={}", dir.join("net.json").display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap()
}

#[test]
fn the_page_opens_without_a_network_and_without_a_complaint() {
    let Some(chromium) = chromium() else { return };
    let dir = std::env::temp_dir().join(format!("linerate-page-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut older = fixture::pool();
    older.run.started = "2025-01-02T10:15:00Z".into();
    for runs in [vec![fixture::pool(), older], vec![fixture::skbinit()]] {
        let page = dir.join("run.html");
        std::fs::write(&page, html(&runs)).unwrap();
        let out = open(&chromium, &page, &dir);
        let (dom, log) =
            (String::from_utf8(out.stdout).unwrap(), String::from_utf8_lossy(&out.stderr));
        if dom.is_empty() {
            println!("skipped: chromium does not run here: {log}");
            continue;
        }
        assert!(dom.contains("<section id=\"conditions\">"), "{log}");
        assert!(!log.contains("CONSOLE"), "{log}");
        assert_eq!(dom.matches("<svg class=\"chart\"").count(), dom.matches("</desc>").count());
        let net = std::fs::read_to_string(dir.join("net.json")).unwrap_or_default();
        let asked = net.matches("\"url\":\"http").count();
        assert_eq!(asked, 0, "the page asked for something");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
