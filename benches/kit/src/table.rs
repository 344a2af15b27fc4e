//! Figures as a table of Markdown that is also easy to read as text, or as JSON.

use std::fmt::Display;

/// The columns of a table.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    title: String,
    width: usize,
    is_text: bool,
}

impl Table {
    /// The title of each column, and how wide its cells are. A `:` before the title makes a column
    /// of text, as `:--` does in Markdown.
    pub fn new<T: AsRef<str>>(columns: impl IntoIterator<Item = (T, usize)>) -> Table {
        let column = |(title, width): (T, usize)| {
            let title = title.as_ref();
            let is_text = title.starts_with(':');
            let title = title.trim_start_matches(':').to_owned();
            Column { width: width.max(title.chars().count()), title, is_text }
        };
        Table { columns: columns.into_iter().map(column).collect() }
    }

    /// The two lines above the rows.
    pub fn head(&self) -> String {
        let titles = self.row(self.columns.iter().map(|column| column.title.clone()));
        let rule = |Column { width, is_text, .. }: &Column| {
            let dashes = "-".repeat(width + 1);
            if *is_text { format!(":{dashes}") } else { format!("{dashes}:") }
        };
        let rules: Vec<String> = self.columns.iter().map(rule).collect();
        format!("{titles}\n|{}|", rules.join("|"))
    }

    pub fn row(&self, cells: impl IntoIterator<Item = String>) -> String {
        let mut cells = cells.into_iter();
        let cell = |Column { width, is_text, .. }: &Column| {
            let cell = cells.next().unwrap_or_default();
            if *is_text { format!(" {cell:<width$} ") } else { format!(" {cell:>width$} ") }
        };
        let row: Vec<String> = self.columns.iter().map(cell).collect();
        format!("|{}|", row.join("|"))
    }
}

/// A figure with this many decimals; `-` if it is NaN.
pub fn number(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
}

/// `"name":1.5` of each, for a line of JSON, which has no infinite number and no NaN.
pub fn json<N: Display>(fields: impl IntoIterator<Item = (N, f64)>) -> String {
    let field = |(name, value): (N, f64)| {
        let value = if value.is_finite() { value } else { 0.0 };
        format!("\"{name}\":{value:.4}")
    };
    fields.into_iter().map(field).collect::<Vec<_>>().join(",")
}
