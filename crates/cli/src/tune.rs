//! The command `linerate tune`: shows and changes the settings of a run, with ethtool's options.

mod show;

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::Duration;

use linerate::{Code, units};
use linerate_ctl::ErrorReport;
use linerate_ctl::tune::{
    Answer, Change, LETTERS, REVERT_AFTER, Request, SETTINGS, SettingRow, ask,
};

use crate::errors::{Failure, RUNTIME, UNSUPPORTED, USAGE};
use crate::screen::Screen;
use show::{View, table};

/// Show and change the settings of a run, in ethtool's manner
///
/// PATH is the socket of a run that was started with --control PATH. Without a letter option, tune
/// shows every setting of every port. Workers apply a change between two polls: waiting packets
/// keep their order, and no packet is lost. The answer shows the old and the new value, the packets
/// received before the change, and its duration.
#[derive(Debug, clap::Parser)]
#[command(after_long_help = EXAMPLES)]
// Behind a letter option, PATH would be one of its words.
#[command(override_usage = "linerate tune <PATH> [OPTIONS]")]
#[command(group = clap::ArgGroup::new("letter").multiple(false))]
pub struct Tune {
    /// The socket of the run
    pub path: PathBuf,
    /// Show interrupt coalescing
    #[arg(short = 'c', long, group = "letter", value_name = "PORT",
        num_args = 0..=1, default_missing_value = "")]
    pub show_coalesce: Option<String>,
    /// Change interrupt coalescing: moderation MODE, rx-usecs N, rx-frames N, hold TIME or off
    #[arg(short = 'C', long, group = "letter", value_names = ["PORT[/QUEUE]", "NAME", "VALUE"],
        num_args = 3..)]
    pub coalesce: Option<Vec<String>>,
    /// Show transmit features
    #[arg(short = 'k', long, group = "letter", value_name = "PORT",
        num_args = 0..=1, default_missing_value = "")]
    pub show_features: Option<String>,
    /// Change transmit features: tx-batch N or auto, shape 10Mbit
    #[arg(short = 'K', long, group = "letter", value_names = ["PORT[/QUEUE]", "NAME", "VALUE"],
        num_args = 3..)]
    pub features: Option<Vec<String>>,
    /// Show rings
    #[arg(short = 'g', long, group = "letter", value_name = "PORT",
        num_args = 0..=1, default_missing_value = "")]
    pub show_ring: Option<String>,
    /// Refused: ring sizes are fixed when a port is opened. Restart the run with another port text,
    ///          as in ring=4096
    #[arg(short = 'G', long, group = "letter", value_names = ["PORT[/QUEUE]", "NAME", "VALUE"],
        num_args = 3..)]
    pub set_ring: Option<Vec<String>>,
    /// Show channels: the worker of each queue, and its CPU
    #[arg(short = 'l', long, group = "letter", value_name = "PORT",
        num_args = 0..=1, default_missing_value = "")]
    pub show_channels: Option<String>,
    /// Move the workers that serve the queues to another CPU: cpu N or any
    #[arg(short = 'L', long, group = "letter", value_names = ["PORT[/QUEUE]", "NAME", "VALUE"],
        num_args = 3..)]
    pub set_channels: Option<Vec<String>>,
    /// Show the driver, and the modes that it obtained
    #[arg(short = 'i', long, group = "letter", value_name = "PORT",
        num_args = 0..=1, default_missing_value = "")]
    pub driver: Option<String>,
    /// Show counters
    #[arg(short = 'S', long, group = "letter", value_name = "PORT",
        num_args = 0..=1, default_missing_value = "")]
    pub statistics: Option<String>,
    /// Revert the change after this time, as in 60s, unless `linerate tune PATH --keep` is run
    /// before
    #[arg(long, value_name = "TIME", value_parser = revert_after)]
    pub revert_after: Option<Duration>,
    /// Keep the changes that are due to be reverted
    #[arg(long, group = "letter")]
    pub keep: bool,
    /// Print the whole answer as one JSON document, with any letter option
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  linerate forward xdp:eth0 xdp:eth1 --control /run/x.sock
  linerate tune /run/x.sock                          every setting of every port
  linerate tune /run/x.sock -K eth0 tx-batch 1       one doorbell for each packet
  linerate tune /run/x.sock -K wan0 shape 20Mbit     another rate for a port with shape=
  linerate tune /run/x.sock -C eth0 rx-usecs 50 rx-frames 16
  linerate tune /run/x.sock -C eth0/1 moderation adaptive:latency=100us
  linerate tune /run/x.sock -L eth0 cpu 1 --revert-after 60s
  linerate tune /run/x.sock --keep
  linerate tune /run/x.sock -S eth1                  counters

The run answers only its own user and root. A setting that a port does not have is n/a, with the reason.

