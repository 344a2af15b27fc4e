//! The demo's output: headings, calls with their outcomes, prose, and the state of each node.
//! Colours only on a terminal, and not if `NO_COLOR` is set.
//!
//! The hazard is a reader that leaves: a closed pipe ends the demo without a message.

use std::io::{self, Write};

use super::Stop;
use crate::look::Colours;
pub use crate::look::{Look, time};

/// The longest line, in characters. Only a single word may be longer.
const COLUMNS: usize = 78;

/// Where the demo is printed.
#[derive(Debug)]
pub struct Screen {
    out: io::Stdout,
    colours: Colours,
}

impl Screen {
    /// The standard output.
    pub fn new() -> Screen {
        let out = io::stdout();
        let colours = Colours::on(&out);
        Screen { out, colours }
    }

    /// Prints a heading.
    pub fn heading(&mut self, text: &str) -> Result<(), Stop> {
        let text = self.styled(text, Look::Strong);
        self.line("")?;
        self.line(&text)
    }

    /// Prints a paragraph.
    pub fn prose(&mut self, text: &str) -> Result<(), Stop> {
        self.wrapped(text.split_inclusive(' '), "  ")
    }

    /// Prints an error with its report. Lines are broken only before the list of nodes, and after
    /// each node.
    pub fn quote(&mut self, text: &str) -> Result<(), Stop> {
        const KEY_ENDS: &str = "\": ";
        let nodes = text.find(KEY_ENDS).map_or(0, |at| at + KEY_ENDS.len());
        let (head, nodes) = text.split_at(nodes);
        self.wrapped(std::iter::once(head).chain(nodes.split_inclusive(", ")), "           ")
    }

    /// Prints what an actor did, and the outcome.
    pub fn event(&mut self, who: &str, what: &str, outcome: &str) -> Result<(), Stop> {
        let who = self.styled(&format!("{who:<7}"), Look::Strong);
        self.line(format!("  {who}  {what:<28} {outcome}").trim_end())
    }

    /// Prints a word for each node, in the order of the list, counted from 1.
    pub fn states(&mut self, label: &str, states: &[(String, Look)]) -> Result<(), Stop> {
        let mut line = format!("  {label:<10}");
        for (index, (word, look)) in states.iter().enumerate() {
            let word = self.styled(&format!("{word:<8}"), *look);
            line.push_str(&format!("  {} {word}", index + 1));
        }
        self.line(line.trim_end())
    }

    fn wrapped<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a str>,
        indent: &str,
    ) -> Result<(), Stop> {
        let mut line = String::from(indent);
        for piece in pieces {
            let width = line.chars().count() + piece.trim_end().chars().count();
            if width > COLUMNS && line.len() > indent.len() {
                self.line(line.trim_end())?;
                line = String::from(indent);
            }
            line.push_str(piece);
        }
        self.line(line.trim_end())
    }

    fn styled(&self, text: &str, look: Look) -> String {
        self.colours.styled(text, look)
    }

    fn line(&mut self, text: &str) -> Result<(), Stop> {
        writeln!(self.out, "{text}").map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Stop::ReaderLeft,
            _ => Stop::Failed(format!("the standard output: {error}")),
        })
    }
}
