//! The page in a browser that has no network: it opens, it complains of nothing, it asks for nothing.

#[path = "report/fixture.rs"]
mod fixture;

use std::path::{Path, PathBuf};
use std::process::Command;

use linerate_lab::report::html;

/// The page as a browser parsed it.
struct Opened {
    dom: String,
    log: String,
    /// Requests of the page: not those that a browser makes for itself.
    asked: usize,
}

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

/// Opens `page` with no network; `None` with the reason printed if the browser does not run here.
fn open(chromium: &Path, dir: &Path, page: &str) -> Option<Opened> {
    let file = dir.join("run.html");
    std::fs::write(&file, page).unwrap();
    let net = dir.join("net.json");
    let out = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--no-first-run", "--disable-background-networking", "--disable-extensions"])
        .args(["--host-resolver-rules=MAP * 0.0.0.0:9", "--proxy-server=0.0.0.0:9"])
        .args(["--enable-logging=stderr", "--v=0", "--window-size=390,900", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("--log-net-log={}", net.display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    let Some(net) = std::fs::read_to_string(net).ok().filter(|_| !out.stdout.is_empty()) else {
        println!("skipped: chromium does not run here: {log}");
        return None;
    };
    // The browser's own requests, as for its updates, have no page that they come from.
    let of_browser = net.matches("\"initiator\":\"not an origin\"").count();
    let asked = net.matches("\"initiator\":\"").count() - of_browser;
    Some(Opened { dom: String::from_utf8(out.stdout).unwrap(), log, asked })
}

#[test]
fn the_page_opens_without_a_network_and_without_a_complaint() {
    let Some(chromium) = chromium() else { return };
    let dir = std::env::temp_dir().join(format!("linerate-page-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut older = fixture::pool();
    older.run.started = "2025-01-02T10:15:00Z".into();
    let pages = [html(&[fixture::pool(), older]), html(&[fixture::skbinit()])];
    for opened in pages.iter().filter_map(|page| open(&chromium, &dir, page)) {
        let Opened { dom, log, asked } = opened;
        assert!(dom.contains("<section id=\"conditions\">"), "{log}");
        assert!(!log.contains("CONSOLE"), "{log}");
        assert_eq!(dom.matches("<svg class=\"chart\"").count(), dom.matches("</desc>").count());
        assert_eq!(asked, 0, "the page asked for something");
    }
    let bad = "<!doctype html><title>bad</title><img src=\"http://example.invalid/a.png\">\
               <script>console.error(\"bad\")</script>";
    if let Some(Opened { log, asked, .. }) = open(&chromium, &dir, bad) {
        assert!(log.contains("CONSOLE") && asked > 0, "a bad page is not told: {asked}, {log}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
