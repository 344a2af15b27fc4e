//! Writes an SVG picture of rectangles, lines, circles, hatching and text elements, with metadata.
//!
//! This file does not know how wide a text is. The hazard is a text that runs into its neighbour,
//! so a caller has to place it where there is room for a wide font.

use std::fmt::Write;

/// The least size of a text, in pixels: README shows a picture at about its own size.
pub const SMALL: f64 = 13.0;

/// The width of every picture, in pixels: that of README.
pub const WIDTH: f64 = 830.0;

pub const INK: &str = "#222222";
pub const GREY: &str = "#5f5f5f";
pub const FAINT: &str = "#d0d0d0";
pub const PAPER: &str = "#ffffff";

/// The corner and the size of a rectangle.
#[derive(Debug, Clone, Copy)]
pub struct Area {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

/// How a text looks.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    size: f64,
    ink: &'static str,
    bold: bool,
    anchor: &'static str,
    halo: bool,
}

/// Text of this size that begins at the given position.
pub const fn style(size: f64) -> Style {
    Style { size, ink: INK, bold: false, anchor: "start", halo: false }
}

impl Style {
    pub const fn bold(self) -> Style {
        Style { bold: true, ..self }
    }

    pub const fn ink(self, ink: &'static str) -> Style {
        Style { ink, ..self }
    }

    /// The given position is the middle of the text.
    pub const fn centred(self) -> Style {
        Style { anchor: "middle", ..self }
    }

    /// The given position is the end of the text.
    pub const fn ending(self) -> Style {
        Style { anchor: "end", ..self }
    }

    /// Gives the text a white outline, so that it can be read on hatching and on lines.
    pub const fn halo(self) -> Style {
        Style { halo: true, ..self }
    }
}

/// A picture: what is drawn later covers what was drawn before.
#[derive(Debug)]
pub struct Svg {
    hatching: String,
    body: String,
}

impl Svg {
    pub fn new() -> Svg {
        Svg { hatching: String::new(), body: String::new() }
    }

    /// Declares hatching with this name and colour; it is used as the fill `url(#name)`.
    pub fn hatch(&mut self, name: &str, colour: &str) {
        let _ = writeln!(
            self.hatching,
            "<pattern id=\"{name}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"8\" height=\"8\" fill=\"{PAPER}\"/>\
             <rect width=\"3.5\" height=\"8\" fill=\"{colour}\"/></pattern>"
        );
    }

    pub fn rectangle(&mut self, area: Area, fill: &str) {
        self.framed(area, fill, "none");
    }

    pub fn framed(&mut self, area: Area, fill: &str, frame: &str) {
        let Area { left, top, width, height } = area;
        let _ = writeln!(
            self.body,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{fill}\" stroke=\"{frame}\"/>"
        );
    }

    /// Draws a line of this width through these points.
    pub fn line(&mut self, places: &[(f64, f64)], colour: &str, width: f64) {
        let places: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let places = places.join(" ");
        let _ = writeln!(
            self.body,
            "<polyline points=\"{places}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"/>"
        );
    }

    pub fn circle(&mut self, (x, y): (f64, f64), radius: f64, fill: &str) {
        let _ = writeln!(
            self.body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{fill}\"/>"
        );
    }

    /// Writes a text that is vertically centred on the given position.
    pub fn text(&mut self, text: &str, (x, y): (f64, f64), style: Style) {
        let Style { size, ink, bold, anchor, halo } = style;
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        let rim = " stroke=\"#ffffff\" stroke-width=\"5\" stroke-linejoin=\"round\" \
                   paint-order=\"stroke\"";
        let rim = if halo { rim } else { "" };
        let baseline = y + size * 0.36;
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{baseline:.1}\" font-size=\"{size}\" \
             text-anchor=\"{anchor}\" fill=\"{ink}\"{weight}{rim}>{}</text>",
            escaped(text)
        );
    }

    /// Returns the whole picture. It has a white background, so it can be read on dark pages too.
    pub fn finish(self, height: f64, title: &str, metadata: &str) -> String {
        let Svg { hatching, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\">\n\
             <title>{}</title>\n<metadata>{}</metadata>\n<defs>\n{hatching}</defs>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"6\" fill=\"{PAPER}\"/>\n\
             {body}</svg>\n",
            escaped(title),
            escaped(metadata)
        )
    }
}

fn escaped(plain: &str) -> String {
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
