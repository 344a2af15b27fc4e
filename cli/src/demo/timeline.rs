//! The picture of a run: the steps of the story by number, a row for each client, a lane for each
//! node, and time from left to right. Everything in it is a fact of the chronicle or was seen on a
//! node.
//!
//! Every colour that occurs is in the legend. The metadata repeats the story and the defaults that
//! the picture shows, so that a test can find out that README's picture is out of date.

use redlatch::{clock::Instant, majority};
use serde_json::{Value, json};

use super::chronicle::Chronicle;
use super::lanes::{Absence, Band, Ending, absences, bands};
use super::masters::COUNT;
use super::screen::time;
use super::svg::{Area, FAINT, GREY, INK, PAPER, SMALL, Style, Svg, WIDTH, style};
use super::watch::KeyState;
use super::{KEY, TTL};

// The layout, in pixels.
const MARGIN: f64 = 16.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = WIDTH - MARGIN;
const LEGEND_Y: f64 = 104.0;
const NUMBERS_Y: f64 = 142.0;
/// The least distance between the numbers of two steps, so that they do not overlap.
const NUMBER: f64 = 25.0;
const CLIENTS_Y: f64 = 166.0;
const CLIENT: f64 = 54.0;
/// The height of a bar, which shows that a client has the lock or waits for an answer.
const BAR: f64 = 23.0;
const MAJORITY_Y: f64 = CLIENTS_Y + 2.0 * CLIENT + 4.0;
const LANES_Y: f64 = MAJORITY_Y + 32.0;
const LANE: f64 = 37.0;
const LANE_HEIGHT: f64 = 32.0;
/// The height that stays visible of the token on a frozen node.
const EDGE: f64 = 11.0;
const LIST_LINE: f64 = 23.0;
const CALLS_X: f64 = 306.0;

/// Each client with its colour, and the hatching that shows that the client waits for an answer.
const CLIENTS: [(&str, &str, &str); 2] =
    [("alice", ALICE, "url(#alice)"), ("bob", BOB, "url(#bob)")];
const ALICE: &str = "#0072b2";
const BOB: &str = "#e69f00";
const STRAY: &str = "#cc79a7";
const ICE: &str = "#b5e2f7";
const DEAD: &str = "#6b6b6b";
const NO_MAJORITY: &str = "#f9d2c6";

const TEXT: Style = style(SMALL);

/// Draws the whole picture: the story up to `end`, and the observed states of each node.
pub fn svg(chronicle: &Chronicle, states: &[Vec<KeyState>], end: Instant) -> String {
    let absences = (0..states.len()).map(|node| {
        let mine = chronicle.done.iter().filter(|(_, whose, _)| *whose == node);
        absences(mine.map(|&(at, _, done)| (at, done)), end)
    });
    let absences: Vec<Vec<Absence>> = absences.collect();
    let lanes = states.iter().zip(&absences).map(|(states, absences)| {
        bands(states.iter().map(|state| (state.at, state.held.as_ref())), absences, end)
    });
    let lanes: Vec<Vec<Band>> = lanes.collect();
    let mut picture = Picture { svg: Svg::new(), chronicle, end };
    for (client, colour, _) in CLIENTS {
        picture.svg.hatch(client, colour);
    }
    let title = picture.head();
    let strays = lanes.iter().flatten().any(|band| chronicle.owner_of(&band.token).is_none());
    picture.legend(strays);
    let bottom = LANES_Y + states.len() as f64 * LANE;
    picture.majority(&absences, bottom);
    picture.steps(bottom);
    picture.clients();
    for (node, (bands, absences)) in lanes.iter().zip(&absences).enumerate() {
        picture.lane(node, bands, absences);
    }
    picture.axis(bottom);
    let height = picture.list(bottom + 58.0);
    picture.svg.finish(height, &title, &metadata(chronicle).to_string())
}

