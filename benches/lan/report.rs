//! The figures as a table of Markdown that is also easy to read as text.

use std::time::Duration;

use kit::{Table, number};

use super::lan::{Figures, Kind};
use super::options::Options;

/// The names of the columns, and how wide they are.
const COLUMNS: [(&str, usize); 14] = [
    ("n", 3),
    ("hold, ms", 8),
    (":lock", 11),
    ("acq/s", 6),
    ("to bare", 7),
    ("over/s", 6),
    ("to bare", 7),
    ("cmds", 5),
    ("to bare", 7),
    ("gap p50, us", 11),
    ("p99", 6),
    ("p99, turns", 10),
    ("jain", 5),
    ("none", 4),
];

/// The text before the rows.
pub fn begin(options: &Options) -> String {
    let Options { seeds, length, .. } = options;
    let length = match length {
        Some(length) => format!("{length:?}"),
        None => "at least 1 s and twenty turns".to_owned(),
    };
    let legend = format!(
        "A LAN in simulated time: five masters, 0.05 to 0.15 ms one way, a ttl of 10 s.\n\
         {seeds} runs of {length} each, with a seed each: all of their figures together.\n\
         \n\
         n: contenders, which ask again as soon as they have given back. 2of10: each lock is over\n\
         two of ten keys, drawn anew. bare: SET NX, or a script that takes all keys or none, and\n\
         another try 2.5 to 5 ms after each denial. to bare: the ratio to the bare loop for the\n\
         same keys. over: another contender has it than the last one. cmds: what one master is\n\
         sent for each acquisition. gap: from a release to the next holder, if that one waited\n\
         for it; of bare loops these are the ones that happened to try right after a release.\n\
         p99, turns: that of the waits, over n times the median time between hand-overs. none:\n\
         the contenders that had no lock in a run.\n"
    );
    format!("{legend}\n{}", Table::new(COLUMNS).head())
}

/// The rows of a number of contenders and a hold.
pub fn rows(contenders: usize, hold: Duration, kinds: &[(Kind, Figures)]) -> Vec<String> {
    let table = Table::new(COLUMNS);
    let one = |(kind, figures): &(Kind, Figures)| {
        let bare = kinds.iter().find(|(other, _)| *other == kind.bare());
        let to_bare = |of: fn(&Figures) -> f64| {
            number(bare.map_or(f64::NAN, |(_, bare)| of(figures) / of(bare)), 2)
        };
        let Figures { acquisitions_per_s, hand_overs_per_s, commands, .. } = *figures;
        table.row([
            contenders.to_string(),
            format!("{}", hold.as_secs_f64() * 1e3),
            kind.to_string(),
            number(acquisitions_per_s, 0),
            to_bare(|f| f.acquisitions_per_s),
            number(hand_overs_per_s, 0),
            to_bare(|f| f.hand_overs_per_s),
            number(commands, 2),
            to_bare(|f| f.commands),
            number(figures.gap_p50_us, 0),
            number(figures.gap_p99_us, 0),
            number(figures.wait_p99_turns, 1),
            number(figures.jain, 3),
            number(figures.without, 1),
        ])
    };
    kinds.iter().map(one).collect()
}
