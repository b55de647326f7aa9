//! Samples of code with known behaviour: the profile must show that behaviour.
//!
//! A test that changes its own process, its limits or its namespace runs in this file's own
//! `program`, started anew by the tests with a role.

use std::hint::black_box;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use linerate_prof::pmu::{self, is_refused};
use linerate_prof::profile::{Origin, Profile, Row, Space};
use linerate_prof::sample::{Recorder, Recording, Target, What};
use linerate_prof::{Code, Result};

const ROLE: &str = "LINERATE_SAMPLING_ROLE";

#[test]
#[ignore = "what the other tests start in a process of its own"]
fn program() {
    match std::env::var(ROLE).as_deref() {
        Ok("seven-three") => seven_to_three_in_a_process_alone(),
        Ok("short") => short_threads(),
        Ok("few-descriptors") => few_descriptors(),
        Ok("foreign-proc") => foreign_proc(),
        role => panic!("{ROLE} is {role:?}"),
    }
}

/// Prints the CPU time of each wake-up that the scheduler charges to a thread before its clock of
/// samples starts.
#[test]
#[ignore = "measures"]
fn each_wake_up_has_cpu_time_without_a_sample() {
    const ROUNDS: u32 = 50_000;
    for spin_us in [0, 10, 40, 160] {
        let spin = Duration::from_micros(spin_us);
        let Some(recording) = started(at(997).start(Target::ThisThread)) else { return };
        let start = thread_time();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            while start.elapsed() < spin {}
            std::thread::sleep(Duration::from_micros(1));
        }
        let took = thread_time() - start;
        let profile = recording.finish().unwrap();
        let sampled = Duration::from_nanos(profile.counted() * 1_003_009);
        let each = took.saturating_sub(sampled) / ROUNDS;
        println!(
            "{spin_us} us of work: {took:?} by the scheduler, {sampled:?} by samples, {each:?} a wake-up between"
        );
    }
}

/// Returns the CPU time of the calling thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs this program in the given role, and requires success.
fn run(role: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "program", "--nocapture"]).env(ROLE, role);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    print!("{stdout}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("1 passed"), "the test `program` did not run: {stdout}");
}

/// Does seven and three parts of the same work, for about a second in all. The work is in
/// registers, so that only its length determines its time; the portions have varying lengths, so
/// that no clock is in step with them.
fn seven_and_three() {
    let mut random = 88_172_645_463_325_252u64;
    for _ in 0..4000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let portion = 2_000 + random % 28_000;
        black_box(works_seven(7 * portion));
        black_box(works_three(3 * portion));
    }
}

