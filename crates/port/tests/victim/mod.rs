//! A process of a test that is killed under load.

use std::process::{Child, Command, Stdio};

use linerate_sys::process::end_with_this_thread;

/// A process that is killed when this value is dropped, also in a failed test.
pub struct Victim(pub Child);

impl Victim {
    /// Starts `test` of this test binary alone, with the environment variable `name` set to
    /// `value`. The process is killed when the calling thread ends, even if this process is killed.
    pub fn start(test: &str, name: &str, value: &str) -> Victim {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(name, value).stdout(Stdio::null());
        Victim(end_with_this_thread(&mut command).spawn().unwrap())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // A panic here would abort a test that is failing already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
