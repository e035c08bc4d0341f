//! Order statistics of samples.

/// The `q`-quantile (0 to 1) by the nearest-rank method; `None` without samples.
/// Reorders `samples`.
pub fn quantile(samples: &mut [f64], q: f64) -> Option<f64> {
    let rank = (q * samples.len() as f64).ceil() as usize;
    let index = rank.max(1).checked_sub(1)?;
    if index >= samples.len() {
        return None;
    }
    let (_, value, _) = samples.select_nth_unstable_by(index, f64::total_cmp);
    Some(*value)
}

/// The middle sample (the lower of two); `None` without samples. Reorders `samples`.
pub fn median(samples: &mut [f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank() {
        let mut s: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(median(&mut s), Some(50.0));
        assert_eq!(quantile(&mut s, 0.99), Some(99.0));
        assert_eq!(quantile(&mut s, 1.0), Some(100.0));
        assert_eq!(quantile(&mut s, 0.0), Some(1.0));
    }

    #[test]
    fn a_quantile_of_few_samples_is_one_of_them() {
        assert_eq!(median(&mut []), None);
        assert_eq!(quantile(&mut [7.0], 0.99), Some(7.0));
        assert_eq!(median(&mut [3.0, 1.0]), Some(1.0));
        assert_eq!(median(&mut [9.0, 1.0, 5.0]), Some(5.0));
    }
}
