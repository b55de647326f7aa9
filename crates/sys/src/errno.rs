//! The return convention of the C library, turned into a `Result`.

use std::ffi::c_int;

use rustix::io::Errno;

/// `ret` if it is not negative, else what the calling thread's errno says.
pub(crate) fn check(ret: c_int) -> Result<c_int, Errno> {
    if ret >= 0 { Ok(ret) } else { Err(last()) }
}

/// Returns the calling thread's errno.
pub(crate) fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_return_becomes_the_errno_of_the_call() {
        // SAFETY: closing a descriptor that cannot exist touches no object of ours.
        let ret = unsafe { libc::close(-1) };
        assert_eq!(check(ret), Err(Errno::BADF));
        assert_eq!(check(3), Ok(3));
    }
}