/// What the picture shows, as JSON: under "shows" what is the same in every run, under "measured"
/// the rest.
fn metadata(chronicle: &Chronicle) -> Value {
    let steps = chronicle.steps.iter().zip(1..).map(|(step, number)| {
        let calls: Vec<&String> = step.calls.iter().map(|(call, _)| call).collect();
        json!({ "step": number, "title": step.title, "calls": calls })
    });
    let outcomes = chronicle.steps.iter().flat_map(|step| &step.calls);
    let outcomes = outcomes.map(|(_, outcome)| outcome.as_str());
    let asks = chronicle.asks.iter().map(|ask| format!("{} {}", ask.client, ask.what));
    json!({
        "shows": {
            "key": KEY,
            "nodes": COUNT,
            "ttl": format!("{TTL:?}"),
            "node_timeout": format!("{:?}", chronicle.node_timeout),
            "story": steps.collect::<Vec<_>>(),
        },
        "measured": {
            "version": env!("CARGO_PKG_VERSION"),
            "outcomes": outcomes.collect::<Vec<_>>(),
            "asks": asks.collect::<Vec<_>>(),
        },
    })
}

struct Picture<'a> {
    svg: Svg,
    chronicle: &'a Chronicle,
    end: Instant,
}

impl Picture<'_> {
    /// The x position of a moment.
    fn x(&self, at: Instant) -> f64 {
        let all = self.seconds(self.end).max(0.001);
        LEFT + (self.seconds(at) / all).min(1.0) * (RIGHT - LEFT)
    }

    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_since(self.chronicle.start).as_secs_f64()
    }

    /// The area between two moments, at least two pixels wide.
    fn area(&self, from: Instant, to: Instant, top: f64, height: f64) -> Area {
        let (left, right) = (self.x(from), self.x(to));
        Area { left, top, width: (right - left).max(2.0), height }
    }

    /// Writes the heading, which says what the picture shows, and returns it.
    fn head(&mut self) -> String {
        let holders = self.chronicle.holders.windows(2).find_map(|two| match two {
            [(released, None), (granted, Some(_))] => Some(granted.saturating_since(*released)),
            _ => None,
        });
        let later = holders.map_or_else(|| "some time".into(), time);
        let first = "One of five nodes freezes, one dies: alice keeps her lock.";
        let second =
            format!("bob waits, and has it {later} after her release. Never do both have it.");
        self.svg.text(first, (MARGIN, 28.0), style(19.0).bold());
        self.svg.text(&second, (MARGIN, 53.0), style(17.0).bold());
        let timeout = self.chronicle.node_timeout;
        let line = format!(
            "One run of redlatch demo: the lock {KEY}, ttl {TTL:?}, node timeout {timeout:?}, \
             on {COUNT} masters."
        );
        self.svg.text(&line, (MARGIN, 78.0), TEXT.ink(GREY));
        format!("{first} {second}")
    }

    fn legend(&mut self, strays: bool) {
        let mut x = MARGIN;
        let [(_, alice, alice_asks), (_, bob, bob_asks)] = CLIENTS;
        let mut entries = vec![
            (vec![alice], "alice's", 66.0),
            (vec![bob], "bob's", 58.0),
            (vec![alice_asks, bob_asks], "asks, no answer yet", 148.0),
            (vec![NO_MAJORITY], "no majority", 98.0),
            (vec![ICE], "frozen", 64.0),
            (vec![DEAD], "dead", 54.0),
        ];
        if strays {
            entries.push((vec![STRAY], "refused", 60.0));
        }
        for (fills, word, room) in entries {
            for fill in fills {
                let area = Area { left: x, top: LEGEND_Y - 8.0, width: 22.0, height: 16.0 };
                self.svg.framed(area, fill, FAINT);
                x += 26.0;
            }
            self.svg.text(word, (x + 2.0, LEGEND_Y), TEXT);
            x += room;
        }
    }

    /// Draws the number of each step, and a line down from it at the moment of the step.
    fn steps(&mut self, bottom: f64) {
        let places: Vec<f64> = self.chronicle.steps.iter().map(|it| self.x(it.at)).collect();
        let numbers = spread(&places, NUMBER, (LEFT + 10.0, RIGHT - 10.0));
        self.svg.text("step", (MARGIN, NUMBERS_Y), style(15.0).bold());
        for (index, (&place, &number)) in places.iter().zip(&numbers).enumerate() {
            let way = [(number, NUMBERS_Y), (place, NUMBERS_Y + 18.0), (place, bottom)];
            self.svg.line(&way, FAINT, 1.5);
            self.number(index, (number, NUMBERS_Y));
        }
    }

    fn number(&mut self, index: usize, at: (f64, f64)) {
        self.svg.circle(at, 10.5, INK);
        self.svg.text(&(index + 1).to_string(), at, style(14.0).bold().ink(PAPER).centred());
    }

    /// Draws for each client when it has the lock, and below that when it waits for an answer.
    fn clients(&mut self) {
        for (row, (client, fill, asks)) in CLIENTS.into_iter().enumerate() {
            let top = CLIENTS_Y + row as f64 * CLIENT;
            self.svg.text(client, (MARGIN, top + BAR / 2.0), style(15.0).bold());
            let holders = &self.chronicle.holders;
            for (index, &(from, holder)) in holders.iter().enumerate() {
                if holder != Some(client) {
                    continue;
                }
                let to = holders.get(index + 1).map_or(self.end, |next| next.0);
                let area = self.area(from, to, top, BAR);
                self.svg.rectangle(area, fill);
                let text = format!("{client} has the lock");
                self.svg.text(&text, (area.left + 8.0, top + BAR / 2.0), TEXT.ink(ink(fill)));
            }
            let chronicle = self.chronicle;
            for ask in chronicle.asks.iter().filter(|ask| ask.client == client) {
                self.ask((ask.from, ask.to), &ask.what, top + BAR + 2.0, (asks, fill));
            }
        }
    }

    fn ask(&mut self, (from, to): (Instant, Instant), what: &str, top: f64, fills: (&str, &str)) {
        let area = self.area(from, to, top, BAR);
        if area.width <= 2.0 {
            return;
        }
        self.svg.framed(area, fills.0, fills.1);
        // The text is to the right of the bar if there is no room inside.
        let inside = area.width > 9.0 * what.chars().count() as f64;
        let x = area.left + if inside { 10.0 } else { area.width + 6.0 };
        self.svg.text(what, (x, top + BAR / 2.0), TEXT.halo());
    }

    /// Draws how many nodes run, and a band through all lanes while fewer than a majority run.
    fn majority(&mut self, absences: &[Vec<Absence>], bottom: f64) {
        let (nodes, least) = (absences.len(), majority(absences.len()));
        let middle = MAJORITY_Y + BAR / 2.0;
        self.svg.text("nodes", (MARGIN, middle), style(15.0).bold());
        let mut moments: Vec<Instant> = vec![self.chronicle.start, self.end];
        moments.extend(absences.iter().flatten().flat_map(|it| [it.from, it.to]));
        moments.sort();
        let is_absent = |from| move |it: &Absence| it.from <= from && from < it.to;
        let counted = moments.windows(2).map(|two| {
            let away = absences.iter().filter(|its| its.iter().any(is_absent(two[0]))).count();
            (two[0], two[1], nodes - away)
        });
        for (from, to, running) in counted.collect::<Vec<_>>() {
            let area = self.area(from, to, MAJORITY_Y, BAR);
            // A number that holds for a few milliseconds is too narrow to be seen.
            if area.width <= 4.0 {
                continue;
            }
            let text = if running < least {
                let height = bottom - MAJORITY_Y;
                self.svg.rectangle(Area { height, ..area }, NO_MAJORITY);
                format!("no majority: {running} of {nodes} run")
            } else {
                self.svg.framed(area, PAPER, FAINT);
                format!("{running} of {nodes} run")
            };
            if area.width > 40.0 {
                let style = if running < least { TEXT.bold() } else { TEXT };
                self.svg.text(&text, (area.left + 6.0, middle), style);
            }
        }
    }

    fn lane(&mut self, node: usize, bands: &[Band], absences: &[Absence]) {
        let top = LANES_Y + node as f64 * LANE;
        let middle = top + LANE_HEIGHT / 2.0;
        self.svg.text(&format!("node {}", node + 1), (MARGIN, middle), style(15.0).bold());
        let bottom = top + LANE_HEIGHT + (LANE - LANE_HEIGHT) / 2.0;
        self.svg.line(&[(LEFT, bottom), (RIGHT, bottom)], FAINT, 1.0);
        for band in bands {
            self.band(band, top);
        }
        for absence in absences {
            self.absence(absence, bands, top);
        }
    }

    fn band(&mut self, band: &Band, top: f64) {
        let owner = self.chronicle.owner_of(&band.token);
        let fill = CLIENTS.into_iter().find(|(client, _, _)| owner == Some(*client));
        let fill = fill.map_or(STRAY, |(_, fill, _)| fill);
        let area = self.area(band.from, band.to, top, LANE_HEIGHT);
        self.svg.rectangle(area, fill);
        let middle = top + LANE_HEIGHT / 2.0;
        if let (Some(owner), true) = (owner, area.width > 60.0) {
            self.svg.text(owner, (area.left + 8.0, middle), TEXT.ink(ink(fill)));
        }
        if band.ending == Ending::Expired {
            let right = area.left + area.width;
            self.svg.text("expired", (right + 5.0, middle), TEXT.halo());
        }
    }

    /// Draws the time in which a node does not run. A token that a frozen node keeps stays visible
    /// above that.
    fn absence(&mut self, absence: &Absence, bands: &[Band], top: f64) {
        let keeps = bands.iter().any(|it| it.from < absence.to && absence.from < it.to);
        let edge = if keeps && !absence.dead { EDGE } else { 0.0 };
        let (top, height) = (top + edge, LANE_HEIGHT - edge);
        let area = self.area(absence.from, absence.to, top, height);
        let (fill, ink) = if absence.dead { (DEAD, PAPER) } else { (ICE, INK) };
        self.svg.rectangle(area, fill);
        let (word, back, room) = match absence {
            Absence { dead: true, .. } => ("dead", "back, empty", 160.0),
            _ => ("frozen", "goes on", 140.0),
        };
        let (middle, right) = (top + height / 2.0, area.left + area.width);
        self.svg.text(word, (area.left + 8.0, middle), TEXT.ink(ink));
        // The word for the end of the absence is written inside the area, if there is room for both
        // words.
        if absence.ended && area.width > room {
            self.svg.text(back, (right - 6.0, middle), TEXT.ink(ink).ending());
        } else if absence.ended {
            self.svg.text(back, (right + 6.0, middle), TEXT.halo());
        }
    }

    fn axis(&mut self, y: f64) {
        let y = y + 3.0;
        self.svg.line(&[(LEFT, y), (RIGHT, y)], INK, 1.0);
        let all = self.seconds(self.end);
        let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0].into_iter().find(|step| all / step < 11.0);
        let step = step.unwrap_or(10.0);
        for number in 0..=(all / step) as u32 {
            let seconds = f64::from(number) * step;
            let x = LEFT + seconds / all * (RIGHT - LEFT);
            self.svg.line(&[(x, y), (x, y + 6.0)], INK, 1.0);
            let digits = usize::from(step < 1.0);
            let at = (x.min(RIGHT - 10.0), y + 17.0);
            self.svg.text(&format!("{seconds:.digits$} s"), at, TEXT.centred());
        }
    }

    /// Writes the steps with their calls, and returns the y position of the end of the picture.
    fn list(&mut self, top: f64) -> f64 {
        let mut y = top;
        let chronicle = self.chronicle;
        for (index, step) in chronicle.steps.iter().enumerate() {
            self.number(index, (MARGIN + 11.0, y));
            self.svg.text(step.title, (MARGIN + 32.0, y), TEXT.bold());
            for (call, outcome) in &step.calls {
                self.svg.text(&format!("{call}: {outcome}"), (CALLS_X, y), TEXT);
                y += LIST_LINE;
            }
        }
        y
    }
}

/// The colour of text on a fill.
fn ink(fill: &str) -> &'static str {
    if fill == ALICE { PAPER } else { INK }
}

/// Moves these positions as little as needed, so that they are at least `gap` apart and between
/// `left` and `right`. Keeps their order.
fn spread(places: &[f64], gap: f64, (left, right): (f64, f64)) -> Vec<f64> {
    let mut spread = places.to_vec();
    let mut least = left;
    for place in &mut spread {
        *place = place.max(least);
        least = *place + gap;
    }
    let mut most = right;
    for place in spread.iter_mut().rev() {
        *place = place.min(most);
        most = *place - gap;
    }
    spread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_numbers_are_spread_within_the_picture() {
        let spread = |places: &[f64]| spread(places, 20.0, (0.0, 200.0));
        assert_eq!(spread(&[10.0, 100.0]), [10.0, 100.0]);
        assert_eq!(spread(&[10.0, 11.0, 12.0, 100.0]), [10.0, 30.0, 50.0, 100.0]);
        assert_eq!(spread(&[190.0, 199.0, 200.0]), [160.0, 180.0, 200.0]);
        assert_eq!(spread(&[]), [0.0; 0]);
    }
}