Exit status: 0 done, 1 no run answers or the change failed, 2 wrong request, 5 not possible: a
setting that cannot be changed, a missing privilege, or a run of another user.";

impl Tune {
    /// Runs the command; returns the exit status.
    ///
    /// # Errors
    /// The run's refusal, or the reason why it does not answer.
    pub fn run(&self, screen: &Screen) -> Result<u8, Failure> {
        let (view, request) = self.request()?;
        if self.revert_after.is_some() && !matches!(view, View::Set) {
            return Err(refuse("--revert-after needs a change", "add -C, -K or -L"));
        }
        let answer = self.answer(&request)?;
        screen.result(|| table(&view, &answer.document), || answer.line.clone())?;
        Ok(0)
    }

    /// Returns the run's answer. The name of a queue, as in `eth0/1`, shows its port, unless a port
    /// has that name.
    fn answer(&self, request: &Request) -> Result<Answer, Failure> {
        let refused = match ask(&self.path, request) {
            Ok(answer) => return Ok(answer),
            Err(refused) => refused,
        };
        let mut failure = failure(refused);
        let Request::Show { port: Some(name) } = request else { return Err(failure) };
        if let Some((port, queue)) = name.rsplit_once('/')
            && queue.parse::<u32>().is_ok()
            && let Ok(answer) = ask(&self.path, &Request::Show { port: Some(port.to_owned()) })
        {
            return Ok(answer);
        }
        if std::fs::metadata(name).is_ok_and(|found| found.file_type().is_socket()) {
            failure.error.fix = "the socket stands before the letter option: linerate tune SOCKET \
                                 -S PORT"
                .into();
        }
        Err(failure)
    }

    /// Returns the request, and the part of its answer that is printed.
    fn request(&self) -> Result<(View, Request), Failure> {
        let show = |view, port: &String| {
            let port = Some(port.clone()).filter(|port| !port.is_empty());
            Ok((view, Request::Show { port }))
        };
        let shows =
            [&self.show_coalesce, &self.show_features, &self.show_ring, &self.show_channels];
        let sets = [&self.coalesce, &self.features, &self.set_ring, &self.set_channels];
        for ((shown, set), (letter, capital, _)) in shows.into_iter().zip(sets).zip(LETTERS) {
            if let Some(port) = shown {
                return show(View::Settings(Some(letter)), port);
            }
            if let Some(words) = set {
                let change = self.change(words, letter, capital)?;
                return Ok((View::Set, Request::Set(change)));
            }
        }
        match (&self.driver, &self.statistics) {
            (Some(port), _) => show(View::Driver, port),
            (_, Some(port)) => show(View::Statistics, port),
            _ if self.keep => Ok((View::Keep, Request::Keep)),
            _ => Ok((View::Settings(None), Request::Show { port: None })),
        }
    }

    /// Parses a port, optionally with a queue, and pairs of a name and a value.
    fn change(&self, words: &[String], letter: char, capital: char) -> Result<Change, Failure> {
        let (place, pairs) = words.split_first().map_or(("", words), |(first, rest)| (first, rest));
        // Other forms of a number, as 01, belong to the port's name.
        let number = |n: &str| n.parse::<usize>().ok().filter(|queue| queue.to_string() == n);
        let queue = place.rsplit_once('/').and_then(|(port, n)| Some((port, number(n)?)));
        let (port, queue) = queue.map_or((place, None), |(port, queue)| (port, Some(queue)));
        let mut settings = std::collections::BTreeMap::new();
        for pair in pairs.chunks(2) {
            let name = pair[0].replace('-', "_");
            let Some(value) = pair.get(1) else {
                let fix = format!("-{capital} PORT NAME VALUE [NAME VALUE]…");
                return Err(refuse(&format!("{} has no value", pair[0]), &fix));
            };
            if let Some(row) = SettingRow::find(&name).filter(|row| row.letter != letter) {
                let other = LETTERS.iter().find(|(shown, ..)| *shown == row.letter);
                let other = other.map_or(capital, |(_, capital, _)| *capital);
                let why = format!("{} belongs to another letter option", pair[0]);
                return Err(refuse(&why, &format!("-{other} {place} {} {value}", pair[0])));
            }
            if settings.insert(name, value.clone()).is_some() {
                return Err(refuse(&format!("{} is given twice", pair[0]), "name it once"));
            }
        }
        Ok(Change { port: port.to_owned(), queue, settings, revert_after: self.revert_after })
    }
}

/// Parses the time of `--revert-after`.
fn revert_after(text: &str) -> Result<Duration, String> {
    let time = units::duration(text)?;
    let allowed = REVERT_AFTER.contains(&time).then_some(time);
    allowed.ok_or_else(|| "--revert-after is 1ms to 24h".into())
}

