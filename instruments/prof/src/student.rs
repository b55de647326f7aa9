//! Student's t: how many standard errors about a mean contain it.

/// Returns the number of standard errors on either side of a mean that contain it with probability
/// `level`: Student's t with `freedom` degrees of freedom.
#[must_use]
pub fn student(freedom: usize, level: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if held_by(middle, freedom) < level { low = middle } else { high = middle }
    }
    low
}

/// Returns the probability that Student's t is within `t` of 0, from the finite sums for whole
/// degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
fn held_by(t: f64, freedom: usize) -> f64 {
    let root = (freedom as f64).sqrt();
    let (angle, sine) = ((t / root).atan(), t / t.hypot(root));
    let cosine = root / t.hypot(root);
    let is_odd = freedom % 2 == 1;
    let (mut term, mut sum) = (1.0, 1.0);
    for k in (2 + usize::from(is_odd)..freedom.saturating_sub(1)).step_by(2) {
        term *= cosine * cosine * (k - 1) as f64 / k as f64;
        sum += term;
    }
    match (is_odd, freedom) {
        (false, _) => sine * sum,
        (true, 1) => angle * std::f64::consts::FRAC_2_PI,
        (true, _) => (angle + sine * cosine * sum) * std::f64::consts::FRAC_2_PI,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_tables() {
        for (freedom, t) in [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (120, 1.980)] {
            assert!((student(freedom, 0.95) - t).abs() < 5e-4, "{freedom}");
        }
    }
}
