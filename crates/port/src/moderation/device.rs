//! The hold of a device: for how long, and for how many packets, it keeps its irq back.
//!
//! Owner: the device. Any thread changes the hold by [`HoldControl`], while a worker uses the
//!        queue.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use linerate_skb::{Code, Error, Result};

use crate::units;

/// The values of [`DeviceHold`] as texts. A device that counts packets also has `250us,frames=32`.
pub const HOLD_FORMS: &str = "off, or a time as 250us";

/// The hold of a device: the time from one irq to the next, and the number of packets that ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceHold {
    /// Time from an irq to the next; zero for no hold.
    pub time: Duration,
    /// Number of waiting packets that end the time early; `None` if no number does.
    pub frames: Option<u32>,
}

/// A device whose hold any thread can read and change while packets pass.
pub trait HoldControl: fmt::Debug + Send + Sync {
    /// Returns the present hold; `None` if it is unknown.
    fn hold(&self) -> Option<DeviceHold>;

    /// Returns the index of the network interface that the device is, which stays when it is
    /// renamed; `None` for another device.
    fn interface(&self) -> Option<u32> {
        None
    }

    /// Checks that the device can have `hold`; changes nothing.
    ///
    /// Cost: no system call.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for a time out of the device's range, `E-UNSUPPORTED` for a number of
    /// packets if it counts none.
    fn check(&self, hold: DeviceHold) -> Result<()> {
        let _ = hold;
        Ok(())
    }

    /// Changes the hold, also of packets that wait now.
    ///
    /// Cost: as the device's; system calls for a network interface.
    ///
    /// # Errors
    /// As [`HoldControl::check`], and `E-PERM` if the process may not change the hold; the hold is
    /// as before.
    fn set_hold(&self, hold: DeviceHold) -> Result<()>;
}

impl fmt::Display for DeviceHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.time.as_nanos(), self.frames) {
            (0, _) => f.write_str("off"),
            (ns, Some(frames)) => write!(f, "{}us,frames={frames}", ns as f64 / 1e3),
            (ns, None) => write!(f, "{}us", ns as f64 / 1e3),
        }
    }
}

impl FromStr for DeviceHold {
    type Err = Error;

    fn from_str(text: &str) -> Result<DeviceHold> {
        let bad = |why: String| {
            Error::new(Code::PortSyntax, format!("cannot read the hold '{text}'"), why)
                .fix(HOLD_FORMS)
        };
        if text == "off" {
            return Ok(DeviceHold::default());
        }
        let (time, frames) = match text.split_once(",frames=") {
            Some((time, frames)) => (time, Some(frames)),
            None => (text, None),
        };
        let time = units::duration(time).map_err(|e| bad(e.into()))?;
        if time.is_zero() {
            return Err(bad("its time is 0".into()));
        }
        let frames = frames.map(|frames| match frames.parse() {
            Ok(frames) if frames > 0 => Ok(frames),
            _ => Err(bad(format!("'{frames}' is no number of packets"))),
        });
        Ok(DeviceHold { time, frames: frames.transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hold_is_read_as_it_is_displayed() {
        for text in ["off", "250us", "1.5us,frames=1", "10000us,frames=65536"] {
            assert_eq!(text.parse::<DeviceHold>().unwrap().to_string(), text);
        }
        let hold = DeviceHold { time: Duration::from_millis(1), frames: Some(8) };
        assert_eq!("1ms,frames=8".parse(), Ok(hold));
        for bad in ["", "0us", "250", "250us,", "250us,frames=0", "250us,frames=x", "frames=3"] {
            let e = bad.parse::<DeviceHold>().unwrap_err();
            assert!(e.what.contains(bad) && e.fix == HOLD_FORMS, "{bad}: {e}");
        }
    }
}
