//! The difference of call chains as an indented list: the text form of a differential flame graph.
//!
//! ```text
//!   with  without  difference  change  call chain
//!     80      100          20  fell    ksoftirqd
//!     70       60         -10  rose     net_rx_action          called by the one above, and part of its counts
//! ```

use std::fmt;

use linerate_show::grid::Grid;
use linerate_show::number;

use super::figures::digits;
use super::{Mark, preface, ranked, short};
use crate::diff::{Change, Count, Diff, Row};
use crate::flame::fold_busy;
use crate::profile::Profile;
use crate::stage::Stage;
use crate::{Code, Error, Result};

/// Share of the larger side, in per cent, below which a function is not listed.
const LEAST_PCT: f64 = 1.0;
/// Most functions in the list.
const LINES_MAX: usize = 200;
const NAME_WIDTH: usize = 60;

/// A call chain from the outermost caller, with its counts on both sides.
type Chain<'a> = (Vec<&'a str>, [u64; 2]);

/// The call chains of two profiles as an indented list, without idle time. A function's counts
/// include those of its callees; callees are listed by falling counts. With several runs a side,
/// changes have no class.
#[derive(Debug, Clone)]
pub struct Chains<'a> {
    diff: &'a Diff,
    stacks: Vec<(String, [u64; 2])>,
    bare: bool,
}

impl<'a> Chains<'a> {
    /// Returns the list of two profiles, of which `diff` is the difference.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if one of them has no call chains.
    pub fn between(without: &Profile, with: &Profile, diff: &'a Diff) -> Result<Chains<'a>> {
        for (profile, name) in [(without, "without"), (with, "with")] {
            if profile.stacks.is_empty() {
                let why = format!("the profile {name} the change has none");
                return Err(Error::new(Code::Unsupported, "cannot compare call chains", why)
                    .fix("record both with --call-chains"));
            }
        }
        let stacks = fold_busy([without, with], diff).into_iter().collect();
        Ok(Chains { diff, stacks, bare: false })
    }

    /// Leaves out the lines above the list: warnings and conditions.
    #[must_use]
    pub fn bare(self, bare: bool) -> Chains<'a> {
        Chains { bare, ..self }
    }

    /// Builds the list.
    fn list(&self) -> Grid {
        let mut chains: Vec<Chain<'_>> =
            self.stacks.iter().map(|(stack, n)| (stack.split(';').collect(), *n)).collect();
        chains.sort_unstable();
        let unit = preface::unit_of(self.diff);
        let mut grid = Grid::new("rrrll");
        grid.cells(["with", "without", "difference", "change", "call chain"]);
        grid.cells([&*unit, &unit, &unit, "", ""]);
        let all = sum(&chains);
        grid.cells(self.line(all, "(all without idle)"));
        let mut left = LINES_MAX;
        self.callees(&chains, 0, self.most(all) * LEAST_PCT / 100.0, &mut left, &mut grid);
        let rule = format!("(functions below {LEAST_PCT} % of the larger side are not listed)");
        grid.text(if left > 0 { rule } else { format!("(the first {LINES_MAX} functions)") });
        if self.diff.has_spread() {
            grid.text("(the spread of the runs is not in this list)");
        }
        grid
    }

    /// Adds the functions at `depth` of chains with the same callers, and their callees.
    fn callees(
        &self,
        chains: &[Chain<'_>],
        depth: usize,
        least: f64,
        left: &mut usize,
        grid: &mut Grid,
    ) {
        let same = chains.chunk_by(|(one, _), (other, _)| one.get(depth) == other.get(depth));
        // Chains that end here are the samples of the caller itself.
        let called = same.filter(|same| same[0].0.len() > depth);
        let mut called: Vec<(&[Chain<'_>], [u64; 2])> =
            called.map(|same| (same, sum(same))).collect();
        called.retain(|(_, counts)| self.most(*counts) >= least);
        called.sort_by(|(_, one), (_, other)| self.most(*other).total_cmp(&self.most(*one)));
        for (same, counts) in called {
            if *left == 0 {
                return;
            }
            *left -= 1;
            let name = format!("{:depth$}{}", "", short(same[0].0[depth], NAME_WIDTH));
            grid.cells(self.line(counts, &name));
            self.callees(same, depth + 1, least, left, grid);
        }
    }

    fn line(&self, counts: [u64; 2], name: &str) -> [String; 5] {
        let [a, b] = self.scaled(counts);
        let [without, with] = counts.map(Count::Is);
        let (symbol, object, stage) = (String::new(), None, Stage::Other);
        let row = Row { symbol, object, stage, without, with, noise: 0.0 };
        let change = match self.diff.change(&row) {
            // The noise of a chain is not known.
            _ if self.diff.has_spread() => String::new(),
            Change::Fell => "fell".to_owned(),
            change => change.mark(),
        };
        let real = |n: f64| number::real(n, digits(self.diff.scale));
        [real(b), real(a), real(a - b), change, name.to_owned()]
    }

    fn scaled(&self, [a, b]: [u64; 2]) -> [f64; 2] {
        [self.diff.scale.without(a), self.diff.scale.with(b)]
    }

    /// Returns the larger scaled count of both sides.
    fn most(&self, counts: [u64; 2]) -> f64 {
        let [a, b] = self.scaled(counts);
        a.max(b)
    }
}

fn sum(chains: &[Chain<'_>]) -> [u64; 2] {
    let plus =
        |[a, b]: [u64; 2], (_, [c, d]): &Chain<'_>| [a.saturating_add(*c), b.saturating_add(*d)];
    chains.iter().fold([0; 2], plus)
}

impl fmt::Display for Chains<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = self.list();
        let whole = fmt::from_fn(|f| match self.bare {
            true => write!(f, "{list}"),
            false => write!(f, "{}\n{list}", ranked::preface(self.diff)),
        });
        Mark::between(self.diff).each_line(f, &whole)
    }
}