#[inline(never)]
fn works_seven(turns: u64) -> u64 {
    (0..turns).fold(black_box(7), |x: u64, _| (x ^ x >> 9).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

#[inline(never)]
fn works_three(turns: u64) -> u64 {
    (0..turns).fold(black_box(3), |x: u64, _| (x ^ x >> 9).wrapping_mul(0xC2B2_AE3D_27D4_EB4F))
}

#[inline(never)]
fn works_late(turns: u64) -> u64 {
    (0..turns).fold(black_box(5), |x: u64, _| (x ^ x >> 9).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    // Keeps a frame pointer, as call chains need it, calls the next, and has 32 bytes.
    ".globl linerate_test_outer",
    ".type linerate_test_outer, @function",
    "linerate_test_outer:",
    "push rbp",
    "mov rbp, rsp",
    "call linerate_test_inner",
    "pop rbp",
    "ret",
    ".org linerate_test_outer + 32",
    ".size linerate_test_outer, 32",
    // Counts its argument down and has 64 bytes.
    ".globl linerate_test_inner",
    ".type linerate_test_inner, @function",
    "linerate_test_inner:",
    "push rbp",
    "mov rbp, rsp",
    "2:",
    "sub rdi, 1",
    "jnz 2b",
    "pop rbp",
    "ret",
    ".org linerate_test_inner + 64",
    ".size linerate_test_inner, 64",
);

#[cfg(target_arch = "x86_64")]
fn count_down(turns: u64) {
    unsafe extern "C" {
        fn linerate_test_outer(turns: u64);
    }
    // SAFETY: the function above counts a register down, keeps to the System V convention and
    // touches nothing but its stack.
    unsafe { linerate_test_outer(turns) }
}

/// Returns a recording, or prints the reason why this machine allows none.
fn started(recording: Result<Recording>) -> Option<Recording> {
    linerate_testing::unless(recording, is_refused)
}

fn at(hz: u32) -> Recorder {
    Recorder { calibrate: false, ..Recorder::new(What::Time { hz }) }
}

fn rows<'a>(profile: &'a Profile, part: &'a str) -> impl Iterator<Item = &'a Row> {
    profile.rows.iter().filter(move |row| row.symbol.contains(part))
}

fn count(profile: &Profile, part: &str) -> u64 {
    rows(profile, part).map(|row| row.count).sum()
}

fn show(profile: &Profile) -> String {
    let row =
        |row: &Row| format!("{:>6} {} ({:?} {:?})", row.count, row.symbol, row.object, row.space);
    let rows: Vec<String> = profile.rows.iter().take(12).map(row).collect();
    format!(
        "{} samples, {} lost\n{}\n{}",
        profile.counted(),
        profile.lost,
        rows.join("\n"),
        profile.remarks.join("\n")
    )
}

/// Checks the shares. Four standard deviations of 5,000 samples are 2.6 %; the shares are of the
/// two functions alone, because the program's other work is not known.
fn assert_seven_to_three(profile: &Profile) {
    let (seven, three) = (count(profile, "works_seven"), count(profile, "works_three"));
    assert!(seven + three >= 3_800, "too few for 3 %:\n{}", show(profile));
    let share = 100.0 * seven as f64 / (seven + three) as f64;
    println!("{seven} of {} samples, {share:.2} %, were in the 70 % function", seven + three);
    assert!((67.0..73.0).contains(&share), "{share} %:\n{}", show(profile));
    let of_all = (seven + three) as f64 / profile.counted() as f64;
    assert!(of_all > 0.9, "{of_all} of the samples are in the two:\n{}", show(profile));
}

/// Checks that there is a sample, taken or lost, for each 100 us of the target's CPU time.
fn assert_rate_of_10_khz(profile: &Profile) {
    let expected = profile.own_cost.unwrap().target_cpu_ns as f64 / 100_000.0;
    let seen = (profile.counted() + profile.lost) as f64;
    let fits = (0.9..1.1).contains(&(seen / expected));
    assert!(fits, "{seen} samples of {expected} periods\n{}", show(profile));
}

#[test]
fn a_function_that_works_seventy_per_cent_of_the_time_has_so_many_samples() {
    run("seven-three");
}

/// Runs in a process of its own: all threads of a process are sampled, so that no other test may
/// run in it.
fn seven_to_three_in_a_process_alone() {
    let Some(mut recording) = started(at(10_000).start(Target::ThisProcess)) else { return };
    // A thread that starts later is sampled, too.
    std::thread::spawn(seven_and_three).join().unwrap();
    recording.poll(Duration::ZERO).unwrap();
    let profile = recording.finish().unwrap();
    assert_seven_to_three(&profile);
    assert_rate_of_10_khz(&profile);
    assert_eq!(profile.origin, Origin::Clock);
    let row = rows(&profile, "works_seven").next().unwrap();
    assert_eq!(row.space, Space::User);
    let own = std::env::current_exe().unwrap();
    assert_eq!(row.object.as_deref(), own.to_str());
    let workload = profile.conditions.workload.unwrap();
    assert!(workload.contains("--exact program"), "{workload}");
}

#[test]
fn threads_too_short_for_a_sample_are_told() {
    run("short");
}

/// Does two seconds of work in threads of about 2 ms each, so that no thread lasts for a period of
/// 10 ms.
fn short_threads() {
    let Some(mut recording) = started(at(100).start(Target::ThisProcess)) else { return };
    for _ in 0..1000 {
        std::thread::spawn(|| works(works_late)).join().unwrap();
    }
    recording.poll(Duration::ZERO).unwrap();
    let profile = recording.finish().unwrap();
    let told = profile.remarks.iter().any(|remark| remark.contains("gave no sample"));
    let cpu_ns = profile.conditions.cpu_ns.unwrap();
    println!("{} samples of {cpu_ns} ns", profile.counted());
    // Below 100 periods nothing is said: a tenth of them may be chance.
    assert_eq!(told, cpu_ns >= 1_000_000_000, "{}", show(&profile));
    assert!(profile.counted() < cpu_ns / 20_000_000, "{}", show(&profile));
}

#[test]
fn all_threads_of_this_process_are_sampled_or_the_calling_one_alone() {
    for alone in [false, true] {
        let (go, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            if wait.recv().is_ok() {
                (0..100).for_each(|_| works(works_late));
            }
        });
        let target = if alone { Target::ThisThread } else { Target::ThisProcess };
        let Some(mut recording) = started(at(1_000).start(target)) else { return };
        go.send(()).unwrap();
        (0..100).for_each(|_| works(works_seven));
        thread.join().unwrap();
        recording.poll(Duration::ZERO).unwrap();
        let profile = recording.finish().unwrap();
        assert!(count(&profile, "works_seven") >= 30, "{}", show(&profile));
        let other = count(&profile, "works_late");
        assert!(if alone { other == 0 } else { other >= 30 }, "{}", show(&profile));
    }
}

#[test]
fn the_whole_machine_has_other_programs_as_one_row_and_its_idle_time() {
    let Some(mut recording) = started(at(1_000).start(Target::Machine)) else { return };
    // A program of its own that only computes, for some tenths of a second.
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    recording.poll(Duration::ZERO).unwrap();
    let profile = recording.finish().unwrap();
    let user: Vec<&Row> = profile.rows.iter().filter(|row| row.symbol == "USER").collect();
    assert!(user.len() == 1 && user[0].count >= 10, "{}", show(&profile));
    // Samples are of all CPUs for all of the time, idle or not.
    let cost = profile.own_cost.unwrap();
    let wall_ns = profile.conditions.wall_ns.unwrap() as f64;
    let cpus = f64::from(profile.conditions.cpus.unwrap());
    assert!(cost.target_cpu_ns as f64 >= 0.9 * cpus * wall_ns, "{cost:?} in {wall_ns} ns");
}

#[test]
fn time_in_the_kernel_is_seen_by_its_functions() {
    let Some(mut recording) = started(at(10_000).start(Target::ThisThread)) else { return };
    let mut zeros = std::fs::File::open("/dev/zero").unwrap();
    let mut buffer = vec![0u8; 64 << 10];
    // 4 GiB: some tenths of a second at least.
    (0..65_536).for_each(|_| zeros.read_exact(&mut buffer).unwrap());
    recording.poll(Duration::ZERO).unwrap();
    let profile = recording.finish().unwrap();
    let kernel: Vec<&Row> = profile.rows.iter().filter(|row| row.space == Space::Kernel).collect();
    let refused = |remark: &String| remark.contains("left out") || remark.contains("hides");
    if profile.remarks.iter().any(refused) {
        return println!("skipped: {}", show(&profile));
    }
    let total: u64 = kernel.iter().map(|row| row.count).sum();
    assert!(2 * total > profile.counted(), "most of it is the kernel's:\n{}", show(&profile));
    // Zeroes are written by a function that is called clear_user or read_zero.
    assert!(
        2 * count(&profile, "zero") + 2 * count(&profile, "clear") > total,
        "{}",
        show(&profile)
    );
    assert!(kernel.iter().all(|row| row.object.as_deref().is_some_and(|at| at.starts_with('['))));
    let sized: u64 =
        kernel.iter().filter(|row| row.code_bytes.is_some()).map(|row| row.count).sum();
    assert!(sized * 10 >= total * 9, "{}", show(&profile));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_function_of_known_size_has_its_bytes_and_its_caller() {
    let recorder = Recorder { call_chains: true, ..at(5_000) };
    let Some(mut recording) = started(recorder.start(Target::ThisThread)) else { return };
    count_down(1_000_000_000);
    recording.poll(Duration::ZERO).unwrap();
    let profile = recording.finish().unwrap();
    let row = rows(&profile, "linerate_test_inner").next().unwrap();
    assert_eq!(row.code_bytes, Some(64));
    assert!(row.count * 10 > profile.counted() * 9, "{}", show(&profile));
    assert_eq!(profile.stacks.iter().map(|at| at.count).sum::<u64>(), profile.counted());
    // Of the samples in the inner function nearly all name their caller.
    let called = |frames: &[String]| {
        let names: Vec<&str> = frames.iter().map(String::as_str).collect();
        names.windows(2).any(|pair| pair == ["linerate_test_outer", "linerate_test_inner"])
    };
    let called: u64 =
        profile.stacks.iter().filter(|at| called(&at.frames)).map(|at| at.count).sum();
    // Before and behind the loop there are a few instructions without a frame.
    assert!(called * 10 >= row.count * 9, "{called} of {}: {:?}", row.count, profile.stacks);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn samples_are_counted_by_thread() {
    let Some(mut recording) = started(at(5_000).start(Target::ThisThread)) else { return };
    count_down(200_000_000);
    recording.poll(Duration::ZERO).unwrap();
    // Process and thread 1 is another one.
    let me = linerate_sys::thread::id();
    let (ours, others) = (recording.samples_of(&[me]), recording.samples_of(&[1, -1]));
    let profile = recording.finish().unwrap();
    assert!(ours > 0 && ours <= profile.counted(), "{ours}: {}", show(&profile));
    assert_eq!(others, 0);
}

#[test]
fn events_are_sampled_by_their_period() {
    let what = What::Event { event: pmu::Event::parse("page-faults").unwrap(), period: 7 };
    let recorder = Recorder { calibrate: false, ..Recorder::new(what) };
    let Some(mut recording) = started(recorder.start(Target::ThisThread)) else { return };
    touch(7_000);
    recording.poll(Duration::ZERO).unwrap();
    let profile = recording.finish().unwrap();
    let seen = count(&profile, "writes_pages");
    // Faults of the rest shift the first: a sample more or less.
    assert!((999..=1001).contains(&seen), "{seen} samples\n{}", show(&profile));
    assert_eq!(profile.event.period, Some(7));
    assert_eq!(profile.event.name, "page-faults");
    assert_eq!(profile.origin, Origin::Kernel);
}

fn touch(pages: usize) {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    let bytes = pages * rustix::param::page_size();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping is new, private and ours alone until it is unmapped. Huge pages, which
    // would take fewer faults, are switched off before it is touched.
    unsafe {
        let at =
            mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE).unwrap();
        // A kernel without huge pages refuses, and needs no advice.
        let _ = madvise(at, bytes, Advice::LinuxNoHugepage);
        writes_pages(std::slice::from_raw_parts_mut(at.cast::<u8>(), bytes));
        munmap(at, bytes).unwrap();
    }
}

#[inline(never)]
fn writes_pages(memory: &mut [u8]) {
    for byte in memory.iter_mut().step_by(rustix::param::page_size()) {
        *byte = black_box(1);
    }
}

#[test]
fn an_event_of_the_cpu_is_sampled_or_refused_with_the_way_out() {
    let what = What::Event { event: pmu::Event::parse("cycles").unwrap(), period: 100_003 };
    let recorder = Recorder { calibrate: false, ..Recorder::new(what) };
    match recorder.start(Target::ThisThread) {
        Ok(recording) => {
            black_box(works_seven(50_000_000));
            let profile = recording.finish().unwrap();
            assert_eq!(profile.origin, Origin::Counter);
            assert!(count(&profile, "works_seven") > 100, "{}", show(&profile));
        }
        Err(e) => {
            // Counters of some virtual machines raise no interrupt.
            let is_without = e.why.contains("perf_event_open: Operation not supported");
            assert!(is_refused(&e) || is_without, "{e:?}");
            assert!(!e.fix.is_empty(), "{e:?}");
            println!("skipped: {e}");
        }
    }
}

#[test]
fn samples_beyond_the_ring_are_counted_as_lost() {
    let recorder = Recorder { ring_bytes: 1, ..at(10_000) };
    let Some(recording) = started(recorder.start(Target::ThisThread)) else { return };
    // The ring, of one page, is not read for some tenths of a second.
    (0..300).for_each(|_| works(works_seven));
    let profile = recording.finish().unwrap();
    assert!(profile.lost > 100, "{}", show(&profile));
    let page_holds = rustix::param::page_size() as u64 / 24;
    assert!((10..=page_holds).contains(&profile.counted()), "{}", show(&profile));
    assert_rate_of_10_khz(&profile);
}

#[test]
fn what_sampling_costs_is_told_and_a_rate_that_costs_too_much_is_named() {
    let recorder = Recorder::new(What::Time { hz: 1_000 });
    let Some(mut recording) = started(recorder.start(Target::ThisThread)) else { return };
    (0..300).for_each(|_| works(works_seven));
    recording.poll(Duration::ZERO).unwrap();
    let profile = recording.finish().unwrap();
    let cost = profile.own_cost.unwrap();
    println!("{cost:?}: {:.3?} % of the target's CPU time", cost.sampling_pct());
    assert!(cost.recorder_cpu_ns > 0 && cost.target_cpu_ns > 100_000_000, "{cost:?}");
    let Some(pct) = cost.sampling_pct() else {
        return println!("skipped: the cost of a sample could not be told from 0");
    };
    // A sample of 100 us would be no instrument; on hardware it takes some 2 us, or 0.2 %.
    assert!(pct < 10.0, "{pct} %: {cost:?}");
    let told = profile.remarks.iter().any(|remark| remark.starts_with("being sampled took"));
    assert_eq!(told, pct > 1.0, "{pct} %: {:?}", profile.remarks);
}

#[test]
fn a_limit_of_descriptors_is_told_before_anything_is_sampled() {
    // The limit is the whole process's: the test runs in one of its own.
    run("few-descriptors");
}

/// Leaves enough descriptors for the trial event, and none for the events that count.
fn few_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let recorder = at(1_000);
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let free = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap());
    let current = Some(u64::try_from(free).unwrap() + 1);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    // What is to be sampled is found with a descriptor, too.
    let e = match recorder.start(Target::ThisProcess) {
        Err(e) if is_refused(&e) => return println!("skipped: {e}"),
        Err(e) => e,
        Ok(recording) => panic!("{recording:?}"),
    };
    assert_eq!(e.code, Code::System, "{e}");
    assert!(e.why.contains("descriptors are needed, soft limit"), "{e}");
    assert!(e.fix.contains("ulimit -n ") || e.fix.contains("prlimit"), "{e}");
}

#[test]
fn a_process_that_lives_in_another_namespace_than_proc_is_refused_and_not_mistaken() {
    let mut inside = Command::new("unshare");
    let own = std::env::current_exe().unwrap();
    inside.args(["--pid", "--fork"]).arg(own).stdin(Stdio::null());
    inside.args(["--ignored", "--exact", "program", "--nocapture"]).env(ROLE, "foreign-proc");
    match inside.output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => println!("skipped: unshare: {e}"),
        Err(e) => panic!("unshare: {e}"),
        Ok(output) if String::from_utf8_lossy(&output.stderr).starts_with("unshare: ") => {
            println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(output) => {
            let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
            assert!(output.status.success() && ran, "{output:?}");
        }
    }
}

/// Runs as process 1 of its namespace, with a /proc in which process 1 is another.
fn foreign_proc() {
    let e = match at(1_000).start(Target::ThisProcess) {
        Err(e) => e,
        Ok(recording) => panic!("{recording:?}"),
    };
    assert!(matches!(e.code, Code::Permission | Code::Unsupported), "{e}");
    assert!(e.code == Code::Permission || e.why.contains("another PID namespace"), "{e}");
    let Some(mut recording) = started(at(1_000).start(Target::ThisThread)) else { return };
    (0..100).for_each(|_| works(works_seven));
    recording.poll(Duration::ZERO).unwrap();
    let profile = recording.finish().unwrap();
    assert!(count(&profile, "works_seven") >= 30, "{}", show(&profile));
}

/// Runs a million turns of one of the functions above.
fn works(function: fn(u64) -> u64) {
    black_box(function(1_000_000));
}
