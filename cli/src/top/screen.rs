//! Prints the pictures. On a terminal each picture replaces the one before; other outputs get one
//! after the other.
//!
//! The hazard is a terminal that keeps the modes that this program set. So dropping the screen
//! resets them.

use std::io::{self, IsTerminal, Write};

use crate::output::Refusal;

/// Switches to the alternate screen, hides the cursor, and turns off the wrapping of long lines.
const BEGIN: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const END: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Moves the cursor to the first line. The next two clear the rest of a line, and all lines below.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The number of lines that is assumed if the terminal does not report its size.
const USUAL_LINES: usize = 24;

/// The standard output.
#[derive(Debug)]
pub struct Screen {
    /// A picture replaces the one before.
    is_terminal: bool,
    is_json: bool,
    is_begun: bool,
}

impl Screen {
    /// Makes the screen, and writes nothing yet.
    pub fn new(is_json: bool) -> Screen {
        let is_terminal = io::stdout().is_terminal() && !is_json;
        Screen { is_terminal, is_json, is_begun: false }
    }

    /// How many lines the terminal shows; `None` if the output is not a terminal.
    pub fn lines(&self) -> Option<usize> {
        self.is_terminal.then(|| {
            let size = rustix::termios::tcgetwinsize(io::stdout());
            let lines = size.map_or(0, |size| usize::from(size.ws_row));
            if lines == 0 { USUAL_LINES } else { lines }
        })
    }

    /// Draws a picture. Returns `false` if the output has no reader any more.
    pub fn draw(&mut self, picture: &str) -> Result<bool, Refusal> {
        let text = match self.lines() {
            Some(lines) => {
                let begin = if self.is_begun { "" } else { BEGIN };
                format!("{begin}{HOME}{}{CLEAR_BELOW}", cut(picture, lines))
            }
            None if self.is_json => format!("{picture}\n"),
            None if self.is_begun => format!("\n{picture}"),
            None => picture.to_owned(),
        };
        self.is_begun = true;
        match write(&text) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Refusal::internal(format!("the standard output: {error}"))),
            Ok(()) => Ok(true),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal && self.is_begun {
            let _ = write(END);
        }
    }
}

/// The lines of the picture that the terminal can show. The last line has no line end, which would
/// make the terminal scroll.
fn cut(picture: &str, lines: usize) -> String {
    let all: Vec<&str> = picture.lines().collect();
    let shown = if all.len() <= lines { all.len() } else { lines.saturating_sub(1) };
    let mut text: Vec<String> = all[..shown].iter().map(|line| (*line).to_owned()).collect();
    if shown < all.len() {
        text.push(format!("  and {} more lines", all.len() - shown));
    }
    text.join(&format!("{CLEAR_LINE}\r\n")) + CLEAR_LINE
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_fits_into_the_lines_of_the_terminal() {
        let plain = |lines| cut("a\nb\nc\n", lines).replace(CLEAR_LINE, "").replace("\r\n", "|");
        assert_eq!(plain(3), "a|b|c");
        assert_eq!(plain(2), "a|  and 2 more lines");
        assert_eq!(plain(1), "  and 3 more lines");
    }
}
