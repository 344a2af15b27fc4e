//! The picture of a run: a lane for each node, time from left to right, and the events by number.
//! Everything in it is a fact of the chronicle or was seen on a node.
//!
//! The picture is SVG in which text is text. The width of a text is not known here, so texts stand
//! where there is room for long ones.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use redlatch::clock::Instant;

use super::chronicle::Chronicle;
use super::lanes::{Absence, Band, Ending, absences, bands};
use super::watch::{EVERY, KeyState};
use super::{KEYS, TTL};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

const WIDTH: i32 = 1200;
const FONT: &str = "sans-serif";

// The layout, in pixels.
const LEFT: i32 = 150;
const RIGHT: i32 = WIDTH - 40;
const COLOURS_Y: i32 = 100;
const MARKS_Y: i32 = 142;
/// The least distance of two markers, so that they can be distinguished.
const MARK: i32 = 25;
const HOLDER_Y: i32 = 186;
const HOLDER_HEIGHT: i32 = 26;
const LANES_Y: i32 = 228;
const LANE: i32 = 66;
const LANE_HEIGHT: i32 = 56;
/// Within a lane each key has a band: its offset and its height.
const BANDS: [(i32, i32); KEYS.len()] = [(6, 26), (37, 14)];
const LIST_LINE: i32 = 21;

const INK: RGBColor = RGBColor(40, 40, 40);
const GREY: RGBColor = RGBColor(110, 110, 110);
const LANE_COLOUR: RGBColor = RGBColor(243, 243, 243);
const ALICE: RGBColor = RGBColor(0, 114, 178);
const BOB: RGBColor = RGBColor(230, 159, 0);
const STRAY: RGBColor = RGBColor(204, 121, 167);
const ICE: RGBColor = RGBColor(86, 180, 233);
const DEAD: RGBColor = RGBColor(70, 70, 70);
const TROUBLE: RGBColor = RGBColor(200, 60, 0);

/// Draws the whole picture: the events up to `end`, and what was seen on each node.
///
/// # Errors
/// The drawing library's.
pub fn svg(
    chronicle: &Chronicle,
    states: &[Vec<KeyState>],
    end: Instant,
) -> Result<String, Box<dyn Error>> {
    let axis_y = LANES_Y + states.len() as i32 * LANE;
    let list_y = axis_y + 74;
    let lines = chronicle.events.len().div_ceil(2) as i32;
    let height = list_y + lines * LIST_LINE + 24;
    let mut text = String::new();
    {
        let size = (WIDTH.unsigned_abs(), height.unsigned_abs());
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        let picture = Picture { area: &area, chronicle, end };
        picture.head()?;
        (0..states.len()).try_for_each(|node| picture.ground(node))?;
        // After the lanes, and before everything with words, which is drawn over it.
        picture.marks(axis_y)?;
        picture.holders()?;
        for (node, states) in states.iter().enumerate() {
            picture.lane(node, states)?;
        }
        picture.axis(axis_y)?;
        picture.list(list_y)?;
        area.present()?;
    }
    Ok(text)
}

struct Picture<'a, 'b> {
    area: &'a Area<'b>,
    chronicle: &'a Chronicle,
    end: Instant,
}

