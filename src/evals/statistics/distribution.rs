//! Student's t distribution and binomial sums.
//!
//! Pure.

use std::f64::consts::PI;

/// Terms of the continued fraction; it converges in a few dozen.
const TERMS: u32 = 300;

/// Halvings of the search for a quantile: to the last bits of a double.
const HALVINGS: u32 = 60;

/// The natural logarithm of the gamma function, for `x > 0` (Lanczos).
pub fn ln_gamma(x: f64) -> f64 {
    const G: f64 = 7.0;
    const C: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        return (PI / (PI * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let mut sum = 0.0;
    let mut place = 0.0;
    for term in C {
        sum += if place == 0.0 {
            term
        } else {
            term / (x + place)
        };
        place += 1.0;
    }
    let t = x + G + 0.5;
    0.5 * (2.0 * PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// The regularized incomplete beta function.
fn beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front =
        (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(x, a, b) / a
    } else {
        1.0 - front * fraction(1.0 - x, b, a) / b
    }
}

/// The continued fraction of the incomplete beta function (Lentz).
fn fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away(1.0 - (a + b) * x / (a + 1.0));
    let mut result = d;
    for term in 1..=TERMS {
        let m = f64::from(term);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away(1.0 + even * d);
        c = away(1.0 + even / c);
        result *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away(1.0 + odd * d);
        c = away(1.0 + odd / c);
        let step = d * c;
        result *= step;
        if (step - 1.0).abs() < 1e-15 {
            break;
        }
    }
    result
}

/// The probability that a t with `df` degrees of freedom is farther from 0 than `t`.
pub fn t_two_sided(t: f64, df: f64) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    beta(df / (df + t * t), df / 2.0, 0.5)
}

/// The quantile of t for a probability of one half or more.
pub fn t_quantile(probability: f64, df: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    let tail = 2.0 * (1.0 - probability);
    while t_two_sided(high, df) > tail && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if t_two_sided(middle, df) > tail {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// The two-sided probability that a fair coin falls as unevenly as `heads` to `tails`, or more so.
pub fn sign_test(heads: u32, tails: u32) -> f64 {
    let n = heads + tails;
    let few = heads.min(tails);
    let log_half = f64::from(n) * 0.5_f64.ln();
    let below: f64 = (0..=few).map(|k| (ln_choose(n, k) + log_half).exp()).sum();
    (2.0 * below).min(1.0)
}

fn ln_choose(n: u32, k: u32) -> f64 {
    ln_gamma(f64::from(n) + 1.0) - ln_gamma(f64::from(k) + 1.0) - ln_gamma(f64::from(n - k) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-6, "{left} {right}");
    }

    #[test]
    fn quantiles_are_those_of_printed_tables() {
        near(t_quantile(0.975, 1.0), 12.706_204_7);
        near(t_quantile(0.975, 12.0), 2.178_812_8);
        near(t_quantile(0.8, 12.0), 0.872_609_3);
        near(t_quantile(0.975, 1e7), 1.959_964_2);
        near(t_two_sided(2.178_812_83, 12.0), 0.05);
    }

    #[test]
    fn a_coin_is_judged_exactly() {
        near(sign_test(5, 0), 0.0625);
        near(sign_test(1, 9), 0.021_484_375);
        near(sign_test(3, 3), 1.0);
        near(sign_test(0, 0), 1.0);
    }
}
