//! Pairs a second and the client's time on the processors by locks in flight, as lines on a
//! logarithmic scale.

use super::figures::{Figures, Record, grouped};
use super::svg::{FAINT, GREY, Svg, style};
use super::{MARGIN, TEXT, entry, headline, name};

/// How many locks are in flight.
const IN_FLIGHT: [usize; 4] = [1, 8, 64, 512];

/// The case that the headline is about.
const HEADLINE: usize = 64;

const PANEL: f64 = 415.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 196.0;
const HEIGHT: f64 = 220.0;

/// Colours that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#e69f00"];

/// A figure for each contender and number of locks.
struct Panel {
    title: &'static str,
    field: fn(&Figures) -> f64,
    /// The numbers at the scale, from the least to the most.
    ticks: Vec<f64>,
}

/// The whole picture.
pub fn svg(record: &Record) -> String {
    let mut svg = Svg::new();
    let mut names: Vec<&str> = Vec::new();
    let cases = IN_FLIGHT.map(|number| format!("{number} in flight"));
    let rows: Vec<_> = cases.iter().flat_map(|case| record.case(case)).collect();
    for row in &rows {
        if !names.contains(&row.contender.as_str()) {
            names.push(&row.contender);
        }
    }
    let lines = point(record);
    headline(&mut svg, [&lines[0], &lines[1]]);
    for (number, contender) in names.iter().enumerate() {
        let x = MARGIN + (number % 2) as f64 * PANEL;
        let y = 84.0 + (number / 2) as f64 * 24.0;
        entry(&mut svg, (x, y), colour(number), &name(contender));
    }
    let panels = [("pairs a second", (|it| it.pairs_per_s) as fn(&Figures) -> f64), {
        ("CPU of the client, µs a pair", |it| it.cpu_us)
    }];
    for ((title, field), left) in panels.into_iter().zip([0.0, PANEL]) {
        let values = rows.iter().filter_map(|row| row.figures.as_ref().ok()).map(field);
        let panel = Panel { title, field, ticks: ticks(&values.collect::<Vec<_>>()) };
        panel.draw(&mut svg, left, record, &names);
    }
    let mut metadata = vec![record.about.clone()];
    metadata.extend(rows.iter().filter_map(|row| {
        let Figures { cpu_us, pairs_per_s, .. } = row.figures.as_ref().ok()?;
        let (case, contender) = (&row.case, &row.contender);
        Some(format!("{case} | {contender} | {pairs_per_s} pairs a second, {cpu_us} us a pair"))
    }));
    svg.finish(TOP + HEIGHT + 58.0, &lines.join(" "), &metadata.join("\n"))
}

/// The headline: the least of redlatch's figures and the greatest of the others'.
fn point(record: &Record) -> [String; 2] {
    let case = format!("{HEADLINE} in flight");
    let pairs = |ours: bool| {
        let rows = record.case(&case).filter(move |row| row.is_ours() == ours);
        rows.flat_map(|row| &row.figures).map(|it| it.pairs_per_s)
    };
    let (ours, others) = (pairs(true).fold(f64::MAX, f64::min), pairs(false).fold(0.0, f64::max));
    assert!(ours < f64::MAX && others < ours, "the headline does not hold: {ours}, {others}");
    [
        format!(
            "{HEADLINE} locks in flight: redlatch does {} pairs a second or more.",
            grouped(ours, 0)
        ),
        format!("The other clients do {} or fewer.", grouped(others, 0)),
    ]
}

impl Panel {
    fn draw(&self, svg: &mut Svg, left: f64, record: &Record, names: &[&str]) {
        let across = PANEL - LEFT - RIGHT;
        let x = |place: usize| left + LEFT + (place as f64 + 0.5) / IN_FLIGHT.len() as f64 * across;
        let (low, high) = (self.ticks[0].ln(), self.ticks[self.ticks.len() - 1].ln());
        let y = |value: f64| TOP + (high - value.ln()) / (high - low) * HEIGHT;
        svg.text(self.title, (left + MARGIN, TOP - 24.0), style(15.0).bold());
        for &tick in &self.ticks {
            let y = y(tick);
            svg.line(&[(left + LEFT, y), (left + PANEL - RIGHT, y)], FAINT, 1.0);
            svg.text(&grouped(tick, 0), (left + LEFT - 7.0, y), TEXT.ink(GREY).ending());
        }
        for (place, number) in IN_FLIGHT.iter().enumerate() {
            svg.text(&number.to_string(), (x(place), TOP + HEIGHT + 16.0), TEXT.centred());
        }
        let below = (left + LEFT + across / 2.0, TOP + HEIGHT + 38.0);
        svg.text("locks in flight", below, TEXT.ink(GREY).centred());
        for (number, name) in names.iter().enumerate() {
            let points: Vec<(f64, f64)> = IN_FLIGHT
                .iter()
                .enumerate()
                .filter_map(|(place, in_flight)| {
                    let case = format!("{in_flight} in flight");
                    let row =
                        record.rows.iter().find(|it| it.case == case && it.contender == *name)?;
                    let figures = row.figures.as_ref().ok()?;
                    Some((x(place), y((self.field)(figures))))
                })
                .collect();
            svg.line(&points, colour(number), 2.5);
            points.iter().for_each(|&point| svg.circle(point, 4.0, colour(number)));
        }
    }
}

/// 1, 2 and 5 of each power of ten, from the last one below all values to the first one above.
fn ticks(values: &[f64]) -> Vec<f64> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    let steps = (0..9).flat_map(|power| [1.0, 2.0, 5.0].map(|it| it * 10_f64.powi(power)));
    let steps: Vec<f64> = steps.collect();
    let from = steps.iter().rposition(|step| *step <= least).unwrap_or(0);
    let to = steps.iter().position(|step| *step >= most).unwrap_or(steps.len() - 1);
    steps[from..=to.max(from + 1)].to_vec()
}

fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}
