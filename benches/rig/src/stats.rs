//! Medians and spreads.

/// The middle of `values`, the mean of the middle two for an even count; 0 without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

/// The value below which `share` of `values` lie; 0 without values.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index within the slice"
    )]
    let index = (share.clamp(0.0, 1.0) * last).round() as usize;
    values.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 1.0), 3.0);
    }
}