fn refuse(why: &str, fix: &str) -> Failure {
    Failure::new(USAGE, "E-USAGE", "cannot understand the command", why.to_owned(), fix)
}

/// Writes the names of settings as this command's help does: `tx-batch` instead of `tx_batch`.
fn in_options(text: &str) -> String {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let in_option = |word: &str| match SETTINGS.iter().any(|row| row.name == word) {
        true => word.replace('_', "-"),
        false => word.to_owned(),
    };
    // Only whole words: a port may be called `rx_usecs0`.
    text.split_inclusive(|c| !is_of_word(c))
        .map(|part| match part.strip_suffix(|c| !is_of_word(c)) {
            Some(word) => in_option(word) + &part[word.len()..],
            None => in_option(part),
        })
        .collect()
}

/// Returns the failure for an error in a run's answer, with the exit status of the error's code.
fn failure(mut error: ErrorReport) -> Failure {
    (error.why, error.fix) = (in_options(&error.why), in_options(&error.fix));
    let code = Code::ALL.iter().find(|code| code.as_str() == error.code);
    let exit = match code.map(|code| code.kind()) {
        Some(linerate::Kind::Usage) => USAGE,
        Some(linerate::Kind::Unsupported) => UNSUPPORTED,
        None if error.code == "E-USAGE" => USAGE,
        _ => RUNTIME,
    };
    Failure { error, exit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;
    use linerate::knob::{ENGINE, MODERATION, POOL, PORT};

    fn read(words: &str) -> Result<Tune, clap::Error> {
        let all = ["linerate", "tune", "/run/x.sock"].into_iter().chain(words.split_whitespace());
        Args::try_parse_from(all).map(|args| match args.command {
            Command::Tune(tune) => tune,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn letters_are_read_as_ethtool_reads_them() {
        let request = |words: &str| read(words).unwrap().request().map(|(_, request)| request);
        let show = |port: Option<&str>| Request::Show { port: port.map(str::to_owned) };
        assert_eq!(request("").unwrap(), show(None));
        assert_eq!(request("-c").unwrap(), show(None));
        assert_eq!(request("-S west").unwrap(), show(Some("west")));
        assert_eq!(request("--keep").unwrap(), Request::Keep);
        let change = |words: &str| match request(words).unwrap() {
            Request::Set(change) => change,
            other => panic!("{other:?}"),
        };
        let both = change("-C west rx-usecs 50 rx-frames 16 --revert-after 2s");
        assert_eq!((&*both.port, both.queue), ("west", None));
        assert_eq!(both.revert_after, Some(Duration::from_secs(2)));
        assert_eq!((&*both.settings["rx_usecs"], &*both.settings["rx_frames"]), ("50", "16"));
        let one = change("-K west/3 tx-batch auto");
        assert_eq!((&*one.port, one.queue, &*one.settings["tx_batch"]), ("west", Some(3), "auto"));
        for name in ["a/b", "a/01", "a/+1"] {
            let whole = change(&format!("-K {name} tx-batch 1"));
            assert_eq!((&*whole.port, whole.queue), (name, None), "no number, no queue");
        }
        for (words, why) in [
            ("-C west tx-batch 1", "another letter"),
            ("-K west tx-batch 1 tx-batch", "has no value"),
            ("-K west tx-batch 1 tx-batch 2", "twice"),
        ] {
            assert!(request(words).unwrap_err().error.why.contains(why), "{words}");
        }
        for bad in ["-K west", "-K west tx-batch", "-c west -k west", "-c --keep"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refusal_has_the_words_of_the_command() {
        let fix = "did you mean tx_batch? There are: moderation rx_usecs";
        assert_eq!(in_options(fix), "did you mean tx-batch? There are: moderation rx-usecs");
        assert_eq!(in_options("'rx_usecs0' (rx_usecs)"), "'rx_usecs0' (rx-usecs)");
        for time in ["0s", "25h"] {
            let e = read(&format!("-K west tx-batch 1 --revert-after {time}")).unwrap_err();
            assert!(e.to_string().contains("--revert-after is 1ms to 24h"), "{e}");
        }
    }

    /// Settings that exist in programs but not in runs: the length of a thread's own hot list, and
    /// a pool's sampling, which costs time.
    const ELSEWHERE: [&str; 2] = ["hot_list", "sample"];

    #[test]
    fn every_knob_that_can_be_changed_while_packets_pass_is_in_the_table() {
        let knobs = POOL.into_iter().chain(ENGINE).chain(MODERATION).chain(PORT);
        for knob in knobs.filter(|knob| knob.live) {
            let is_there = SETTINGS.iter().any(|row| row.knobs.contains(&knob));
            assert!(is_there != ELSEWHERE.contains(&knob.name), "{}", knob.name);
        }
    }
}
