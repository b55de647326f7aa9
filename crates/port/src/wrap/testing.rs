//! Parts that the tests of captures share.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// A file in memory, which a test reads while it is written.
#[derive(Clone, Default)]
pub(super) struct SharedFile(Arc<Mutex<Vec<u8>>>);

impl SharedFile {
    /// Returns what was written so far.
    pub fn content(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for SharedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
