//! Changes of the health of an engine's ports: down, up again, failed or ended.

use std::sync::Arc;
use std::time::Duration;

use linerate_port::Health;

use crate::notice::Notice;
use crate::running::after;
use crate::stats::Stats;

/// A reader of health changes of an engine's ports, for a thread of its own;
/// [`Running::watch`](crate::Running::watch) returns it.
#[derive(Debug)]
pub struct Watch {
    stats: Stats,
    notice: Arc<Notice>,
    /// The health of each port as of the last report.
    reported: Vec<Health>,
}

impl Watch {
    pub(crate) fn new(stats: Stats, notice: Arc<Notice>) -> Watch {
        // Start with `Up`, so that the first call reports a port that is down already.
        let reported = stats.ports().iter().map(|_| Health::Up).collect();
        Watch { stats, notice, reported }
    }

    /// Waits until the health of a port has changed, or for `timeout`; returns the names and the
    /// new health of these ports. The first call returns the ports that are not up. A change that
    /// is reversed between two calls is not reported.
    ///
    /// Cost:   asleep throughout; a worker wakes it when it notices, at once if it sleeps.
    pub fn next(&mut self, timeout: Duration) -> Vec<(String, Health)> {
        let (stats, reported) = (&self.stats, &self.reported);
        let changed = || {
            let ports = stats.ports().into_iter().zip(reported).enumerate();
            let news = ports.filter(|(_, (port, reported))| port.health.kind() != reported.kind());
            let news: Vec<_> = news.map(|(i, (port, _))| (i, port.name, port.health)).collect();
            (!news.is_empty()).then_some(news)
        };
        let news = self.notice.wait(after(timeout), changed).unwrap_or_default();
        let tell = |(i, name, health): (usize, String, Health)| {
            self.reported[i] = health.clone();
            (name, health)
        };
        news.into_iter().map(tell).collect()
    }
}
