//! Sums of both sides, and the bounds of their difference.

use serde::Serialize;

use super::Scale;

/// Counts of both sides, for one function or for several. Functions that neither side lists are not
/// included, even if a cut-off hides their counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Sum {
    /// Number of functions in the sum.
    pub functions: u64,
    /// Sum of the counts listed in the baseline.
    pub without: u64,
    /// Sum of the counts listed with the change.
    pub with: u64,
    /// Exclusive bound of the baseline's count below its cut-off; 0 if nothing is hidden.
    pub hidden_without: u64,
    /// Exclusive bound of the changed profile's count below its cut-off.
    pub hidden_with: u64,
}

/// Saving in the unit of the counts, scaled; negative for a rise. `None` stands for an unknown
/// figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// The saving; `None` if a cut-off hides counts.
    pub saved: Option<f64>,
    /// Lower bound of the saving.
    pub saved_least: Option<f64>,
    /// Upper bound of the saving.
    pub saved_most: Option<f64>,
    /// The saving in listed counts, with absent counts as 0.
    pub saved_as_listed: f64,
    /// The saving in per cent of the baseline; `None` if a cut-off hides counts.
    pub saving_pct: Option<f64>,
    /// Lower bound of the saving in per cent of the baseline.
    pub saving_pct_at_least: Option<f64>,
    /// The saving in listed counts, in per cent of the baseline's listed counts.
    pub saving_as_listed_pct: Option<f64>,
}

impl Figures {
    /// Returns only the figures of listed counts; the others become `None`.
    pub(super) const fn as_listed(self) -> Figures {
        Figures {
            saved: None,
            saved_least: None,
            saved_most: None,
            saving_pct: None,
            saving_pct_at_least: None,
            ..self
        }
    }
}

impl Sum {
    /// Returns the sum of `self` and `more`.
    #[must_use]
    pub const fn plus(self, more: Sum) -> Sum {
        Sum {
            functions: self.functions.saturating_add(more.functions),
            without: self.without.saturating_add(more.without),
            with: self.with.saturating_add(more.with),
            hidden_without: self.hidden_without.saturating_add(more.hidden_without),
            hidden_with: self.hidden_with.saturating_add(more.hidden_with),
        }
    }

    /// Returns true if nothing is hidden below a cut-off.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        self.hidden_without == 0 && self.hidden_with == 0
    }

    /// Returns the saving if absent functions count as 0, as in a post; negative for a rise. Exact
    /// for counts below 2^53.
    #[must_use]
    pub fn saved(self, scale: Scale) -> f64 {
        scale.without(self.without) - scale.with(self.with)
    }

    /// Returns the saving in whole counts if absent functions count as 0 and nothing is scaled.
    #[must_use]
    pub const fn saved_counts(self) -> i64 {
        minus(self.without, self.with)
    }

    /// Returns the lower bound of the saving; it assumes the largest count that the profile with
    /// the change may hide.
    #[must_use]
    pub fn saved_least(self, scale: Scale) -> f64 {
        self.saved(scale) - scale.with(self.hidden_with)
    }

    /// Returns the upper bound of the saving; it assumes the largest count that the baseline may
    /// hide.
    #[must_use]
    pub fn saved_most(self, scale: Scale) -> f64 {
        self.saved(scale) + scale.without(self.hidden_without)
    }

    /// Returns the figures for JSON.
    #[must_use]
    pub fn figures(self, scale: Scale) -> Figures {
        let base = scale.without(self.without);
        let pct = |saved: f64| (base > 0.0).then(|| 100.0 * saved / base);
        let (saved, least) = (self.saved(scale), self.saved_least(scale));
        Figures {
            saved: self.is_exact().then_some(saved),
            saved_least: Some(least),
            saved_most: Some(self.saved_most(scale)),
            saved_as_listed: saved,
            saving_pct: pct(saved).filter(|_| self.is_exact()),
            // Counts that the baseline hides can only increase the saving and its percentage, so
            // this is a lower bound.
            saving_pct_at_least: pct(least),
            saving_as_listed_pct: pct(saved),
        }
    }

    /// Returns the saving in per cent of the baseline's listed counts, without hidden ones; `None`
    /// if the baseline lists nothing.
    #[must_use]
    pub fn saving_as_listed(self, scale: Scale) -> Option<f64> {
        self.figures(scale).saving_as_listed_pct
    }
}

/// Returns `a - b`, limited to the range of the type.
const fn minus(a: u64, b: u64) -> i64 {
    const fn fit(n: u64) -> i64 {
        if n > i64::MAX as u64 { i64::MAX } else { n as i64 }
    }
    if a >= b { fit(a - b) } else { -fit(b - a) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AS_IS: Scale = Scale::as_they_are();

    fn of(without: u64, with: u64, hidden_without: u64, hidden_with: u64) -> Sum {
        Sum { functions: 1, without, with, hidden_without, hidden_with }
    }

    #[test]
    fn cut_off_makes_the_saving_a_bound_and_zero_has_no_percentage() {
        // speedo_rx of the post: 3358 without, not listed with, where the smallest is 216.
        let speedo_rx = of(3358, 0, 0, 216);
        assert_eq!(speedo_rx.saved_counts(), 3358);
        assert_eq!(speedo_rx.saved_least(AS_IS), 3142.0);
        assert_eq!(speedo_rx.saved_most(AS_IS), 3358.0);
        let figures = speedo_rx.figures(AS_IS);
        assert_eq!(figures.saving_pct_at_least.map(|pct| format!("{pct:.1}")).unwrap(), "93.6");
        assert_eq!((figures.saving_pct, figures.saved), (None, None));
        // alloc_skb_frame of the post: new, 335 ticks, not listed in a table that ends at 72.
        let frame = of(0, 335, 72, 0);
        assert_eq!(frame.figures(AS_IS).saving_pct_at_least, None);
        assert_eq!((frame.saved_least(AS_IS), frame.saved_most(AS_IS)), (-335.0, -263.0));
        assert_eq!(of(0, 5, 0, 0).figures(AS_IS).saving_pct, None);
    }

    #[test]
    fn absurd_counts_saturate_alike_on_both_sides() {
        assert_eq!(of(u64::MAX, 0, 0, 0).saved_counts(), i64::MAX);
        assert_eq!(of(0, u64::MAX, 0, 0).saved_counts(), -i64::MAX);
        let sum = of(u64::MAX, 1, 1, u64::MAX).plus(of(1, u64::MAX, u64::MAX, 1));
        assert_eq!(sum, Sum { functions: 2, ..of(u64::MAX, u64::MAX, u64::MAX, u64::MAX) });
    }

    #[test]
    fn what_a_side_hides_is_scaled_as_its_counts() {
        let by = crate::diff::By::Second;
        let scale = Scale { by, without_factor: 1.0, with_factor: 0.5 };
        let sum = of(100, 40, 30, 20);
        assert_eq!((sum.saved_least(scale), sum.saved_most(scale)), (70.0, 110.0));
    }
}