impl Picture<'_, '_> {
    /// The x position of a moment.
    fn x(&self, at: Instant) -> i32 {
        let all = self.end.saturating_since(self.chronicle.start).as_secs_f64().max(0.001);
        let part = self.seconds(at) / all;
        LEFT + (part.min(1.0) * f64::from(RIGHT - LEFT)).round() as i32
    }

    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_since(self.chronicle.start).as_secs_f64()
    }

    fn head(&self) -> Drawn {
        let title = (FONT, 27).into_font().style(FontStyle::Bold).color(&INK);
        let said = "One lock on five Redis masters: what happened";
        self.area.draw(&Text::new(said, (24, 16), title))?;
        let (key, free) = (KEYS[0], KEYS[1]);
        let line = format!(
            "redlatch demo, as it ran. In each lane: whose token the node held at {key} (wide) and \
             {free} (narrow), ttl {TTL:?}, read from the node every {EVERY:?}."
        );
        self.text(&line, (24, 56), 15, INK, HPos::Left)?;
        let words = [
            (ALICE, 1.0, "alice's"),
            (BOB, 1.0, "bob's"),
            (STRAY, 1.0, "of an attempt that came to nothing"),
            (ICE, 0.4, "frozen"),
            (DEAD, 0.4, "dead"),
        ];
        for ((colour, opacity, word), x) in words.into_iter().zip([28, 150, 262, 620, 750]) {
            let corners = [(x, COLOURS_Y - 8), (x + 22, COLOURS_Y + 8)];
            self.area.draw(&Rectangle::new(corners, colour.mix(opacity).filled()))?;
            self.text(word, (x + 30, COLOURS_Y), 15, INK, HPos::Left)?;
        }
        Ok(())
    }

    /// Draws which client has the lock, whatever the state of the nodes.
    fn holders(&self) -> Drawn {
        let middle = HOLDER_Y + HOLDER_HEIGHT / 2;
        self.strong("who has it", (24, middle))?;
        let holders = &self.chronicle.holders;
        for (index, &(from, holder)) in holders.iter().enumerate() {
            let to = holders.get(index + 1).map_or(self.end, |next| next.0);
            let Some(holder) = holder else { continue };
            let (left, right) = (self.x(from), self.x(to));
            let corners = [(left, HOLDER_Y), (right.max(left + 1), HOLDER_Y + HOLDER_HEIGHT)];
            self.area.draw(&Rectangle::new(corners, colour(Some(holder)).filled()))?;
            self.text(
                &format!("{holder} has {}", KEYS[0]),
                (left + 8, middle),
                15,
                ink(holder),
                HPos::Left,
            )?;
        }
        Ok(())
    }

    fn ground(&self, node: usize) -> Drawn {
        let top = LANES_Y + node as i32 * LANE;
        let corners = [(LEFT, top), (RIGHT, top + LANE_HEIGHT)];
        self.area.draw(&Rectangle::new(corners, LANE_COLOUR.filled()))?;
        self.strong(&format!("node {}", node + 1), (24, top + LANE_HEIGHT / 2))
    }

    fn lane(&self, node: usize, states: &[KeyState]) -> Drawn {
        let top = LANES_Y + node as i32 * LANE;
        let mine = self.chronicle.done.iter().filter(|(_, whose, _)| *whose == node);
        let absences = absences(mine.map(|&(at, _, done)| (at, done)), self.end);
        for (index, (key, (offset, height))) in KEYS.iter().zip(BANDS).enumerate() {
            let (upper, middle) = (top + offset, top + offset + height / 2);
            self.text(key, (LEFT - 8, middle), 12, GREY, HPos::Right)?;
            let seen = states.iter().map(|state| (state.at, state.held[index].as_ref()));
            for band in bands(seen, &absences, self.end) {
                self.band(&band, upper, height)?;
            }
        }
        absences.iter().try_for_each(|absence| self.absence(absence, top))
    }

    fn band(&self, band: &Band, top: i32, height: i32) -> Drawn {
        let owner = self.chronicle.owner_of(&band.token);
        let (left, right) = (self.x(band.from), self.x(band.to));
        // A short band keeps a width of two pixels.
        let corners = [(left, top), (right.max(left + 2), top + height)];
        self.area.draw(&Rectangle::new(corners, colour(owner).filled()))?;
        let middle = top + height / 2;
        if let (Some(owner), true) = (owner, right - left > 60 && height > 20) {
            self.text(owner, (left + 8, middle), 14, ink(owner), HPos::Left)?;
        }
        if band.ending == Ending::Expired {
            self.text("expired", (right + 5, middle), 13, TROUBLE, HPos::Left)?;
        }
        Ok(())
    }

    fn absence(&self, absence: &Absence, top: i32) -> Drawn {
        let (left, right, bottom) = (self.x(absence.from), self.x(absence.to), top + LANE_HEIGHT);
        let colour = if absence.dead { DEAD } else { ICE };
        let corners = [(left, top), (right, bottom)];
        self.area.draw(&Rectangle::new(corners, colour.mix(0.4).filled()))?;
        self.area.draw(&Rectangle::new(corners, colour.stroke_width(1)))?;
        // The end of the absence is written beside its cause, if there is room for both.
        let (word, back, room) = if absence.dead {
            ("dead", "restarted, empty", 300)
        } else {
            ("frozen", "goes on", 200)
        };
        // In the middle of the narrow band, clear of the name in the wide one.
        let middle = top + BANDS[1].0 + BANDS[1].1 / 2;
        self.text(word, ((left + right) / 2, middle), 15, INK, HPos::Center)?;
        if absence.ended && right - left > room {
            self.text(back, (right - 6, middle), 13, INK, HPos::Right)?;
        }
        Ok(())
    }

    /// Draws a number for each event, and a line from it to its moment.
    fn marks(&self, bottom: i32) -> Drawn {
        let places: Vec<i32> = self.chronicle.events.iter().map(|it| self.x(it.at)).collect();
        let marks = spread(&places, MARK, (LEFT, RIGHT));
        for (index, (&place, &mark)) in places.iter().zip(&marks).enumerate() {
            let way =
                [(mark, MARKS_Y), (mark, MARKS_Y + 14), (place, HOLDER_Y - 6), (place, bottom)];
            self.area.draw(&PathElement::new(way, GREY.mix(0.45).stroke_width(1)))?;
            self.number(index, (mark, MARKS_Y))?;
        }
        Ok(())
    }

    fn number(&self, index: usize, at: (i32, i32)) -> Drawn {
        self.area.draw(&Circle::new(at, 10, INK.filled()))?;
        self.text(&(index + 1).to_string(), at, 14, WHITE, HPos::Center)
    }

    fn axis(&self, y: i32) -> Drawn {
        self.area.draw(&PathElement::new([(LEFT, y), (RIGHT, y)], INK.stroke_width(1)))?;
        let all = self.seconds(self.end);
        let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0].into_iter().find(|step| all / step < 14.0);
        let step = step.unwrap_or(10.0);
        for number in 0..=(all / step) as u32 {
            let seconds = f64::from(number) * step;
            let x = LEFT + (seconds / all * f64::from(RIGHT - LEFT)).round() as i32;
            self.area.draw(&PathElement::new([(x, y), (x, y + 6)], INK.stroke_width(1)))?;
            let digits = usize::from(step < 1.0);
            self.text(&format!("{seconds:.digits$} s"), (x, y + 18), 14, INK, HPos::Center)?;
        }
        Ok(())
    }

    fn list(&self, top: i32) -> Drawn {
        let events = &self.chronicle.events;
        let half = events.len().div_ceil(2);
        for (index, event) in events.iter().enumerate() {
            let (column, line) = (index / half.max(1), index % half.max(1));
            let (x, y) = (34 + column as i32 * 580, top + line as i32 * LIST_LINE);
            self.number(index, (x, y))?;
            let at = format!("{:.3} s", self.seconds(event.at));
            self.text(&at, (x + 68, y), 14, GREY, HPos::Right)?;
            self.text(&event.who, (x + 78, y), 14, INK, HPos::Left)?;
            self.text(&event.what, (x + 130, y), 14, INK, HPos::Left)?;
        }
        Ok(())
    }

    fn strong(&self, text: &str, at: (i32, i32)) -> Drawn {
        let style = (FONT, 17).into_font().style(FontStyle::Bold).color(&INK);
        let style = style.pos(Pos::new(HPos::Left, VPos::Center));
        Ok(self.area.draw(&Text::new(text, at, style))?)
    }

    /// Writes a text whose middle is at the height of `at`.
    fn text(&self, text: &str, at: (i32, i32), size: i32, ink: RGBColor, side: HPos) -> Drawn {
        let style = (FONT, size).into_font().color(&ink).pos(Pos::new(side, VPos::Center));
        Ok(self.area.draw(&Text::new(text, at, style))?)
    }
}

fn colour(owner: Option<&str>) -> RGBColor {
    match owner {
        Some("alice") => ALICE,
        Some(_) => BOB,
        None => STRAY,
    }
}

/// The colour of text on an owner's colour.
fn ink(owner: &str) -> RGBColor {
    if colour(Some(owner)) == ALICE { WHITE } else { INK }
}

/// Places near these, in the same order, at least `gap` apart and between the sides.
fn spread(places: &[i32], gap: i32, (left, right): (i32, i32)) -> Vec<i32> {
    let mut spread = places.to_vec();
    let mut least = left;
    for place in &mut spread {
        *place = (*place).max(least);
        least = *place + gap;
    }
    let mut most = right;
    for place in spread.iter_mut().rev() {
        *place = (*place).min(most);
        most = *place - gap;
    }
    spread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_apart_and_inside() {
        assert_eq!(spread(&[10, 100], 20, (0, 200)), [10, 100]);
        assert_eq!(spread(&[10, 11, 12, 100], 20, (0, 200)), [10, 30, 50, 100]);
        assert_eq!(spread(&[190, 199, 200], 20, (0, 200)), [160, 180, 200]);
        assert_eq!(spread(&[], 20, (0, 200)), [0; 0]);
    }
}
