//! The chart: latency by percentile on a log axis and, if several measurements are compared,
//! throughput against how many pairs were in flight.
//!
//! The chart is SVG with text elements. This file does not know how wide a text is, so no position
//! depends on it.

use std::ops::Range;

use hdrhistogram::Histogram;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use redlatch::majority;

use super::figures::{Row, count, time};
use super::plan::Plan;
use super::table::{Setting, acquire_word, how_pairs_begin, in_flight_word, method};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

const WIDTH: u32 = 960;
const PANEL: u32 = 520;
const HEAD: u32 = 98;

/// The width and height of an entry in the legend, in pixels.
const ENTRY: (i32, i32) = (226, 24);
const ENTRIES_A_ROW: usize = 4;

/// Colours that colour-blind people can distinguish.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

const INK: RGBColor = RGBColor(40, 40, 40);
const FAINT: RGBColor = RGBColor(225, 225, 225);
const FONT: &str = "sans-serif";

/// How many points a line has each time that the distance to 100 % halves.
const POINTS_PER_HALVING: u32 = 20;

/// Draws the whole picture.
///
/// # Errors
/// The drawing library failed.
pub fn svg(setting: &Setting, rows: &[Row]) -> Result<String, Box<dyn std::error::Error>> {
    let plan = setting.plan;
    let sweep = plan.is_sweep();
    let lines = if sweep { compared(plan, rows) } else { both(plan, rows) };
    let key = lines.len().div_ceil(ENTRIES_A_ROW) as u32 * ENTRY.1 as u32;
    let height = HEAD + key + PANEL + if sweep { PANEL } else { 0 };
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, body) = root.split_vertically(HEAD);
        let (key, body) = body.split_vertically(key);
        title(&head, setting)?;
        legend(&key, &lines)?;
        let (upper, lower) = body.split_vertically(PANEL);
        percentiles(&upper, &lines)?;
        if sweep {
            throughput(&lower, plan, rows)?;
        }
        root.present()?;
    }
    Ok(text)
}

/// An axis with marks at given values.
struct Axis {
    range: Range<f64>,
    marks: Vec<f64>,
}

