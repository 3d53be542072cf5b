//! How often at least one of k trials passes, and how often all of k do.
//!
//! Pure.

/// The unbiased estimate of pass@k: the probability that at least one of `k` trials passes, from
/// `passed` of `trials`. `None` for fewer than `k` trials.
pub fn pass_at_k(passed: u32, trials: u32, k: u32) -> Option<f64> {
    all_of(trials.checked_sub(passed)?, trials, k).map(|none| 1.0 - none)
}

/// The unbiased estimate of pass^k: the probability that all of `k` trials pass. `None` for fewer
/// than `k` trials.
pub fn pass_hat_k(passed: u32, trials: u32, k: u32) -> Option<f64> {
    all_of(passed, trials, k)
}

/// C(chosen, k) / C(trials, k), as a product, which cannot overflow.
fn all_of(chosen: u32, trials: u32, k: u32) -> Option<f64> {
    if k == 0 || k > trials || chosen > trials {
        return None;
    }
    Some(
        (0..k)
            .map(|drawn| f64::from(chosen.saturating_sub(drawn)) / f64::from(trials - drawn))
            .product(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts among all choices of k trials.
    fn counted(passed: u32, trials: u32, k: u32) -> (f64, f64) {
        let (mut any, mut all, mut choices) = (0, 0, 0);
        for set in 0u32..1 << trials {
            if set.count_ones() != k {
                continue;
            }
            let hits = (set & ((1 << passed) - 1)).count_ones();
            choices += 1;
            any += u32::from(hits > 0);
            all += u32::from(hits == k);
        }
        (
            f64::from(any) / f64::from(choices),
            f64::from(all) / f64::from(choices),
        )
    }

    #[test]
    fn estimates_equal_the_count_over_all_choices() {
        for trials in 1..=8 {
            for passed in 0..=trials {
                for k in 1..=trials {
                    let (any, all) = counted(passed, trials, k);
                    let at = pass_at_k(passed, trials, k).unwrap();
                    let hat = pass_hat_k(passed, trials, k).unwrap();
                    assert!((at - any).abs() < 1e-12 && (hat - all).abs() < 1e-12);
                }
            }
        }
        assert_eq!(pass_at_k(1, 2, 3), None);
        assert_eq!(pass_hat_k(1, 2, 0), None);
        assert_eq!(pass_at_k(3, 2, 1), None);
    }
}
