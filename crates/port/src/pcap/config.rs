//! Options of a pcap port text: the file and the direction.

use std::fmt;
use std::path::PathBuf;

use linerate_skb::Result;

use super::replay;
use crate::spec::Spec;

/// Source or destination of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// The standard input or output of the process, depending on the mode.
    Standard,
    File(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Standard => f.write_str("-"),
            Place::File(path) => path.display().fmt(f),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Read,
    Write,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    pub place: Place,
    pub mode: Mode,
    /// True if packets of every link type pass, false for Ethernet frames only.
    pub any_link: bool,
    /// Factor by which packets are replayed faster than captured; `None` to deliver them as fast as
    /// they are received.
    pub pace: Option<f64>,
}

impl Config {
    /// Parses the options of a capture's port text.
    ///
    /// Errors: `E-PORT-SYNTAX` without a file, for both flags, or for an unknown option.
    pub fn of(spec: &Spec) -> Result<Config> {
        let (read, write) = (spec.flag("read")?, spec.flag("write")?);
        let any_link = spec.value("link", link)?.unwrap_or(false);
        let pace = spec.value("pace", replay::pace)?;
        spec.finish()?;
        if write && pace.is_some() {
            let error =
                spec.error("pace applies to a capture that is read, and this one is written");
            return Err(error.fix("pcap:FILE,pace=1 as the port that packets come from"));
        }
        if read && write {
            let error = spec.error("a capture is read or written, not both");
            return Err(error.fix("two ports: pcap:IN,read and pcap:OUT,write"));
        }
        let place = match spec.arg.as_str() {
            "" => {
                return Err(spec.error("there is no file").fix("pcap:FILE, or pcap:- for a pipe"));
            }
            "-" => Place::Standard,
            path => Place::File(path.into()),
        };
        Ok(Config { place, mode: if write { Mode::Write } else { Mode::Read }, any_link, pace })
    }
}

fn link(text: &str) -> std::result::Result<bool, &'static str> {
    match text {
        "ethernet" => Ok(false),
        "any" => Ok(true),
        _ => Err("ethernet or any"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config> {
        Config::of(&Spec::parse(text, &["pcap"]).unwrap())
    }

    #[test]
    fn a_capture_is_read_unless_it_says_write() {
        let place = Place::File("/a=b.pcap".into());
        let file = |mode| Config { place: place.clone(), mode, any_link: false, pace: None };
        assert_eq!(config("pcap:/a=b.pcap"), Ok(file(Mode::Read)));
        assert_eq!(config("pcap:/a=b.pcap,read"), Ok(file(Mode::Read)));
        assert_eq!(config("pcap:/a=b.pcap,write"), Ok(file(Mode::Write)));
        assert!(config("pcap:a,link=any").unwrap().any_link);
        assert_eq!(config("pcap:-").unwrap().place, Place::Standard);
        let mut spec = Spec::parse("pcap:-", &["pcap"]).unwrap();
        spec.options.set_default("write", None);
        assert_eq!(Config::of(&spec).unwrap().mode, Mode::Write);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, why) in [
            ("pcap:", "no file"),
            ("pcap:x,read,write", "not both"),
            ("pcap:x,wriet", "no option 'wriet'"),
            ("pcap:x,write=maybe", "on or off"),
            ("pcap:x,link=sll", "ethernet or any"),
            ("pcap:x,pace=0", "twice as fast"),
            ("pcap:x,write,pace=1", "this one is written"),
        ] {
            let e = config(text).unwrap_err();
            assert!(e.why.contains(why), "{text}: {e}");
        }
    }
}
