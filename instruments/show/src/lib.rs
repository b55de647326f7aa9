//! The renderer of every instrument: tables, numbers and charts as text, CSV, JSON, HTML and SVG.
//!
//! ```text
//!  Table ──┬─► text (Display)    number  figures in a column's width
//!          ├─► CSV               escape  text as text of a page
//!          ├─► JSON (serde)      words   sentences and names in a line's width
//!          └─► HTML              svg     charts: bars, lines, marks, axes
//!                                grid    columns of text, for tables of other forms
//! ```
//!
//! Its input is not trusted: control characters in a table's names, headings and notes are escaped,
//! a label cannot become markup, and a figure of any size has a bounded length.
#![forbid(unsafe_code)]

pub mod escape;
pub mod grid;
pub mod number;
pub mod svg;
pub mod table;
pub mod words;
