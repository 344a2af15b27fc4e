//! Computes a node's lane in the picture from the facts: when it held which token, and when it was
//! frozen or dead.
//!
//! The hazard is to say more than was seen. If a token is missing at the next observation, it
//! expired if its ttl was over by then, was lost if the node was killed in between, and was
//! released otherwise.

use redlatch::clock::Instant;

use super::chronicle::Done;
use super::peek::Held;

/// How a node's hold on a token ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The token was deleted, or another one replaced it.
    Released,
    /// The ttl was over.
    Expired,
    /// The node was killed while it held the token.
    Lost,
    /// The node still held the token at the end of the demo.
    None,
}

/// A time during which a node held a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Band {
    pub from: Instant,
    pub to: Instant,
    pub token: String,
    pub ending: Ending,
}

/// A time during which a node did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absence {
    pub from: Instant,
    pub to: Instant,
    /// The node was killed. Otherwise it was frozen.
    pub dead: bool,
    /// The node came back.
    pub ended: bool,
}

/// A token that the node holds: since when, and when it was last seen.
struct Open<'a> {
    from: Instant,
    seen: Instant,
    held: &'a Held,
}

impl Open<'_> {
    fn close(&self, at: Instant, ending: Ending) -> Band {
        Band { from: self.from, to: at, token: self.held.token.clone(), ending }
    }

    /// The band of a token that is not on the node any more at `at`.
    fn close_missing(&self, at: Instant, absences: &[Absence]) -> Band {
        let died = absences.iter().find(|it| it.dead && it.from >= self.seen && it.from <= at);
        let over = self.seen.saturating_add(self.held.left);
        match died {
            Some(death) => self.close(death.from, Ending::Lost),
            None if over <= at => self.close(over, Ending::Expired),
            None => self.close(at, Ending::Released),
        }
    }
}

/// The bands of a node for one key, from the observations of that key up to `end`.
pub fn bands<'a>(
    states: impl Iterator<Item = (Instant, Option<&'a Held>)>,
    absences: &[Absence],
    end: Instant,
) -> Vec<Band> {
    let mut bands = Vec::new();
    let mut open: Option<Open> = None;
    for (at, held) in states {
        let goes_on = match (&open, held) {
            (Some(open), Some(held)) => open.held.token == held.token,
            _ => false,
        };
        if !goes_on {
            bands.extend(open.take().map(|open| open.close_missing(at, absences)));
        }
        if let Some(held) = held {
            let from = open.map_or(at, |open| open.from);
            open = Some(Open { from, seen: at, held });
        }
    }
    if let Some(open) = open {
        let died = absences.iter().any(|it| it.dead && it.from >= open.seen);
        bands.push(if died {
            open.close_missing(end, absences)
        } else {
            open.close(end, Ending::None)
        });
    }
    bands
}

/// When a node did not run, by what was done to it up to `end`.
pub fn absences(done: impl Iterator<Item = (Instant, Done)>, end: Instant) -> Vec<Absence> {
    let mut absences: Vec<Absence> = Vec::new();
    for (at, done) in done {
        match done {
            Done::Frozen | Done::Killed => {
                let dead = done == Done::Killed;
                absences.push(Absence { from: at, to: end, dead, ended: false });
            }
            Done::Thawed | Done::Restarted => {
                if let Some(last) = absences.last_mut() {
                    (last.to, last.ended) = (at, true);
                }
            }
        }
    }
    absences
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn held(token: &str, left: u64) -> Held {
        Held { token: token.into(), left: Duration::from_millis(left) }
    }

    /// The bands from observations: the time of each, and the token that it found, with the
    /// milliseconds that were left of its ttl.
    fn seen(looks: &[(u64, Option<(&str, u64)>)], absences: &[Absence]) -> Vec<Band> {
        let looks = looks.iter().map(|&(time, it)| (at(time), it.map(|(t, left)| held(t, left))));
        let looks: Vec<_> = looks.collect();
        bands(looks.iter().map(|(at, held)| (*at, held.as_ref())), absences, at(1000))
    }

    fn band(from: u64, to: u64, token: &str, ending: Ending) -> Band {
        Band { from: at(from), to: at(to), token: token.into(), ending }
    }

    #[test]
    fn band_of_a_token_lasts_from_its_first_observation_until_it_is_gone() {
        let looks = [(5, None), (10, Some(("a", 500))), (15, Some(("a", 495))), (20, None)];
        assert_eq!(seen(&looks, &[]), [band(10, 20, "a", Ending::Released)]);
        let looks = [(10, Some(("a", 500))), (15, Some(("b", 500)))];
        let expected = [band(10, 15, "a", Ending::Released), band(15, 1000, "b", Ending::None)];
        assert_eq!(seen(&looks, &[]), expected);
    }

    #[test]
    fn missing_token_whose_ttl_was_over_counts_as_expired() {
        let looks = [(10, Some(("a", 30))), (100, None)];
        assert_eq!(seen(&looks, &[]), [band(10, 40, "a", Ending::Expired)]);
    }

    #[test]
    fn token_of_a_killed_node_counts_as_lost() {
        let done = [(at(30), Done::Killed), (at(60), Done::Restarted)];
        let absences = absences(done.into_iter(), at(1000));
        let death = Absence { from: at(30), to: at(60), dead: true, ended: true };
        assert_eq!(absences, [death]);
        let lost = [band(10, 30, "a", Ending::Lost)];
        assert_eq!(seen(&[(10, Some(("a", 500))), (65, None)], &absences), lost);
        assert_eq!(seen(&[(10, Some(("a", 500)))], &absences), lost);
    }

    #[test]
    fn frozen_node_keeps_its_token() {
        let done = [(at(30), Done::Frozen), (at(60), Done::Thawed), (at(900), Done::Frozen)];
        let absences = absences(done.into_iter(), at(1000));
        assert!(absences[0].ended && !absences[1].ended && absences[1].to == at(1000));
        let looks = [(10, Some(("a", 500))), (61, Some(("a", 449))), (65, None)];
        assert_eq!(seen(&looks, &absences), [band(10, 65, "a", Ending::Released)]);
    }
}
