//! Programs whose files went, changed or are absurd: named by what ran, or not at all.

use super::*;

#[test]
fn a_program_that_is_deleted_while_it_runs_is_no_failure() {
    let name = format!("linerate-deleted-{}", std::process::id());
    let path = std::env::temp_dir().join(&name);
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    let mut command = Command::new(&path);
    command.args(["--ignored", "--exact", "program"]).env(ROLE, "seven-three");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let recording = at(1_000).start(Target::Child(command));
    std::fs::remove_file(&path).unwrap();
    let Some(mut recording) = started(recording) else { return };
    recording.wait().unwrap();
    let profile = recording.finish().unwrap();
    let row = rows(&profile, &name).next().unwrap();
    assert!(row.symbol.starts_with('[') && row.symbol.ends_with(": no symbol]"), "{}", row.symbol);
    assert!(2 * row.count > profile.counted(), "{}", show(&profile));
    assert_eq!((row.address, row.code_bytes), (None, None));
    assert!(row.object.as_ref().is_some_and(|at| at.contains(&name)), "{}", show(&profile));
    // One row, however many addresses.
    assert_eq!(rows(&profile, &name).count(), 1, "{}", show(&profile));
    let told = |remark: &String| remark.contains("gone or has changed");
    assert!(profile.remarks.iter().any(told), "{}", show(&profile));
}

/// The program with that role, started from a file of its own, and where that is.
fn copied(name: &str, role: &str) -> (std::path::PathBuf, Command) {
    let path = std::env::temp_dir().join(format!("linerate-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    let mut command = Command::new(&path);
    command.args(["--ignored", "--exact", "program"]).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    (path, command)
}

#[test]
fn another_file_where_the_program_was_gives_no_names_and_a_pipe_there_does_not_stop_us() {
    let other = |path: &std::path::Path| std::fs::copy("/bin/ls", path).is_ok();
    let pipe = |path: &std::path::Path| {
        Command::new("mkfifo").arg(path).status().is_ok_and(|status| status.success())
    };
    let put: [&dyn Fn(&std::path::Path) -> bool; 2] = [&other, &pipe];
    for put in put {
        let (path, command) = copied("replaced", "seven-three");
        let Some(mut recording) = started(at(1_000).start(Target::Child(command))) else { return };
        while recording.poll(Duration::from_millis(20)).unwrap().samples < 50 {}
        std::fs::remove_file(&path).unwrap();
        assert!(put(&path));
        recording.wait().unwrap();
        let profile = recording.finish().unwrap();
        std::fs::remove_file(&path).unwrap();
        let base = path.file_name().unwrap().to_str().unwrap().to_owned();
        let row = &profile.rows[0];
        assert_eq!(row.symbol, format!("[{base}: no symbol]"), "{}", show(&profile));
        assert!(2 * row.count > profile.counted(), "{}", show(&profile));
        let told = |remark: &String| remark.contains("gone or has changed");
        assert!(profile.remarks.iter().any(told), "{}", show(&profile));
    }
}

#[test]
fn a_program_that_is_deleted_and_still_runs_has_its_names() {
    let (path, command) = copied("running", "seven-three-long");
    let recording = at(1_000).start(Target::Child(command));
    std::fs::remove_file(&path).unwrap();
    let Some(mut recording) = started(recording) else { return };
    let mut progress = recording.poll(Duration::ZERO).unwrap();
    while progress.target_alive && progress.samples < 300 {
        progress = recording.poll(Duration::from_millis(100)).unwrap();
    }
    if !progress.target_alive {
        return println!("skipped: the program ended before it was sampled");
    }
    let child = recording.child().unwrap();
    let profile = recording.finish().unwrap();
    let kill = Command::new("kill").arg(child.to_string()).status();
    assert!(kill.is_ok(), "{kill:?}");
    if profile.remarks.iter().any(|remark| remark.contains("gone or has changed")) {
        // Without a build ID the deletion is a change like any other.
        return println!("skipped: this linker writes no build ID");
    }
    assert!(count(&profile, "works_seven") > 50, "{}", show(&profile));
}

/// The recorder reads a program's file, and died of one that got shorter meanwhile.
#[test]
fn a_program_of_absurd_size_is_left_out_with_the_reason() {
    // The list of sections, behind 8 GiB of nothing that are said to be symbols.
    let (path, command) = copied("absurd", "seven-three");
    let bytes = std::fs::read(&path).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let half = |at: usize| usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()));
    let (list, sections) = (usize::try_from(word(40)).unwrap(), half(60));
    let mut changed = bytes.clone();
    for section in (0..sections).map(|n| list + 64 * n) {
        if changed[section + 4..section + 8] == 2u32.to_le_bytes() {
            changed[section + 32..section + 40].copy_from_slice(&(8u64 << 30).to_le_bytes());
        }
    }
    std::fs::write(&path, &changed).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(16 << 30).unwrap();
    drop(file);
    let Some(mut recording) = started(at(1_000).start(Target::Child(command))) else { return };
    recording.wait().unwrap();
    let profile = recording.finish().unwrap();
    std::fs::remove_file(&path).unwrap();
    // Debug information, where there is any, names them still.
    let base = path.file_name().unwrap().to_str().unwrap();
    let named = count(&profile, "works_seven") + count(&profile, base);
    assert!(2 * named > profile.counted(), "{}", show(&profile));
    let told = |remark: &String| remark.contains("too long to be true");
    assert!(profile.remarks.iter().any(told), "{}", show(&profile));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn code_without_a_file_is_named_for_what_it_is() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    // sub rdi, 1; jnz to the start; ret
    const COUNTS_DOWN: [u8; 7] = [0x48, 0x83, 0xef, 0x01, 0x75, 0xfa, 0xc3];
    let recorder = at(1_000).call_chains(true);
    let Some(mut recording) = started(recorder.start(Target::ThisThread)) else { return };
    let protection = ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC;
    // SAFETY: the page is new and ours; what is called is the code above, which counts the first
    // argument of the System V convention down and touches nothing else.
    unsafe {
        let page =
            mmap_anonymous(std::ptr::null_mut(), 4096, protection, MapFlags::PRIVATE).unwrap();
        page.cast::<[u8; 7]>().write(COUNTS_DOWN);
        let code: extern "sysv64" fn(u64) = std::mem::transmute(page);
        code(500_000_000);
        munmap(page, 4096).unwrap();
    }
    recording.poll(Duration::ZERO).unwrap();
    let profile = recording.finish().unwrap();
    let row = rows(&profile, "[anonymous memory]").next().unwrap();
    assert!(2 * row.count > profile.counted(), "{}", show(&profile));
    assert_eq!((row.address, row.code_bytes, row.space), (None, None, Space::User));
    let told = |remark: &String| remark.contains("in [anonymous memory]");
    assert!(profile.remarks.iter().any(told), "{}", show(&profile));
}
