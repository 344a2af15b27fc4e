//! A table for people: columns as wide as their contents, colours without width, no blanks at the
//! ends of lines.

use crate::look::{Colours, Look};

/// A cell's text, and its look.
type Cell = (String, Option<Look>);

/// A table with so many columns.
#[derive(Debug)]
pub struct Table<const COLUMNS: usize> {
    rows: Vec<[Cell; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// An empty one with these headings.
    pub fn new(headings: [&str; COLUMNS]) -> Table<COLUMNS> {
        let heading = |text: &str| (text.to_uppercase(), Some(Look::Faint));
        Table { rows: vec![headings.map(heading)] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [Cell; COLUMNS]) {
        self.rows.push(cells);
    }

    /// The table as lines of text.
    pub fn text(&self, colours: Colours) -> String {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].0.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let last = row.iter().rposition(|(text, _)| !text.is_empty()).unwrap_or(0);
            for (column, (cell, look)) in row.iter().enumerate().take(last + 1) {
                let width = if column == last { 0 } else { widths[column] };
                let padded = format!("{cell:<width$}");
                text.push_str("  ");
                text.push_str(&look.map_or(padded.clone(), |look| colours.styled(&padded, look)));
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_and_nothing_is_left_at_the_ends() {
        let mut table = Table::new(["a", "bb", "c"]);
        table.row([("µµµ".into(), None), ("x".into(), Some(Look::Good)), (String::new(), None)]);
        table.row([("y".into(), None), (String::new(), None), ("z".into(), None)]);
        let text = table.text(Colours::none());
        assert_eq!(text, "  A    BB  C\n  µµµ  x\n  y        z\n");
    }
}
