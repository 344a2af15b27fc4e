//! The style of words on a terminal. Styles are used only if the output is a terminal and NO_COLOR
//! is not set.

use std::io::IsTerminal;
use std::time::Duration;

/// The style of a word on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Strong,
    Good,
    Faint,
    Odd,
    Bad,
}

impl Look {
    const fn code(self) -> &'static str {
        match self {
            Look::Strong => "1",
            Look::Good => "32",
            Look::Faint => "2",
            Look::Odd => "33",
            Look::Bad => "31",
        }
    }
}

/// Whether an output may have colours.
#[derive(Debug, Clone, Copy)]
pub struct Colours(bool);

impl Colours {
    /// Allows colours if this output is a terminal that knows them, and NO_COLOR is not set.
    pub fn on(output: &impl IsTerminal) -> Colours {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_none_or(|terminal| terminal == "dumb");
        Colours(output.is_terminal() && set("NO_COLOR").is_none() && !dumb)
    }

    /// No colours at all.
    pub fn none() -> Colours {
        Colours(false)
    }

    /// The text in that style. Pad the text before, because escape codes would count as width.
    pub fn styled(self, text: &str, look: Look) -> String {
        if self.0 { format!("\x1b[{}m{text}\x1b[0m", look.code()) } else { text.to_string() }
    }
}

/// A measured time, in the unit that shows it best.
pub fn time(duration: Duration) -> String {
    let micros = duration.as_micros();
    if micros < 10_000 {
        format!("{micros} µs")
    } else if micros < 1_000_000 {
        format!("{:.1} ms", duration.as_secs_f64() * 1e3)
    } else {
        format!("{:.3} s", duration.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_their_unit() {
        let cases = [
            (0, "0 µs"),
            (9_999, "9999 µs"),
            (10_000, "10.0 ms"),
            (999_949, "999.9 ms"),
            (2_967_412, "2.967 s"),
        ];
        for (micros, shown) in cases {
            assert_eq!(time(Duration::from_micros(micros)), shown);
        }
    }
}
