//! How long an acquire takes while all nodes run, and while one is frozen, for each contender.
//!
//! The scale is logarithmic. The hazard is a headline that the figures do not bear out: drawing
//! panics then.

use super::figures::{Figures, Record, Row};
use super::svg::{Area, FAINT, GREY, INK, Svg, WIDTH, style};
use super::{MARGIN, TEXT, entry, headline, name};

/// How many locks are in flight in the cases that are drawn; the tables have more of them.
const IN_FLIGHT: [usize; 2] = [1, 64];

const LEFT: f64 = 266.0;
const RIGHT: f64 = WIDTH - 40.0;
/// The ends of the scale, in microseconds.
const LEAST: f64 = 10.0;
const MOST: f64 = 1_000_000.0;
const BAR: f64 = 13.0;
const ROW: f64 = 42.0;

const RUNNING: &str = "#9a9a9a";
const FROZEN: &str = "#0072b2";

/// The whole picture.
pub fn svg(record: &Record) -> String {
    let mut svg = Svg::new();
    let lines = point(record);
    headline(&mut svg, [&lines[0], &lines[1]]);
    svg.text(&format!("{}.", record.about), (MARGIN, 78.0), TEXT.ink(GREY));
    let y = 106.0;
    entry(&mut svg, (MARGIN, y), RUNNING, "all five nodes run");
    entry(&mut svg, (MARGIN + 170.0, y), FROZEN, "one node is frozen");
    let ends = "a bar: from the median to the 99th percentile";
    svg.text(ends, (MARGIN + 345.0, y), TEXT);
    let mut top = 134.0;
    let mut metadata = vec![record.about.clone()];
    for in_flight in IN_FLIGHT {
        let running = format!("{in_flight} in flight");
        let frozen = format!("{in_flight} in flight, one node frozen");
        let title = format!("acquire, {in_flight} {}", locks(in_flight));
        svg.text(&title, (MARGIN, top), style(15.0).bold());
        let rows: Vec<&Row> = record.case(&running).collect();
        axis(&mut svg, top, ROW * rows.len() as f64);
        top += 18.0;
        for row in rows {
            let other = record.case(&frozen).find(|it| it.contender == row.contender);
            let label = if row.is_ours() { TEXT.bold() } else { TEXT };
            svg.text(&name(&row.contender), (MARGIN, top + ROW / 2.0), label);
            bar(&mut svg, row, top + 5.0, RUNNING);
            metadata.push(shown(row));
            if let Some(other) = other {
                bar(&mut svg, other, top + 8.0 + BAR, FROZEN);
                metadata.push(shown(other));
            }
            top += ROW;
        }
        top += 36.0;
    }
    svg.finish(top - 24.0, &lines.join(" "), &metadata.join("\n"))
}

/// The headline: what the figures with a frozen node say.
fn point(record: &Record) -> [String; 2] {
    let case = format!("{} in flight, one node frozen", IN_FLIGHT[0]);
    let medians = |is_wanted: fn(&&Row) -> bool| {
        let figures = record.case(&case).filter(is_wanted).flat_map(|row| &row.figures);
        figures.map(|figures| figures.p50_us).fold(0.0, f64::max)
    };
    let ours = medians(|row| row.is_ours());
    let by_hand = medians(|row| row.contender.ends_with("by hand"));
    let rslock = medians(|row| row.contender == "rslock");
    let holds = ours > 0.0 && ours < by_hand && by_hand < 1e3 && rslock > 1e5;
    assert!(holds, "the headline does not hold: {ours}, {by_hand}, {rslock}");
    let ours = time(ours);
    [
        format!("With one of five nodes frozen, redlatch has a lock in {ours} (median)."),
        format!("rslock waits {}. Clients with a quorum by hand do not wait.", time(rslock)),
    ]
}

fn locks(number: usize) -> &'static str {
    if number == 1 { "lock in flight" } else { "locks in flight" }
}

/// The text beside a bar.
fn shown(row: &Row) -> String {
    let Row { case, contender, figures } = row;
    let figures = figures.as_ref().map(|it| format!("{} us, {} us", it.p50_us, it.p99_us));
    format!("{case} | {contender} | {}", figures.unwrap_or_else(Clone::clone))
}

/// Draws the scale of a panel whose title is at `top`.
fn axis(svg: &mut Svg, top: f64, height: f64) {
    let mut tick = LEAST;
    while tick <= MOST {
        let x = x(tick);
        let text = time(tick).replace(".0 ", " ");
        svg.text(&text, (x, top), TEXT.ink(GREY).centred());
        svg.line(&[(x, top + 12.0), (x, top + 18.0 + height)], FAINT, 1.0);
        tick *= 10.0;
    }
}

/// Draws one bar with its ends in words, or why there is none.
fn bar(svg: &mut Svg, row: &Row, top: f64, colour: &str) {
    let middle = top + BAR / 2.0;
    let Figures { p50_us, p99_us, .. } = match &row.figures {
        Ok(figures) => figures,
        Err(why) => {
            svg.text(why, (x(MOST) - 6.0, middle), TEXT.bold().ink(INK).ending().halo());
            return;
        }
    };
    let (left, right) = (x(*p50_us), x(*p99_us));
    svg.rectangle(Area { left, top, width: (right - left).max(8.0), height: BAR }, colour);
    let (least, most) = (time(*p50_us), time(*p99_us));
    let text = if least == most { least } else { format!("{least} to {most}") };
    // The text is left of a bar that ends at the end of the scale.
    if right > RIGHT - 150.0 {
        svg.text(&text, (left - 7.0, middle), TEXT.bold().ending().halo());
    } else {
        svg.text(&text, (right + 7.0, middle), TEXT.halo());
    }
}

fn x(micros: f64) -> f64 {
    let part = (micros.clamp(LEAST, MOST) / LEAST).ln() / (MOST / LEAST).ln();
    LEFT + part * (RIGHT - LEFT)
}

/// A time with its unit.
fn time(micros: f64) -> String {
    match micros {
        999_500.0.. => format!("{} s", rounded(micros / 1e6)),
        999.5.. => format!("{} ms", rounded(micros / 1e3)),
        _ => format!("{micros:.0} µs"),
    }
}

/// Rounds to two significant digits at least.
fn rounded(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}
