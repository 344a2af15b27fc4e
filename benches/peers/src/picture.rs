//! Lines over named places, on a logarithmic scale, as SVG.
//!
//! Panels stand two in a row, and share one legend. The hazard is a value that is not positive: a
//! logarithmic scale has no place for it, so it is left out.

use std::fmt::Write;

/// A diagram.
pub struct Panel {
    pub title: String,
    /// What the places are.
    pub below: String,
    pub places: Vec<String>,
    pub lines: Vec<Line>,
}

/// A value for each place that has one.
pub struct Line {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;
const LEGEND_LINE: f64 = 20.0;

/// Colors that people with any sight can tell apart (Okabe and Ito).
const COLORS: [&str; 6] = ["#0072b2", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#e69f00"];

/// The whole picture.
pub fn draw(panels: &[Panel]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if !names.contains(&line.name.as_str()) {
            names.push(&line.name);
        }
    }
    let (rows, legend_rows) = (panels.len().div_ceil(2), names.len().div_ceil(2));
    let (width, height) =
        (2.0 * WIDTH, rows as f64 * HEIGHT + legend_rows as f64 * LEGEND_LINE + 16.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (number, panel) in panels.iter().enumerate() {
        let (x, y) = ((number % 2) as f64 * WIDTH, (number / 2) as f64 * HEIGHT);
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        one(&mut svg, panel, &names);
        svg.push_str("</g>\n");
    }
    for (number, name) in names.iter().enumerate() {
        let x = LEFT + (number % 2) as f64 * WIDTH;
        let y = rows as f64 * HEIGHT + (number / 2) as f64 * LEGEND_LINE + 16.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {y}h24\" stroke=\"{}\" stroke-width=\"2.5\"/>\
             <text x=\"{}\" y=\"{}\" fill=\"#222222\">{}</text>",
            color(number),
            x + 32.0,
            y + 4.0,
            text(name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn one(svg: &mut String, panel: &Panel, names: &[&str]) {
    let values = panel.lines.iter().flat_map(|line| &line.values).flatten().copied();
    let values: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    let ticks = ticks(least, most);
    let (Some(low), Some(high)) = (ticks.first(), ticks.last()) else { return };
    let (low, high) = (low.ln(), high.ln());
    let (across, down) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let x = |place: usize| LEFT + (place as f64 + 0.5) / panel.places.len() as f64 * across;
    let y = |value: f64| TOP + (high - value.ln()) / (high - low) * down;
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"20\" font-weight=\"bold\" fill=\"#222222\">{}</text>",
        text(&panel.title)
    );
    for tick in &ticks {
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {0:.1}h{across}\" stroke=\"#dddddd\"/><text x=\"{1}\" y=\"{2:.1}\" \
             text-anchor=\"end\" fill=\"#555555\">{3}</text>",
            y(*tick),
            LEFT - 6.0,
            y(*tick) + 4.0,
            short(*tick)
        );
    }
    for (place, name) in panel.places.iter().enumerate() {
        let (x, y) = (x(place), TOP + down + 18.0);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>",
            text(name)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>",
        LEFT + across / 2.0,
        TOP + down + 36.0,
        text(&panel.below)
    );
    for line in &panel.lines {
        let number = names.iter().position(|name| *name == line.name).unwrap_or(0);
        let points = line.values.iter().enumerate();
        let points: Vec<String> = points
            .filter_map(|(place, value)| Some((place, value.filter(|value| *value > 0.0)?)))
            .map(|(place, value)| format!("{:.1},{:.1}", x(place), y(value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>",
            points.join(" "),
            color(number)
        );
        for point in &points {
            let (x, y) = point.split_once(',').unwrap_or((point, "0"));
            let color = color(number);
            let _ = writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3.5\" fill=\"{color}\"/>");
        }
    }
}

/// 1, 2 and 5 of each power of ten, from the last one below all values to the first one above.
fn ticks(least: f64, most: f64) -> Vec<f64> {
    let steps = (-3..9).flat_map(|power| [1.0, 2.0, 5.0].map(|it| it * 10_f64.powi(power)));
    let steps: Vec<f64> = steps.collect();
    let from = steps.iter().rposition(|step| *step <= least).unwrap_or(0);
    let to = steps.iter().position(|step| *step >= most).unwrap_or(steps.len() - 1);
    steps.get(from..=to.max(from + 1)).unwrap_or_default().to_vec()
}

fn short(value: f64) -> String {
    match value {
        1e6.. => format!("{}M", value / 1e6),
        1e3.. => format!("{}k", value / 1e3),
        _ => format!("{value}"),
    }
}

fn color(number: usize) -> &'static str {
    COLORS[number % COLORS.len()]
}

/// Text of SVG.
fn text(plain: &str) -> String {
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('`', "")
}