impl Axis {
    fn new(range: Range<f64>, marks: Vec<f64>) -> Axis {
        Axis { range, marks }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        first + (part * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // The drawing library also asks for light points between the marks: there are none.
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

fn title(area: &Area, setting: &Setting) -> Drawn {
    let Setting { plan, nodes, ttl, .. } = setting;
    let (duration, each) = (plan.duration, if plan.is_sweep() { " each" } else { "" });
    let style = (FONT, 26).into_font().style(FontStyle::Bold).color(&INK);
    let plural = if *nodes == 1 { "" } else { "s" };
    area.draw(&Text::new(format!("redlatch bench on {nodes} node{plural}"), (24, 14), style))?;
    let lines = [
        format!(
            "{}; quorum {}, ttl {ttl:?}, {duration:?}{each}",
            how_pairs_begin(plan.mode),
            majority(*nodes)
        ),
        format!("latency: {}", method(plan.mode)),
    ];
    for (line, y) in lines.into_iter().zip([46, 68]) {
        area.draw(&Text::new(line, (24, y), (FONT, 16).into_font().color(&INK)))?;
    }
    Ok(())
}

/// Draws the legend in a strip above the chart, where no line can run through it.
fn legend(area: &Area, lines: &[Line]) -> Drawn {
    for (index, line) in lines.iter().enumerate() {
        let (column, row) = (index % ENTRIES_A_ROW, index / ENTRIES_A_ROW);
        let (x, y) = (28 + column as i32 * ENTRY.0, 12 + row as i32 * ENTRY.1);
        let stroke = COLOURS[index % COLOURS.len()].stroke_width(3);
        area.draw(&PathElement::new([(x, y), (x + 24, y)], stroke))?;
        let style = (FONT, 16).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(line.label.as_str(), (x + 32, y), style))?;
    }
    Ok(())
}

/// A line of the chart of percentiles.
struct Line {
    label: String,
    /// The decimal logarithms of 1/(1-percentile) and of the nanoseconds.
    points: Vec<(f64, f64)>,
}

impl Line {
    fn new(label: String, histogram: &Histogram<u64>) -> Line {
        let last = (histogram.len().max(1) as f64).log10();
        let points = histogram.iter_quantiles(POINTS_PER_HALVING).map(|step| {
            // The greatest of n values has no percentile of its own (1/(1-1) is infinite), so it is
            // drawn at 1/(1-percentile) = n.
            let nines = -(1.0 - step.quantile_iterated_to()).log10();
            (nines.clamp(0.0, last), (step.value_iterated_to().max(1) as f64).log10())
        });
        Line { label, points: points.collect() }
    }
}

/// The lines of one measurement: acquire and release.
fn both(plan: &Plan, rows: &[Row]) -> Vec<Line> {
    let lines = rows.iter().flat_map(|row| {
        let acquire = Line::new(acquire_word(plan.mode).into(), &row.tally.acquire);
        [acquire, Line::new("release".into(), &row.tally.release)]
    });
    lines.collect()
}

/// The lines of several measurements: acquire only.
fn compared(plan: &Plan, rows: &[Row]) -> Vec<Line> {
    let what = format!("{}, ", acquire_word(plan.mode));
    let label = |row: &Row| format!("{what}{} {}", row.in_flight, in_flight_word(plan.mode));
    rows.iter().map(|row| Line::new(label(row), &row.tally.acquire)).collect()
}

fn percentiles(area: &Area, lines: &[Line]) -> Drawn {
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let right = points().map(|(x, _)| x).fold(2.0, f64::max);
    let low = points().map(|(_, y)| y).fold(f64::INFINITY, f64::min).min(6.0);
    let high = points().map(|(_, y)| y).fold(low + 0.5, f64::max);
    let y_range = low - 0.1..high + 0.1;
    let xs = nines(right);
    let ys = round_times(y_range.start, y_range.end);
    let mut chart = ChartBuilder::on(area)
        .margin_right(34)
        .margin_left(10)
        .margin_top(8)
        .margin_bottom(10)
        .x_label_area_size(56)
        .y_label_area_size(84)
        .build_cartesian_2d(Axis::new(0.0..right * 1.01, xs), Axis::new(y_range, ys))?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK)
        .label_style((FONT, 16).into_font().color(&INK))
        .axis_desc_style((FONT, 17).into_font().color(&INK))
        .x_desc("percentile")
        .y_desc("latency")
        .x_label_formatter(&|&x| percentile(x))
        .y_label_formatter(&|&y| short_time(y))
        .draw()?;
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        chart.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?;
        // The dot at the end makes a line visible that has only one point.
        let longest = line.points.last().copied();
        chart.draw_series(longest.map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    Ok(())
}

fn throughput(area: &Area, plan: &Plan, rows: &[Row]) -> Drawn {
    let log = |row: &Row| (row.in_flight as f64).log10();
    let mut points: Vec<_> = rows.iter().map(|row| (log(row), row.pairs_per_s())).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (left, right) = (points[0].0, points[points.len() - 1].0);
    let room = (right - left).max(0.3) * 0.08;
    let top = points.iter().map(|&(_, y)| y).fold(1.0, f64::max) * 1.15;
    let xs = points.iter().map(|&(x, _)| x).collect();
    let ys = round_numbers(top);
    let mut chart = ChartBuilder::on(area)
        .margin_right(34)
        .margin_left(10)
        .margin_top(18)
        .margin_bottom(14)
        .x_label_area_size(56)
        .y_label_area_size(84)
        .build_cartesian_2d(Axis::new(left - room..right + room, xs), Axis::new(0.0..top, ys))?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK)
        .label_style((FONT, 16).into_font().color(&INK))
        .axis_desc_style((FONT, 17).into_font().color(&INK))
        .x_desc(in_flight_word(plan.mode))
        .y_desc("pairs a second")
        .x_label_formatter(&|&x| format!("{:.0}", 10_f64.powf(x)))
        .y_label_formatter(&|&y| count(y.round() as u64))
        .draw()?;
    let colour = COLOURS[0];
    chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
    let style = (FONT, 16).into_font().color(&INK);
    for (index, &(x, y)) in points.iter().enumerate() {
        // The label is above the point, on the side on which the line is lower.
        let (before, here) = (index.saturating_sub(1), index.max(1).min(points.len() - 1));
        let falls = points[here].1 < points[before].1;
        let (side, aside) = if falls { (HPos::Left, 4) } else { (HPos::Right, -4) };
        let style = style.clone().pos(Pos::new(side, VPos::Bottom));
        let number = Text::new(count(y.round() as u64), (aside, -8), style);
        let dot = Circle::new((0, 0), 4, colour.filled());
        chart.draw_series([EmptyElement::at((x, y)) + dot + number])?;
    }
    Ok(())
}

/// The positions of the usual percentiles on the axis.
fn nines(right: f64) -> Vec<f64> {
    let decades = (1..=12).map(f64::from);
    [0.0, 2_f64.log10()].into_iter().chain(decades).filter(|&x| x <= right * 1.001).collect()
}

/// The label of a position on the axis of percentiles, such as `99.9%`.
fn percentile(x: f64) -> String {
    let digits = (x.round() as usize).saturating_sub(2);
    format!("{:.digits$}%", 100.0 * (1.0 - 10_f64.powf(-x)))
}

/// The marks of the time axis: times that begin with 1, and with 2 and 5 if the axis is short.
fn round_times(low: f64, high: f64) -> Vec<f64> {
    let steps: &[f64] = if high - low > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let decades = low.floor() as i32..=high.ceil() as i32;
    let all = decades.flat_map(|decade| steps.iter().map(move |s| s.log10() + f64::from(decade)));
    all.filter(|y| (low..=high).contains(y)).collect()
}

/// Marks from zero to `top`, at most seven steps apart of 1, 2 or 5 times a power of ten.
fn round_numbers(top: f64) -> Vec<f64> {
    let decade = 10_f64.powf((top / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
    let step = steps.into_iter().find(|step| top / step <= 7.0).unwrap_or(steps[3]);
    (0..8).map(|n| f64::from(n) * step).filter(|&mark| mark <= top).collect()
}

/// The label of a position on the time axis, such as `200 µs`.
fn short_time(y: f64) -> String {
    let nanos = 10_f64.powf(y).round() as u64;
    // The digits after the point of a round time are zeros.
    time(nanos).replace(".00", "").replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_labels_are_in_the_usual_units() {
        let said: Vec<_> = nines(4.2).into_iter().map(percentile).collect();
        assert_eq!(said, ["0%", "50%", "90%", "99%", "99.9%", "99.99%"]);
        let said: Vec<_> = round_times(4.2, 6.1).into_iter().map(short_time).collect();
        assert_eq!(said, ["20 µs", "50 µs", "100 µs", "200 µs", "500 µs", "1 ms"]);
        assert_eq!(round_times(4.2, 8.1).len(), 4);
        assert_eq!(round_numbers(11_500.0), [0.0, 2e3, 4e3, 6e3, 8e3, 1e4]);
        assert_eq!(round_numbers(1.15).len(), 6);
    }
}
