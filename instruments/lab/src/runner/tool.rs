//! The program that made a run, as far as it knows itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::sync::LazyLock;

/// The part of the program that is searched for the compiler's traces, in bytes.
const PROGRAM_MAX_BYTES: u64 = 256 << 20;
/// The text that rustc writes into every program, before its version.
const PRODUCER: &[u8] = b"rustc version ";
/// The head of a note of type 3, a build ID: sizes of name and value, type, name.
const NOTE_TYPE_AND_NAME: &[u8] = b"\x03\0\0\0GNU\0";
/// The longest build ID, in bytes: of SHA-256.
const BUILD_ID_MAX_BYTES: usize = 32;

/// Version, commit, `build_id`, rustc and `target_cpu`; `unknown` where it is not known.
///
/// The commit is the caller's to say: whoever builds a program knows what it is built from.
///
/// Cost: reads the program's file once in a process.
pub(super) fn tool(commit: Option<&str>) -> BTreeMap<String, String> {
    static PROGRAM: LazyLock<Left> = LazyLock::new(|| Left::of(&program()));
    let said = |value: Option<&str>| value.unwrap_or("unknown").to_owned();
    BTreeMap::from([
        ("version".into(), env!("CARGO_PKG_VERSION").into()),
        ("commit".into(), said(commit)),
        ("build_id".into(), said(PROGRAM.build_id.as_deref())),
        ("rustc".into(), said(PROGRAM.rustc.as_deref())),
        ("target_cpu".into(), target_cpu()),
    ])
}

/// The traces of compiler and linker in a program.
#[derive(Debug, PartialEq)]
struct Left {
    build_id: Option<String>,
    rustc: Option<String>,
}

impl Left {
    fn of(program: &[u8]) -> Left {
        Left { build_id: build_id(program), rustc: rustc(program) }
    }
}

fn program() -> Vec<u8> {
    let mut program = Vec::new();
    let file = File::open("/proc/self/exe").map(|file| file.take(PROGRAM_MAX_BYTES));
    // What could not be read says nothing, which is printed as unknown.
    let _ = file.and_then(|mut file| file.read_to_end(&mut program));
    program
}

/// The value of the first note of GNU's type 3, which linkers put near the file's head.
fn build_id(program: &[u8]) -> Option<String> {
    let at = find(program, NOTE_TYPE_AND_NAME)?;
    let size = program.get(at.checked_sub(4)?..at)?;
    let size = u32::from_le_bytes(size.try_into().ok()?) as usize;
    let value = at + NOTE_TYPE_AND_NAME.len();
    let value = program.get(value..value + size.min(BUILD_ID_MAX_BYTES))?;
    Some(value.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn rustc(program: &[u8]) -> Option<String> {
    // This function's own constant is in the program too, and no version follows it.
    let mut rest = program;
    while let Some(at) = find(rest, PRODUCER) {
        rest = rest.get(at + PRODUCER.len()..)?;
        let version: Vec<u8> =
            rest.iter().copied().take(60).take_while(|byte| matches!(byte, 0x20..0x7f)).collect();
        if version.first().is_some_and(u8::is_ascii_digit) {
            return String::from_utf8(version).ok();
        }
    }
    None
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// The architecture, and what of its extensions the compiler was allowed to use.
fn target_cpu() -> String {
    let features = [
        ("sse4.2", cfg!(target_feature = "sse4.2")),
        ("avx2", cfg!(target_feature = "avx2")),
        ("avx512f", cfg!(target_feature = "avx512f")),
        ("lse", cfg!(target_feature = "lse")),
        ("sve", cfg!(target_feature = "sve")),
    ];
    let used: Vec<&str> =
        features.iter().filter(|(_, used)| *used).map(|(name, _)| *name).collect();
    let used = if used.is_empty() { "baseline".into() } else { used.join(" ") };
    format!("{} {used}", std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_knows_its_compiler() {
        let tool = tool(None);
        assert!(tool["rustc"].starts_with("1."), "{tool:?}");
        assert_eq!(tool["version"], env!("CARGO_PKG_VERSION"));
        assert!(tool["target_cpu"].starts_with(std::env::consts::ARCH));
    }

    #[test]
    fn a_build_id_is_found_by_its_note_and_one_that_is_cut_off_is_none() {
        let note = b"..\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0\xab\x01rest";
        // Sizes of name and value stand before the type: 4, then 2.
        assert_eq!(build_id(note).as_deref(), Some("ab01"));
        assert_eq!(build_id(&note[..note.len() - 5]), None);
        assert_eq!(build_id(b"GNU"), None);
    }

    #[test]
    fn text_that_only_speaks_of_a_compiler_is_no_version() {
        let program = b"rustc version unknown\0rustc version 1.95.0 (abc)\0";
        assert_eq!(rustc(program).as_deref(), Some("1.95.0 (abc)"));
        assert_eq!(rustc(b"rustc version "), None);
    }
}
