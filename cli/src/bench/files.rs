//! The files that a bench writes: the chart, and the percentiles of each measurement.
//!
//! Whether the files can be written is checked before the first measurement.

use std::path::{Path, PathBuf};

use super::figures::Row;
use super::plan::Plan;
use super::table::Setting;
use super::{Options, chart, hgrm};
use crate::output::Refusal;
use crate::writable;

/// The paths of the files.
#[derive(Debug)]
pub struct Files {
    svg: Option<PathBuf>,
    hgrm: Option<PathBuf>,
}

impl Files {
    /// # Errors
    /// A file cannot be written.
    pub fn new(options: &Options, plan: &Plan) -> Result<Files, Refusal> {
        let files = Files { svg: options.svg.clone(), hgrm: options.hgrm.clone() };
        let percentiles = plan.in_flight.iter().filter_map(|&n| files.percentiles(plan, n));
        let all = files.svg.clone().into_iter().chain(percentiles.flatten());
        for path in all {
            writable::check_writable(&path).map_err(|error| refused(&path, &error))?;
        }
        Ok(files)
    }

    /// Writes the files.
    ///
    /// # Errors
    /// A file cannot be written, although the check before the measurements succeeded.
    pub fn write(&self, setting: &Setting, rows: &[Row]) -> Result<(), Refusal> {
        if let Some(path) = &self.svg {
            let text = chart::svg(setting, rows);
            let text = text.map_err(|error| Refusal::internal(format!("picture: {error}")))?;
            write(path, &text)?;
        }
        for row in rows {
            if let Some([acquire, release]) = self.percentiles(setting.plan, row.in_flight) {
                write(&acquire, &hgrm::text(&row.tally.acquire))?;
                write(&release, &hgrm::text(&row.tally.release))?;
            }
        }
        Ok(())
    }

    /// The files of one measurement: for acquire and for release.
    fn percentiles(&self, plan: &Plan, in_flight: usize) -> Option<[PathBuf; 2]> {
        let path = self.hgrm.as_deref()?;
        let suffix = if plan.is_sweep() { format!("-{in_flight}") } else { String::new() };
        Some([with_suffix(path, &suffix), with_suffix(path, &format!("{suffix}-release"))])
    }
}

/// This path with `suffix` after the name, before its extension.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(suffix);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn write(path: &Path, text: &str) -> Result<(), Refusal> {
    std::fs::write(path, text).map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::config(format!("{} cannot be written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suffix_stands_before_the_extension() {
        let cases = [
            ("a/b.hgrm", "", "a/b.hgrm"),
            ("a/b.hgrm", "-8-release", "a/b-8-release.hgrm"),
            ("b", "-8", "b-8"),
            ("b.c.d", "-8", "b.c-8.d"),
        ];
        for (path, suffix, expected) in cases {
            assert_eq!(with_suffix(Path::new(path), suffix), Path::new(expected));
        }
    }
}
