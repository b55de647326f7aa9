//! The setup error of every crate: the failed call, the reason, and the remedy.
//!
//! Setup paths return it; the data path never does (it returns counts and drop reasons).

use std::ffi::c_int;
use std::fmt;
use std::io::ErrorKind;

use rustix::io::Errno;

/// A setup failure, described so that the reader can act on it.
///
/// `Display` prints `what: why (fix: …)` on one line, and no parenthesis without a remedy; the
/// command line prints the four parts apart.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// Stable identifier, for scripts: see [`Code`].
    pub code: Code,
    /// The attempt, naming the object: `cannot open veth7`.
    pub what: String,
    /// The reason, in the words of the system that refused: `no such device (ENODEV from bind)`.
    pub why: String,
    /// The remedy, a command to paste if there is one. Empty if nothing is known to help.
    pub fix: String,
}

impl Error {
    /// Creates an error from its code, the failed attempt and the reason; [`Error::fix`] adds the
    /// remedy.
    #[must_use]
    pub fn new(code: Code, what: impl Into<String>, why: impl Into<String>) -> Self {
        Error { code, what: what.into(), why: why.into(), fix: String::new() }
    }

    /// Returns the same error with a remedy.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    /// Creates an error of the operating system: `call` failed with `error` while doing `what`.
    #[must_use]
    pub fn os(
        code: Code,
        what: impl Into<String>,
        call: &str,
        error: impl Into<std::io::Error>,
    ) -> Self {
        Error::new(code, what, format!("{call}: {}", error.into()))
    }

    /// Returns the class of the failure, which decides a command's exit status.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.code.kind()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        if !self.fix.is_empty() {
            write!(f, " (fix: {})", self.fix)?;
        }
        Ok(())
    }
}

/// The text that `fn main() -> Result<()>` and `unwrap` print: written for people, with the code.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {self}", self.code)
    }
}

impl std::error::Error for Error {}

/// Wraps the error, under the nearest kind of its code: `E-NODEV` is [`ErrorKind::NotFound`],
/// `E-PERM` is [`ErrorKind::PermissionDenied`], a code of [`Kind::Usage`] is
/// [`ErrorKind::InvalidInput`]. A code without a kind is [`ErrorKind::Other`].
impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        std::io::Error::new(e.code.io_kind(), e)
    }
}

/// Converts an `io::Error` that wraps an [`Error`] back into that error, and any other into
/// [`Code::System`] with its own text.
impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        match e.downcast::<Error>() {
            Ok(ours) => ours,
            Err(e) => Error::new(Code::System, "a call of the program failed", e.to_string()),
        }
    }
}

/// The result of a call that can fail with an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The class of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The request itself is wrong: syntax, an unknown name, impossible sizes.
    Usage,
    /// This machine, this kernel or this user's privileges do not allow the request.
    Unsupported,
    /// The request was possible, but it failed.
    Runtime,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $kind:ident;)*) => {
        /// The stable identifiers of errors.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// Every code, in the order of declaration.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// Returns the identifier as printed: `E-NODEV`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// Returns the class of the failure.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $(Code::$name => Kind::$kind,)* }
            }
        }
    };
}

codes! {
    /// A PORT text that does not parse, or an option that the driver does not know.
    PortSyntax = "E-PORT-SYNTAX", Usage;
    /// A topology that is not possible, such as an unknown port name, or a port wired twice.
    Topology = "E-TOPOLOGY", Usage;
    /// A frame size or count that no umem can have.
    PoolSize = "E-POOL-SIZE", Usage;
    /// A pool smaller than the sum of its holders.
    PoolTooSmall = "E-POOL-TOO-SMALL", Usage;
    /// Memory that could not be mapped or locked.
    Memory = "E-MEMORY", Runtime;
    /// No umem identifier of the process is free.
    UmemIds = "E-UMEM-IDS", Runtime;
    /// No network interface has this name.
    NoDevice = "E-NODEV", Runtime;
    /// A CPU that the machine does not have or the process may not use.
    Cpu = "E-CPU", Usage;
    /// The network interface is down.
    DeviceDown = "E-DEVICE-DOWN", Runtime;
    /// The caller lacks a capability or a permission.
    Permission = "E-PERM", Unsupported;
    /// The kernel lacks the feature.
    Unsupported = "E-UNSUPPORTED", Unsupported;
    /// Another process holds the object.
    Busy = "E-BUSY", Runtime;
    /// A file that could not be opened, read or written.
    File = "E-FILE", Runtime;
    /// A capture file whose contents contradict its format.
    Capture = "E-CAPTURE", Runtime;
    /// An experiment's file with invalid contents, or with a setting that its scenario does not
    /// have.
    Experiment = "E-EXPERIMENT", Usage;
    /// A directory of a run that cannot be used: it is incomplete, of another schema, or not of a
    /// run.
    Run = "E-RUN", Runtime;
    /// A system call that failed for a reason without a code of its own.
    System = "E-SYSTEM", Runtime;
}

impl Code {
    /// Returns the nearest kind of an `io::Error`; [`ErrorKind::Other`] for a code without one.
    const fn io_kind(self) -> ErrorKind {
        match self {
            Code::NoDevice => ErrorKind::NotFound,
            Code::Permission => ErrorKind::PermissionDenied,
            Code::Unsupported => ErrorKind::Unsupported,
            Code::Busy => ErrorKind::ResourceBusy,
            Code::DeviceDown => ErrorKind::NetworkDown,
            Code::Memory => ErrorKind::OutOfMemory,
            Code::Capture => ErrorKind::InvalidData,
            _ if matches!(self.kind(), Kind::Usage) => ErrorKind::InvalidInput,
            _ => ErrorKind::Other,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns `ret` if it is not negative, else the calling thread's errno, as is the C library's
/// convention.
pub(crate) fn check(ret: c_int) -> rustix::io::Result<c_int> {
    if ret >= 0 { Ok(ret) } else { Err(last_errno()) }
}

/// Returns the calling thread's errno.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_why_and_fix() {
        let e = Error::new(Code::NoDevice, "cannot open veth7", "no such device").fix("ip link");
        assert_eq!(e.to_string(), "cannot open veth7: no such device (fix: ip link)");
        assert_eq!(e.code.as_str(), "E-NODEV");
        assert_eq!(e.kind(), Kind::Runtime);
    }

    #[test]
    fn an_error_returns_from_io_as_it_went() {
        let ours = Error::new(Code::NoDevice, "cannot open veth7", "no such device").fix("ip link");
        assert_eq!(Error::from(std::io::Error::from(ours.clone())), ours);
        let other = Error::from(std::io::Error::other("disk full"));
        assert_eq!(other.to_string(), "a call of the program failed: disk full");
        assert_eq!(other.code, Code::System);
    }

    #[test]
    fn an_error_in_io_has_the_kind_of_its_code() {
        let kind = |code| std::io::Error::from(Error::new(code, "a call", "it failed")).kind();
        assert_eq!(kind(Code::NoDevice), ErrorKind::NotFound);
        assert_eq!(kind(Code::Permission), ErrorKind::PermissionDenied);
        assert_eq!(kind(Code::PortSyntax), ErrorKind::InvalidInput);
        assert_eq!(kind(Code::System), ErrorKind::Other);
    }

    #[test]
    fn an_error_crosses_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Error>();
    }

    #[test]
    fn a_negative_return_becomes_the_errno_of_the_call() {
        // SAFETY: closing a descriptor that cannot exist touches no object of ours.
        let ret = unsafe { libc::close(-1) };
        assert_eq!(check(ret), Err(Errno::BADF));
        assert_eq!(check(3), Ok(3));
    }
}
