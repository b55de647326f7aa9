//! Observation of a target's surroundings while it is recorded.

use linerate_prof::Result;
use linerate_prof::conditions::{Passed, Traffic};
use linerate_prof::proc::{Head, Started};
use linerate_prof::profile::Profile;

/// An observation of the target's surroundings. A profile without it is still valid, so a part that
/// cannot be observed becomes a remark.
pub struct Around {
    head: Result<Started>,
    traffic: Result<Traffic>,
}

/// The observation at the end of the recording.
pub struct Ended {
    head: Result<Head>,
    passed: Result<Passed>,
}

impl Around {
    /// Looks for the first time. The network devices are those that the process sees.
    pub fn start(pid: Option<u32>) -> Around {
        Around { head: Head::start(), traffic: Traffic::start(pid) }
    }

    /// Looks for the second time.
    pub fn stop(self) -> Ended {
        let head = self.head.and_then(|started| started.stop());
        let passed = self.traffic.and_then(|traffic| traffic.stop());
        Ended { head, passed }
    }
}

impl Ended {
    /// Puts it into the profile.
    pub fn put(self, profile: &mut Profile) {
        match self.head {
            Ok(head) => profile.head = Some(head),
            Err(e) => profile.remarks.push(format!("no head of top: {}", e.why)),
        }
        match self.passed {
            Ok(passed) => {
                for name in &passed.reset {
                    let remark = format!("what passed {name} is not known: it began to count anew");
                    profile.remarks.push(remark);
                }
                profile.conditions.netdevs = passed.netdevs;
            }
            Err(e) => profile.remarks.push(format!("traffic is not known: {}", e.why)),
        }
    }
}
