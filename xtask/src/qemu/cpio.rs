//! A writer of cpio archives in the format that the kernel unpacks as its first root.
//!
//! Source: Linux Documentation/driver-api/early-userspace/buffer-format.rst.

use std::io::{self, Write};

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const DEVICE: u32 = 0o020_600;

/// An archive that is being written; [`Cpio::finish`] ends it.
pub struct Cpio<W> {
    to: W,
}

impl<W: Write> Cpio<W> {
    /// An archive without an entry.
    pub fn new(to: W) -> Cpio<W> {
        Cpio { to }
    }

    /// A folder; the one that it is in has been written before.
    pub fn folder(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, FOLDER, [0, 0], &[])
    }

    /// A file that may be executed.
    pub fn file(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.entry(path, FILE, [0, 0], bytes)
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, LINK, [0, 0], target.as_bytes())
    }

    /// A character device with its major and minor number.
    pub fn device(&mut self, path: &str, number: [u32; 2]) -> io::Result<()> {
        self.entry(path, DEVICE, number, &[])
    }

    /// Ends the archive and returns what it was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, [0, 0], &[])?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn entry(&mut self, path: &str, mode: u32, device: [u32; 2], bytes: &[u8]) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::FileTooLarge, path.to_owned());
        let len = u32::try_from(bytes.len()).map_err(too_long)?;
        // Everything belongs to root; no entry has a number, so none is taken for another's name.
        let fields = [0, mode, 0, 0, 1, 0, len, 0, 0, device[0], device[1], path.len() as u32 + 1];
        let mut head = String::from("070701");
        fields.iter().for_each(|field| head.push_str(&format!("{field:08x}")));
        head.push_str("00000000");
        head.push_str(path);
        head.push('\0');
        self.padded(head.as_bytes())?;
        self.padded(bytes)
    }

    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.to.write_all(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_head_a_name_and_bytes_each_padded_to_four() {
        let mut cpio = Cpio::new(Vec::new());
        cpio.file("init", b"hello").unwrap();
        let bytes = cpio.finish().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let head = "070701 00000000 000081ed 00000000 00000000 00000001 00000000 00000005 00000000 \
                    00000000 00000000 00000000 00000005 00000000";
        let head: String = head.split(' ').collect();
        // 110 bytes of head, 5 of name, 1 to a multiple of four; 5 of contents, 3 more.
        assert_eq!(&text[..124], format!("{head}init\0\0hello\0\0\0"));
        assert_eq!((&text[124..130], text.len() % 4), ("070701", 0));
        assert!(text.contains("TRAILER!!!\0"));
    }

    #[test]
    fn a_device_has_its_numbers_and_a_link_its_target() {
        let mut cpio = Cpio::new(Vec::new());
        cpio.device("dev/console", [5, 1]).unwrap();
        cpio.link("bin/sh", "dash").unwrap();
        let text = String::from_utf8(cpio.finish().unwrap()).unwrap();
        assert_eq!(&text[14..22], "00002180");
        assert_eq!(&text[78..94], "0000000500000001");
        assert!(text.contains("bin/sh\0\0\0\0dash"), "{text:?}");
    }
}
