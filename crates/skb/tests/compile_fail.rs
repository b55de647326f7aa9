//! Programs that the borrow checker and the types refuse: each file of `compile_fail/` is a bug
//! that other packet libraries find at run time, if at all, and that does not compile here.
//!
//! The compiler's words are compared too, so that a file fails for the reason that it names and not
//! for a typing error. They belong to one compiler, the one that rust-toolchain.toml pins. After a
//! change of it, or of a signature that the messages quote, write them anew and read the
//! difference: `TRYBUILD=overwrite cargo test -p linerate-skb --test compile_fail`.
#![cfg(not(any(loom, miri)))]

use std::fs::File;
use std::io::ErrorKind;
use std::process::Command;

/// Compiled with this test and not by trybuild, which would build every dependency once more.
#[path = "compile_pass/ordinary_use.rs"]
mod ordinary_use;

#[test]
fn ordinary_use_compiles_and_runs() {
    ordinary_use::main();
}

#[test]
fn misuse_fails_to_compile_for_the_expected_reason() {
    if let Err(why) = same_words() {
        eprintln!("skipped: {why}");
        return;
    }
    // All files are checked in one go, because none of them must run. Were the scaffold itself
    // broken, the compiler's words would not be those that the files expect.
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}

/// Checks that this compiler is the one whose messages the files expect; returns the reason if not.
fn same_words() -> Result<(), String> {
    let Some(pinned) = pinned() else {
        return Err("no rust-toolchain.toml to say whose messages are expected".into());
    };
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = match Command::new(rustc).arg("--version").output() {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            return Err(format!("rustc: {e}"));
        }
        version => version.unwrap(),
    };
    let version = String::from_utf8_lossy(&version.stdout);
    let found = version.split_whitespace().nth(1).unwrap_or("unknown");
    if found != pinned {
        return Err(format!("the messages are of Rust {pinned}, this is {found}"));
    }
    let probe = std::env::temp_dir().join(format!("linerate-compiles-{}", std::process::id()));
    if let Err(e) = File::create_new(&probe).and_then(|_| std::fs::remove_file(&probe)) {
        return Err(format!("the compiler needs a temporary folder: {e}"));
    }
    // trybuild puts its own flags where RUSTFLAGS was; this one would win over them.
    if std::env::var_os("CARGO_ENCODED_RUSTFLAGS").is_some() {
        return Err("CARGO_ENCODED_RUSTFLAGS changes how messages are printed".into());
    }
    Ok(())
}

/// Returns the version that the workspace pins.
fn pinned() -> Option<String> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../rust-toolchain.toml");
    let text = std::fs::read_to_string(file).ok()?;
    let (_, channel) = text.split_once("channel = \"")?;
    Some(channel.split_once('"')?.0.to_owned())
}
