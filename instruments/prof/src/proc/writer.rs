//! A writer of a series to a file, line by line.

use std::io::Write;

use linerate_sys::clock::thread_cpu_ns;
use linerate_sys::{Code, Error, Result};
use serde::Serialize;

use super::series::{Column, End, Header, Sample};

/// Writes a series during sampling; see the [schema](super::SCHEMA). Every line is written whole
/// and flushed, so that a killed writer leaves a valid beginning.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    /// Number of columns that are already written.
    columns: usize,
    line: Vec<u8>,
    own_ns: u64,
}

/// A line after the first.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    Columns(&'a [Column]),
    Sample(&'a Sample),
    End(&'a End),
}

impl<W: Write> Writer<W> {
    /// Creates a writer, and writes the header.
    ///
    /// # Errors
    /// `E-FILE` if `out` does not take it.
    pub fn start(out: W, header: &Header) -> Result<Writer<W>> {
        let mut writer = Writer { out, columns: 0, line: Vec::new(), own_ns: 0 };
        writer.put(header)?;
        Ok(writer)
    }

    /// Writes a sample, preceded by the columns that are new in it.
    ///
    /// # Errors
    /// `E-FILE` if the file does not take it: a full disk.
    pub fn write(&mut self, columns: &[Column], sample: &Sample) -> Result<()> {
        let cpu = thread_cpu_ns();
        if let Some(new @ [_, ..]) = columns.get(self.columns..) {
            self.put(&Line::Columns(new))?;
            self.columns = columns.len();
        }
        self.put(&Line::Sample(sample))?;
        self.own_ns = self.own_ns.saturating_add(thread_cpu_ns().saturating_sub(cpu));
        Ok(())
    }

    /// Writes the end of the series, with the cost of writing it, and returns that end.
    ///
    /// # Errors
    /// `E-FILE` if the file does not take it.
    pub fn finish(mut self, end: End) -> Result<End> {
        let end = End { own_ns: end.own_ns.saturating_add(self.own_ns), ..end };
        self.put(&Line::End(&end))?;
        Ok(end)
    }

    fn put(&mut self, line: &impl Serialize) -> Result<()> {
        let failed = |why: String| Error::new(Code::File, "cannot write the series", why);
        self.line.clear();
        serde_json::to_writer(&mut self.line, line).map_err(|e| failed(e.to_string()))?;
        self.line.push(b'\n');
        let written = self.out.write_all(&self.line).and_then(|()| self.out.flush());
        written.map_err(|e| failed(e.to_string()))
    }
}
