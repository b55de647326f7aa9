//! The five posts of 2002 to 2007, parsed, and printed by the same code as new runs.
//!
//! Nothing here knows a result: every figure is computed from the text of the post, and held
//! against what the post says. [`Outcome`] says how many agree; what is wrong in a post is said
//! beside it, with the arithmetic.
//!
//! Source: the posts, as archived, in `tests/seeds/`.
#![forbid(unsafe_code)]

mod affinity;
mod batching;
pub mod decimal;
mod gigabit;
mod napi;
mod outcome;
mod report;
mod skbinit;
pub mod stats;
mod text;

use std::fs;
use std::io::Read;
use std::path::Path;

use linerate_prof::profile::Profile;
use linerate_prof::read;
use linerate_prof::{Code, Error, Result};
use serde::Serialize;

pub use batching::{BatchRow, in_the_layout_of_002};
pub use napi::in_the_layout_of_001;
pub use outcome::{Outcome, document};
pub use report::{Check, Erratum, Fact, Held, Part, Printed, Report};
pub use text::{Statement, Text};

/// A post, with its archived text.
#[derive(Debug, Serialize)]
pub struct Post {
    /// The post's number: `000`.
    pub id: &'static str,
    /// The experiment that reproduces the post.
    pub experiment: &'static str,
    /// The title of the post.
    pub title: &'static str,
    /// The author of the post.
    pub author: &'static str,
    /// The mailing list that the post was sent to.
    pub list: &'static str,
    /// The date of the post.
    pub date: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// The post's text, as archived.
    #[serde(skip)]
    pub text: &'static str,
    #[serde(skip)]
    compute: fn(&'static Post, &str) -> Result<Report>,
}

macro_rules! archived {
    ($file:literal) => {
        include_str!(concat!("../posts/", $file))
    };
}

/// The posts, in order.
pub static POSTS: [Post; 5] = [
    Post {
        id: "000",
        experiment: "pool",
        title: "Gigabit Performance 2.4.19-preX - Excessive locks, calls, waits",
        author: "J. V. Merkey",
        list: "linux-kernel",
        date: "4 March 2002",
        file: "000_5d94cdb1dc74f564.txt",
        text: archived!("000_5d94cdb1dc74f564.txt"),
        compute: gigabit::report,
    },
    Post {
        id: "001",
        experiment: "coalesce",
        title: "NAPI and CPU utilization",
        author: "Arthur Kepner, SGI",
        list: "netdev",
        date: "19 April 2005",
        file: "001_c0fbd8bbaa366728.txt",
        text: archived!("001_c0fbd8bbaa366728.txt"),
        compute: napi::report,
    },
    Post {
        id: "002",
        experiment: "batch",
        title: "[PATCH 0/9 Rev3] Implement batching skb API and support in IPoIB",
        author: "Krishna Kumar, IBM",
        list: "ofa-general and netdev",
        date: "8 August 2007",
        file: "002_79d1c05c8b9613cb.txt",
        text: archived!("002_79d1c05c8b9613cb.txt"),
        compute: batching::report,
    },
    Post {
        id: "003",
        experiment: "bounce",
        title: "L2 cache lines out, with and without IRQ and process affinity",
        author: "Mala Anand, IBM; ranked by Paul McKenney",
        list: "mail",
        date: "2002",
        file: "003_5ab5121f9d39ea70.txt",
        text: archived!("003_5ab5121f9d39ea70.txt"),
        compute: affinity::report,
    },
    Post {
        id: "004",
        experiment: "skbinit",
        title: "Re: (RFC): SKB Initialization",
        author: "Mala Anand, IBM",
        list: "linux-kernel",
        date: "21 August 2002",
        file: "004_03deb15df39420f5.txt",
        text: archived!("004_03deb15df39420f5.txt"),
        compute: skbinit::report,
    },
];

impl Post {
    /// Returns the post with that number, with or without leading zeros, or of that experiment.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Post> {
        let number = name.parse::<usize>().ok().filter(|_| name.len() <= 3);
        POSTS
            .iter()
            .enumerate()
            .find_map(|(i, post)| (number == Some(i) || post.experiment == name).then_some(post))
    }

    /// Recomputes the post's figures from the archived text.
    ///
    /// # Errors
    /// As [`Post::report_of`]; the archived text is whole.
    pub fn report(&'static self) -> Result<Report> {
        self.report_of(self.text)
    }

    /// Recomputes the post's figures from another copy of the text.
    ///
    /// # Errors
    /// `E-FILE` with the line that is not as it should be, or with what the copy lacks.
    pub fn report_of(&'static self, text: &str) -> Result<Report> {
        (self.compute)(self, text)
    }

    /// Returns the text of the post's copy in `directory`.
    ///
    /// # Errors
    /// `E-FILE` if it cannot be read, is too large for a post, or is not UTF-8.
    pub fn copy_in(&self, directory: &Path) -> Result<String> {
        const BYTES_MAX: u64 = 1 << 20;
        let path = directory.join(self.file);
        let failed =
            |why: String| Error::new(Code::File, format!("cannot read {}", path.display()), why);
        let file = fs::File::open(&path).map_err(|e| failed(e.to_string()))?;
        let mut bytes = Vec::new();
        let read = file.take(BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|e| failed(e.to_string()))?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(failed(format!("more than {BYTES_MAX} bytes are no post")));
        }
        String::from_utf8(bytes).map_err(|e| {
            let good = e.as_bytes().get(..e.utf8_error().valid_up_to()).unwrap_or(&[]);
            let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
            failed(format!("line {line} is not UTF-8"))
        })
    }
}

/// Returns the two profiles of a post, after checking that all their lines were read.
fn two(post: &Post, read: read::Read) -> Result<[Profile; 2]> {
    let what = format!("cannot read post {}", post.id);
    if let Some(why) = read.left_out() {
        return Err(Error::new(Code::File, what, why));
    }
    let found = read.profiles.len();
    read.profiles.try_into().map_err(|_| {
        Error::new(Code::File, what, format!("two listings should be in it, not {found}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_is_named_by_its_number_or_its_experiment() {
        let id = |name| Post::named(name).map(|post| post.id);
        assert_eq!([id("0"), id("000"), id("pool")], [Some("000"); 3]);
        assert_eq!([id("4"), id("004"), id("skbinit")], [Some("004"); 3]);
        assert_eq!([id("5"), id("0000"), id(""), id("-1"), id("NAPI")], [None; 5]);
    }
}
