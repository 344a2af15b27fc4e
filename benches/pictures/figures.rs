//! The recorded figures of `peers`: a file of lines that `peers --record FILE` writes, and that the
//! pictures are drawn from.
//!
//! The hazard is a figure that was typed: a line is copied from a run, or from a table of one.

/// One contender in one case.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub case: String,
    pub contender: String,
    /// The figures, or the reason why there are none.
    pub figures: Result<Figures, String>,
}

/// Medians of the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub p50_us: f64,
    pub p99_us: f64,
    pub cpu_us: f64,
    pub pairs_per_s: f64,
}

/// The whole file.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The server, the rounds and the library.
    pub about: String,
    pub rows: Vec<Row>,
}

const HEAD: &str =
    "# Figures of `peers`, for the pictures beside this file; see benches/README.md.";
const COLUMNS: &str =
    "# case | contender | acquire p50, us | acquire p99, us | CPU a pair, us | pairs a second";

impl Record {
    pub fn write(&self) -> String {
        let rows = self.rows.iter().map(Row::write);
        let head = [HEAD.to_owned(), format!("# {}", self.about), COLUMNS.to_owned()];
        head.into_iter().chain(rows).map(|line| line + "\n").collect()
    }

    /// Reads a file; the error names the line.
    pub fn read(text: &str) -> Result<Record, String> {
        let (heads, lines): (Vec<_>, Vec<_>) = text.lines().partition(|it| it.starts_with('#'));
        let [HEAD, about, COLUMNS] = heads[..] else { return Err("another head".to_owned()) };
        let row = |line: &&str| Row::read(line).ok_or_else(|| format!("no figures: {line}"));
        let rows = lines.iter().map(row).collect::<Result<_, _>>()?;
        Ok(Record { about: about.trim_start_matches("# ").to_owned(), rows })
    }

    /// The rows of a case.
    pub fn case<'a>(&'a self, case: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.case == case)
    }
}

impl Row {
    /// Whether the contender is this library.
    pub fn is_ours(&self) -> bool {
        self.contender.starts_with("redlatch")
    }

    fn write(&self) -> String {
        let Row { case, contender, figures } = self;
        match figures {
            Ok(Figures { p50_us, p99_us, cpu_us, pairs_per_s }) => format!(
                "{case} | {contender} | {p50_us:.0} | {p99_us:.0} | {cpu_us:.1} | {pairs_per_s:.0}"
            ),
            Err(why) => format!("{case} | {contender} | {why}"),
        }
    }

    fn read(line: &str) -> Option<Row> {
        let cells: Vec<&str> = line.split(" | ").collect();
        let (case, contender, figures) = match cells[..] {
            [case, contender, why] => (case, contender, Err(why.to_owned())),
            [case, contender, p50, p99, cpu, pairs] => {
                let number = |text: &str| text.parse::<f64>().ok();
                let (p50_us, p99_us) = (number(p50)?, number(p99)?);
                let (cpu_us, pairs_per_s) = (number(cpu)?, number(pairs)?);
                (case, contender, Ok(Figures { p50_us, p99_us, cpu_us, pairs_per_s }))
            }
            _ => return None,
        };
        Some(Row { case: case.to_owned(), contender: contender.to_owned(), figures })
    }

    /// The beginnings of the cells that a table of benches/README.md has for this row.
    pub fn cells(&self) -> Vec<String> {
        let figures = match &self.figures {
            Ok(Figures { p50_us, p99_us, cpu_us, pairs_per_s }) => vec![
                format!("{} (", grouped(*p50_us, 0)),
                format!("{} (", grouped(*p99_us, 0)),
                format!("{} (", grouped(*cpu_us, 1)),
                format!("{} (", grouped(*pairs_per_s, 0)),
            ],
            Err(why) => vec![why.clone()],
        };
        std::iter::once(self.contender.clone()).chain(figures).collect()
    }
}

/// A number with commas between its thousands.
pub fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut grouped = String::new();
    for (at, character) in text.chars().enumerate() {
        if at > 0 && at < whole && (whole - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(character);
    }
    grouped
}
