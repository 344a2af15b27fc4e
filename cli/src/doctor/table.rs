//! Prints the findings as a table with a line for each check and a column for each node, and below
//! it each failure, warning and note in words.

use std::io;

use super::checks::{Finding, Level, NAMES};
use crate::look::{Colours, Look};
use crate::table::{LONGEST_LINE, lines};

/// How wide the column of the names is, in characters.
const NAME: usize = 13;

/// How wide the columns of the marks are, in characters.
const MARK: usize = 6;

/// The table. With `everything` set, findings that are ok are also put in words.
pub fn text(labels: &[&str], findings: &[Finding], everything: bool) -> String {
    let colours = Colours::on(&io::stdout());
    let mut lines: Vec<String> = labels
        .iter()
        .enumerate()
        .map(|(index, label)| format!("node {}  {label}", index + 1))
        .collect();
    lines.push(String::new());
    lines.push(heading(labels.len(), colours));
    lines.extend(NAMES.iter().filter_map(|name| row(name, labels, findings, colours)));
    let of_level = |level| findings.iter().filter(move |finding| finding.level == level);
    for level in [Level::Fail, Level::Warn, Level::Note, Level::Ok] {
        if (level != Level::Ok || everything) && of_level(level).next().is_some() {
            lines.push(String::new());
            lines.extend(of_level(level).flat_map(|finding| in_words(finding, labels, colours)));
        }
    }
    lines.push(String::new());
    let (failures, warnings) = (of_level(Level::Fail).count(), of_level(Level::Warn).count());
    lines.push(verdict(failures, warnings, colours));
    lines.join("\n")
}

fn heading(nodes: usize, colours: Colours) -> String {
    let mut line = format!("{:NAME$}  {:MARK$}", "check", "all");
    (1..=nodes).for_each(|node| line.push_str(&format!("{node:<MARK$}")));
    colours.styled(line.trim_end(), Look::Strong)
}

/// The line of one check; `None` if the check was not made.
fn row(name: &str, labels: &[&str], findings: &[Finding], colours: Colours) -> Option<String> {
    let worst = |label: Option<&str>| {
        let of_it = findings.iter().filter(|it| it.name == name && it.node.as_deref() == label);
        of_it.map(|finding| finding.level).max()
    };
    let columns = std::iter::once(None).chain(labels.iter().map(|label| Some(*label)));
    let marks: Vec<Option<Level>> = columns.map(worst).collect();
    if marks.iter().all(Option::is_none) {
        return None;
    }
    let is_of_nodes = marks[0].is_none();
    let cells = marks.iter().enumerate().map(|(column, mark)| match mark {
        Some(level) => colours.styled(&format!("{:MARK$}", level.name()), style_of(*level)),
        // The check could not be made on this node; another line says why.
        None if is_of_nodes && column > 0 => format!("{:MARK$}", "-"),
        None => " ".repeat(MARK),
    });
    Some(format!("{name:NAME$}  {}", cells.collect::<String>()).trim_end().to_owned())
}

/// One finding, wrapped.
fn in_words(finding: &Finding, labels: &[&str], colours: Colours) -> Vec<String> {
    let number = labels.iter().position(|label| finding.node.as_deref() == Some(*label));
    let whose = number.map_or("all".to_owned(), |index| format!("node {}", index + 1));
    let mark = colours.styled(&format!("{:4}", finding.level.name()), style_of(finding.level));
    let head = format!("  {whose:8}{:NAME$}  ", finding.name);
    let indent = " ".repeat(4 + head.len());
    let lines = lines(&finding.detail, LONGEST_LINE - indent.len());
    let begins = |index| if index == 0 { format!("{mark}{head}") } else { indent.clone() };
    lines.iter().enumerate().map(|(index, line)| format!("{}{line}", begins(index))).collect()
}

fn verdict(failures: usize, warnings: usize, colours: Colours) -> String {
    let count = |count, word| match count {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    };
    match (failures, warnings) {
        (0, 0) => colours.styled("healthy", Look::Good),
        (0, _) => {
            colours.styled(&format!("healthy, with {}", count(warnings, "warning")), Look::Odd)
        }
        _ => {
            let (failures, warnings) = (count(failures, "failure"), count(warnings, "warning"));
            colours.styled(&format!("{failures}, {warnings}"), Look::Bad)
        }
    }
}

const fn style_of(level: Level) -> Look {
    match level {
        Level::Ok => Look::Good,
        Level::Note => Look::Strong,
        Level::Warn => Look::Odd,
        Level::Fail => Look::Bad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_table_has_explanations_below_it() {
        let finding = |name, level, node: Option<&str>, detail: &str| Finding {
            name,
            level,
            node: node.map(str::to_owned),
            detail: detail.to_owned(),
        };
        let long = "word ".repeat(20);
        let findings = [
            finding("node-count", Level::Note, None, "both are needed"),
            finding("quorum", Level::Ok, None, "2 of 2"),
            finding("reachable", Level::Ok, Some("a:1"), "redis"),
            finding("reachable", Level::Fail, Some("b:2"), "not there"),
            finding("role", Level::Ok, Some("a:1"), "a master"),
            finding("permissions", Level::Ok, Some("a:1"), "all"),
            finding("permissions", Level::Warn, Some("a:1"), long.trim_end()),
        ];
        let expected = "\
node 1  a:1
node 2  b:2

check          all   1     2
node-count     note
quorum         ok
reachable            ok    fail
role                 ok    -
permissions          warn  -

fail  node 2  reachable      not there

warn  node 1  permissions    word word word word word word word word word word word word word word
                             word word word word word word

note  all     node-count     both are needed

1 failure, 1 warning";
        assert_eq!(text(&["a:1", "b:2"], &findings, false), expected);
        let everything = text(&["a:1", "b:2"], &findings, true);
        assert!(everything.contains("ok    all     quorum         2 of 2\n"), "{everything}");
        let alone = text(&["a:1"], &findings[..2], false);
        assert!(alone.ends_with("both are needed\n\nhealthy"), "a note is no warning: {alone}");
    }
}
