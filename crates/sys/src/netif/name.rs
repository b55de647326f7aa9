//! The name of a network interface.

use std::ffi::c_char;
use std::fmt;

use crate::error::{Code, Error, Result};

/// Bytes of the longest interface name (`IFNAMSIZ` without the NUL).
pub const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

/// A name that an interface can have: 1 to 15 bytes, no NUL, slash or space.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IfName(pub(super) [u8; libc::IFNAMSIZ]);

impl IfName {
    /// Checks `name` and converts it.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for a name that no interface can have.
    pub fn new(name: &str) -> Result<Self> {
        let fault = |why: String| {
            let what = format!("{name:?} cannot be the name of a network interface");
            Err(Error::new(Code::PortSyntax, what, why).fix("ip -br link"))
        };
        if name.is_empty() {
            return fault("it is empty".into());
        }
        if name.len() > NAME_BYTES_MAX {
            return fault(format!("it has {} bytes, at most {NAME_BYTES_MAX} fit", name.len()));
        }
        if name.bytes().any(|b| b == 0 || b == b'/' || b == b':' || b.is_ascii_whitespace()) {
            return fault("it contains a slash, a colon, a space or a NUL".into());
        }
        let mut bytes = [0; libc::IFNAMSIZ];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(IfName(bytes))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        str::from_utf8(&self.0[..len]).unwrap_or("?")
    }

    /// Returns a request for this interface, with all other fields zero.
    pub(crate) fn request(&self) -> libc::ifreq {
        // SAFETY: ifreq consists of integers and a union of them, for which all zeroes is a valid
        // value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.0) {
            *to = from as c_char;
        }
        request
    }

    /// Reads the name that the kernel wrote into `request`.
    pub(crate) fn of_request(request: &libc::ifreq) -> Self {
        let mut bytes = request.ifr_name.map(|c| c as u8);
        bytes[NAME_BYTES_MAX] = 0;
        IfName(bytes)
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IfName({})", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_name_is_a_fault_of_the_request() {
        for name in ["", "sixteen-bytes-ab", "a/b", "a b", "a\0b", "a:b"] {
            assert_eq!(IfName::new(name).unwrap_err().kind(), crate::Kind::Usage, "{name:?}");
        }
        assert_eq!(IfName::new("fifteen-bytes-a").unwrap().as_str(), "fifteen-bytes-a");
    }
}
