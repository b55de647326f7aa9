//! Parser of a guest's console, which has lines of init, starting with `guest: `, and lines of the
//! test programs, which run one after the other.

use std::process::ExitStatus;
use std::time::Duration;

use crate::qemu::laps::Laps;

/// Part of the first line of a panic; its message is the next line.
const PANICKED: &str = " panicked at ";
/// Name of the program that runs scenarios.
const SCENARIOS: &str = "scenarios";
/// Most lines of one test that are kept as the reason of its failure.
const SAID_MAX: usize = 12;

/// The results of one guest's tests.
#[derive(Debug)]
pub struct Outcome {
    /// Number of tests reported as passed, including skipped tests.
    passed: usize,
    /// Number of tests reported as ignored.
    ignored: usize,
    /// Failed tests.
    pub failed: Vec<String>,
    /// Lines that failed tests printed about their failures.
    pub reasons: Vec<String>,
    /// Complaints that are no failed test: programs that died or were stopped, and a refused
    /// setting.
    faults: Vec<String>,
    /// Skipped tests, each with the reason.
    pub skipped: Vec<(String, String)>,
    /// Number of tests that have begun.
    pub begun: usize,
    /// Number of programs that have ended.
    programs: usize,
    /// Durations of the boot and of each program.
    pub parts: Laps,
    /// Duration of each test.
    pub tests: Laps,
    program: String,
    test: String,
    /// Lines of the test that are kept if it fails.
    said: Vec<String>,
    /// The final message of init.
    done: Option<String>,
}

impl Outcome {
    /// Returns the outcome of a guest that starts now.
    pub fn new() -> Outcome {
        Outcome {
            passed: 0,
            ignored: 0,
            failed: Vec::new(),
            reasons: Vec::new(),
            faults: Vec::new(),
            skipped: Vec::new(),
            begun: 0,
            programs: 0,
            parts: Laps::from_the_start("boot"),
            tests: Laps::from_the_start(""),
            program: String::new(),
            test: "the boot".to_owned(),
            said: Vec::new(),
            done: None,
        }
    }

