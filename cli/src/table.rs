//! A table for people. Columns are as wide as their contents, colours do not count as width, and
//! lines have no blanks at their ends. If the table would be too wide, one column is wrapped.

use crate::look::{Colours, Look};

/// The longest line, in characters. Only a longer word exceeds it, or a table with several long
/// columns.
pub const LONGEST_LINE: usize = 98;
/// The least width to which a column is wrapped.
const NARROWEST: usize = 24;

/// A cell's text, and its style.
type Cell = (String, Option<Look>);

/// A table with this number of columns.
#[derive(Debug)]
pub struct Table<const COLUMNS: usize> {
    rows: Vec<[Cell; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// A table without rows that has these headings.
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
        let mut widths: Vec<usize> = (0..COLUMNS).map(width).collect();
        let too_wide = (widths.iter().sum::<usize>() + 2 * COLUMNS).saturating_sub(LONGEST_LINE);
        let mut rows = Vec::new();
        match self.column_of_prose().filter(|_| too_wide > 0) {
            None => rows.clone_from(&self.rows),
            Some(column) => {
                let narrow = widths[column].saturating_sub(too_wide).max(NARROWEST);
                self.rows.iter().for_each(|row| wrap(row, column, narrow, &mut rows));
                let lines = rows.iter().map(|row| row[column].0.chars().count());
                widths[column] = lines.max().unwrap_or(0);
            }
        }
        let mut text = String::new();
        for row in &rows {
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

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// The column to wrap: that with the longest text of several words.
    fn column_of_prose(&self) -> Option<usize> {
        let longest = |column: usize| {
            let cells = self.rows.iter().map(|row| &row[column].0);
            cells.filter(|text| text.contains(' ')).map(|text| text.chars().count()).max()
        };
        (0..COLUMNS).filter(|&column| longest(column).is_some()).max_by_key(|&it| longest(it))
    }
}

/// Splits a row into several, so that the text of `column` is no wider than `width`.
fn wrap<const COLUMNS: usize>(
    row: &[Cell; COLUMNS],
    column: usize,
    width: usize,
    rows: &mut Vec<[Cell; COLUMNS]>,
) {
    let (text, look) = &row[column];
    for (index, line) in lines(text, width).into_iter().enumerate() {
        let mut part = match index {
            0 => row.clone(),
            _ => std::array::from_fn(|_| (String::new(), None)),
        };
        part[column] = (line, *look);
        rows.push(part);
    }
}

/// Wraps a text into lines of at most `width` characters. A longer word gets a line of its own.
pub fn lines(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_make_a_table_too_wide_go_to_another_line() {
        let mut table = Table::new(["node", "state", "answered in"]);
        let words = "does not grant for 60.412 s: its node marker is missing, so it is new or lost";
        let row = |words: &str| {
            [("10.0.0.1:6379".into(), None), (words.into(), None), ("312 µs".into(), None)]
        };
        table.row(row(words));
        table.row(row("ready"));
        let wrapped = [
            "  NODE           STATE                                                              \
             ANSWERED IN",
            "  10.0.0.1:6379  does not grant for 60.412 s: its node marker is missing, so it is  \
             312 µs",
            "                 new or lost",
            "  10.0.0.1:6379  ready                                                              \
             312 µs",
            "",
        ]
        .join("\n");
        assert_eq!(table.text(Colours::none()), wrapped);
        let token = "x".repeat(100);
        let mut table = Table::new(["node", "token"]);
        table.row([("a".into(), None), (token.clone(), None)]);
        assert_eq!(table.text(Colours::none()), format!("  NODE  TOKEN\n  a     {token}\n"));
    }

    #[test]
    fn table_columns_are_aligned_and_lines_have_no_trailing_blanks() {
        let mut table = Table::new(["a", "bb", "c"]);
        table.row([("µµµ".into(), None), ("x".into(), Some(Look::Good)), (String::new(), None)]);
        table.row([("y".into(), None), (String::new(), None), ("z".into(), None)]);
        let text = table.text(Colours::none());
        assert_eq!(text, "  A    BB  C\n  µµµ  x\n  y        z\n");
    }
}
