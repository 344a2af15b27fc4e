//! Medians and quantiles.
//!
//! They are exact. A histogram for each of 512 tasks would have to be cleared and merged inside the
//! round, on the processors that are measured.

/// The least value that this part of the values does not exceed; NaN if there are no values.
pub fn quantile(sorted: &[u64], part: f64) -> f64 {
    let place = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(place.saturating_sub(1)).map_or(f64::NAN, |&value| value as f64)
}

/// The median of the values without NaN; NaN if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values[..] {
        [] => f64::NAN,
        _ if values.len() % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}
