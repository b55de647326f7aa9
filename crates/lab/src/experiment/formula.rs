//! How a metric is computed from a window: `cost_ns / packets`, `100 * hits / allocs`,
//! `(alloc_ticks + free_ticks) / packets`.

use crate::window::Window;

/// A constant, times a sum of figures, divided by a sum of figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Formula {
    /// The constant; 1 unless said.
    pub scale: f64,
    /// Figures that are added, or taken away if false.
    pub over: Vec<(bool, String)>,
    /// Figures that are divided by; none: by 1.
    pub under: Vec<(bool, String)>,
}

impl Formula {
    /// Its value over a window; `None` if a figure is missing or what is divided by is 0.
    #[must_use]
    pub fn of(&self, window: &Window) -> Option<f64> {
        let sum = |terms: &[(bool, String)]| {
            terms.iter().try_fold(0.0, |sum, (plus, name)| {
                let figure = window.figure(name)?;
                Some(if *plus { sum + figure } else { sum - figure })
            })
        };
        let under = if self.under.is_empty() { 1.0 } else { sum(&self.under)? };
        let value = self.scale * sum(&self.over)? / under;
        (under != 0.0 && value.is_finite()).then_some(value)
    }
}
