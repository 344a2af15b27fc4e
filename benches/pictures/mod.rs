//! The pictures of benches/README.md, drawn from the recorded figures. Nothing is measured here.

pub mod figures;
pub mod latency;
#[path = "../../cli/src/demo/svg.rs"]
#[allow(dead_code, reason = "the demo's picture uses more of it")]
mod svg;
pub mod throughput;

use svg::{Area, FAINT, SMALL, Style, Svg, style};

const MARGIN: f64 = 16.0;

const TEXT: Style = style(SMALL);

/// Writes the headline of a picture in one line or two.
fn headline(svg: &mut Svg, lines: [&str; 2]) {
    svg.text(lines[0], (MARGIN, 28.0), style(18.0).bold());
    svg.text(lines[1], (MARGIN, 52.0), style(16.0).bold());
}

/// Draws an entry of the legend.
fn entry(svg: &mut Svg, (x, y): (f64, f64), colour: &str, word: &str) {
    svg.framed(Area { left: x, top: y - 8.0, width: 22.0, height: 16.0 }, colour, FAINT);
    svg.text(word, (x + 30.0, y), TEXT);
}

/// A contender's name, as text of a picture.
fn name(contender: &str) -> String {
    contender.replace('`', "")
}