    /// Parses the next line of the console; `at` is the time since the start.
    pub fn line(&mut self, line: &str, at: Duration) {
        if let Some(said) = line.strip_prefix("guest: ") {
            return self.guest(said, at);
        }
        self.hear(line);
        // A scenario that failed quotes what its programs printed, which may be lines of tests.
        if line.starts_with("| ") {
            return;
        }
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.tests.next("", at);
            let words = rest.split_whitespace();
            for (n, word) in words.clone().zip(words.skip(1)) {
                match word {
                    "passed;" => self.passed += n.parse().unwrap_or(0),
                    "ignored;" => self.ignored += n.parse().unwrap_or(0),
                    _ => {}
                }
            }
            return;
        }
        if let Some((test, said)) =
            line.strip_prefix("test ").and_then(|rest| rest.split_once(" ..."))
        {
            self.said = Vec::from_iter((!said.trim().is_empty()).then(|| said.trim().to_owned()));
            self.test = format!("{}::{test}", self.program);
            self.tests.next(&self.test, at);
            self.begun += 1;
        }
        // A test prints its own text between its name and its result, on the same line or below.
        let told = self.skipped.last().is_some_and(|(test, _)| *test == self.test);
        if let Some((_, why)) = line.split_once("skipped: ").filter(|_| !told) {
            self.skipped.push((self.test.clone(), why.to_owned()));
        }
        if line.ends_with("FAILED") {
            self.failed.push(self.test.clone());
            let said = self.said.drain(..).filter(|said| said != "FAILED");
            self.reasons.extend(said.map(|said| format!("{}: {said}", self.test)));
        }
    }

    /// Keeps a panic and the message below it, what a scenario prints itself, and the failed tests
    /// that it quotes.
    fn hear(&mut self, line: &str) {
        let (is_quoted, line) = match line.strip_prefix("| ") {
            Some(line) => (true, line),
            None => (false, line),
        };
        let is_message = self.said.last().is_some_and(|last| last.contains(PANICKED));
        let is_failed = is_quoted && line.starts_with("test ") && line.ends_with("FAILED");
        let is_own = !is_quoted && self.program == SCENARIOS && !line.trim().is_empty();
        let is_kept = is_message || is_failed || is_own || line.contains(PANICKED);
        if is_kept && self.said.len() < SAID_MAX {
            self.said.push(line.to_owned());
        }
    }

    /// Returns the number of tests that passed and were not skipped.
    pub fn passed(&self) -> usize {
        self.passed.saturating_sub(self.skipped.len())
    }

    /// Returns the reason why this run does not show that the tests `failed` of another run pass
    /// now: one of them was skipped, or fewer tests passed.
    pub fn unproven(&self, failed: &[String]) -> Option<String> {
        let skipped = self.skipped.iter().find(|(test, _)| failed.contains(test));
        if let Some((test, why)) = skipped {
            return Some(format!("{test} was skipped: {why}"));
        }
        let (passed, wanted) = (self.passed(), failed.len());
        (passed < wanted).then(|| format!("{passed} tests passed, {wanted} had failed before"))
    }

    fn guest(&mut self, said: &str, at: Duration) {
        let mut words = said.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("begin"), Some(program), _) => {
                self.parts.next(program, at);
                self.program = program.to_owned();
                self.test = format!("{program}, before its first test");
            }
            (Some("end"), Some(program), Some(status)) => {
                self.programs += 1;
                self.parts.next("", at);
                self.tests.next("", at);
                let told = self.failed.iter().any(|test| test.starts_with(program));
                // A program that reported a failed test ends with status 1 or 101; any other status
                // is a fault of its own.
                if status != "0" && !(told && matches!(status, "1" | "101")) {
                    self.faults
                        .push(format!("{program} ended with status {status} in {}", self.test));
                }
            }
            (Some("not"), Some("set:"), Some(write)) => self.faults.push(format!(
                "the kernel refused --write {write}: the file has another text (write a valid one)"
            )),
            (Some("done"), status, _) => self.done = status.map(str::to_owned),
            _ => {}
        }
    }

    /// Returns the reasons why the run has not passed, after QEMU ended with `status`: `programs`
    /// should have ended, and `tests` begun.
    ///
    /// A guest that tells its status by the debug port ends QEMU with twice that and one; a guest
    /// without the port turns itself off, with 0. The mark on the console is asked for in any case.
    pub fn complaints(&self, programs: usize, tests: usize, status: ExitStatus) -> Vec<String> {
        let mut complaints: Vec<String> =
            self.failed.iter().map(|what| format!("failed: {what}")).collect();
        complaints.extend(self.faults.iter().cloned());
        if self.programs != programs {
            complaints.push(format!("{} of {programs} programs ended", self.programs));
        }
        // A line that another process breaks hides the beginning of a test, but not its result.
        let begun = self.begun.max(self.passed + self.ignored + self.failed.len());
        if begun < tests {
            complaints.push(format!("{begun} of {tests} tests began"));
        }
        match (&self.done, status.code()) {
            (None, Some(124 | 137)) => complaints.push(format!("stopped in {}", self.test)),
            (None, _) => complaints.push(format!("the guest died in {}: {status}", self.test)),
            (Some(said), Some(0 | 1)) if said == "0" => {}
            (Some(said), _) if complaints.is_empty() => {
                complaints.push(format!("the guest ended with {said}, QEMU with {status}"));
            }
            _ => {}
        }
        complaints
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const PORT_PASSED: i32 = 1;

    fn ended(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    fn outcome(lines: &str) -> Outcome {
        let mut outcome = Outcome::new();
        let seconds = (0..).map(Duration::from_secs);
        lines.lines().zip(seconds).for_each(|(line, at)| outcome.line(line, at));
        outcome
    }

    #[test]
    fn tests_are_counted_and_skipped_ones_named() {
        let said = outcome(
            "guest: begin port\n\nrunning 3 tests\ntest a ... ok\ntest b::c ... skipped: no PMU\n\
             ok\ntest d ...\nskipped: not root\nok\n\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured\nguest: end port 0\n\
             guest: done 0",
        );
        assert_eq!((said.passed(), said.begun), (1, 3));
        let skipped = [("port::b::c", "no PMU"), ("port::d", "not root")];
        assert_eq!(said.skipped, skipped.map(|(test, why)| (test.to_owned(), why.to_owned())));
        assert_eq!(said.complaints(1, 3, ended(PORT_PASSED)), [""; 0]);
        assert_eq!(said.complaints(1, 3, ended(0)), [""; 0], "a guest without the port");
        assert_eq!(said.complaints(2, 3, ended(0)), ["1 of 2 programs ended"]);
        assert_eq!(said.complaints(1, 4, ended(0)), ["3 of 4 tests began"]);
        assert_eq!(said.complaints(1, 3, ended(3)).len(), 1);
        let failed = |tests: &[&str]| tests.iter().map(|&test| test.to_owned()).collect::<Vec<_>>();
        assert_eq!(said.unproven(&failed(&["port::a"])), None);
        let why = said.unproven(&failed(&["port::d"]));
        assert_eq!(why.as_deref(), Some("port::d was skipped: not root"));
        let why = said.unproven(&failed(&["port::a", "port::e"]));
        assert_eq!(why.as_deref(), Some("1 tests passed, 2 had failed before"));
    }

    #[test]
    fn ignored_test_whose_line_was_broken_has_begun() {
        let said = outcome(
            "guest: begin port\ntest a ... ok\n[ 1.2] v0: link up test b ... ignored\n\
             test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured\nguest: end port 0\n\
             guest: done 0",
        );
        assert_eq!((said.passed(), said.begun), (1, 1));
        assert_eq!(said.complaints(1, 2, ended(PORT_PASSED)), [""; 0]);
    }

    #[test]
    fn a_failed_test_is_named_once() {
        let said = outcome(
            "guest: begin port\ntest a ... \nthread 'a' panicked\nFAILED\nfailures:\n    a\n\
             test result: FAILED. 7 passed; 1 failed; 0 ignored;\nguest: end port 101\n\
             guest: done 1",
        );
        assert_eq!(said.passed(), 7);
        assert_eq!(said.complaints(1, 8, ended(3)), ["failed: port::a"]);
    }

    #[test]
    fn a_program_that_is_stopped_is_named_with_its_last_test() {
        let said = outcome("guest: begin port\ntest a ... \nguest: end port 143\nguest: done 1");
        let expected = ["port ended with status 143 in port::a"];
        assert_eq!(said.complaints(1, 1, ended(3)), expected);
    }

    #[test]
    fn lines_that_a_failed_scenario_quotes_are_no_tests() {
        let said = outcome(
            "guest: begin scenarios\ntest rss ... the frames were reused\n\
             Killed\n| test a ... FAILED\n| skipped: no XDP\n| thread 'a' panicked at a.rs:1:2:\n| 3 frames\n\
             | test result: FAILED. 0 passed; 1 failed\n\nFAILED\n\
             test result: 0 passed; 1 failed;\nguest: end scenarios 1\nguest: done 1",
        );
        assert_eq!((said.begun, said.skipped.len()), (1, 0));
        assert_eq!(said.complaints(1, 1, ended(3)), ["failed: scenarios::rss"]);
        let reasons = [
            "the frames were reused",
            "Killed",
            "test a ... FAILED",
            "thread 'a' panicked at a.rs:1:2:",
            "3 frames",
        ];
        assert_eq!(said.reasons, reasons.map(|reason| format!("scenarios::rss: {reason}")));
    }

    #[test]
    fn a_refused_setting_is_named() {
        let said = outcome("guest: not set: /proc/x=7\nguest: done 1");
        let complaints = said.complaints(0, 0, ended(3));
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].starts_with("the kernel refused --write /proc/x=7: "));
    }

    #[test]
    fn a_guest_without_an_end_mark_did_not_pass() {
        let said = outcome("guest: begin port\ntest a ... ");
        assert_eq!(said.complaints(0, 1, ended(0)), ["the guest died in port::a: exit status: 0"]);
        assert_eq!(said.complaints(0, 1, ended(124)), ["stopped in port::a"]);
    }
}
