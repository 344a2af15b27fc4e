//! Reads a patch in the unified format, and applies it to texts in memory, because the machine may
//! have neither git nor patch.
//!
//! The patch changes files; it does not make, delete or rename any. The hazard is a hunk in the
//! wrong place. If its lines are found in several places, the hunk goes where its head says, and is
//! refused if they are not there.

use std::collections::BTreeSet;

/// The changes of a patch.
pub struct Patch {
    pub files: Vec<FilePatch>,
}

/// The changes of one file.
pub struct FilePatch {
    pub path: String,
    hunks: Vec<Hunk>,
}

struct Hunk {
    head: String,
    /// The number of the first line that it replaces, from 0 on.
    line: usize,
    /// While the hunk is read: how many of the lines that it replaces, and of those that it puts
    /// there, are still to come.
    left: (usize, usize),
    before: Vec<String>,
    after: Vec<String>,
}

impl Patch {
    /// Reads a patch. The lines before the first file are for people.
    ///
    /// # Panics
    /// If the text is no patch.
    pub fn read(text: &str) -> Patch {
        let mut files: Vec<FilePatch> = Vec::new();
        for line in text.lines() {
            let hunk = files.last_mut().and_then(|file| file.hunks.last_mut());
            if let Some(hunk) = hunk.filter(|hunk| hunk.left != (0, 0)) {
                hunk.push(line);
            } else if let Some(path) = line.strip_prefix("+++ b/") {
                files.push(FilePatch { path: path.to_owned(), hunks: Vec::new() });
            } else if line.starts_with("@@ ") {
                let file = files.last_mut().expect("a hunk comes after the name of its file");
                file.hunks.push(Hunk::of(line));
            }
        }
        Patch { files }
    }

    /// The names of the faults in the patch.
    pub fn faults(&self) -> BTreeSet<String> {
        self.files.iter().flat_map(|file| &file.hunks).flat_map(Hunk::faults).collect()
    }
}

impl FilePatch {
    /// The text with all changes; `Err`: which hunks do not fit.
    pub fn apply(&self, text: &str) -> Result<String, Vec<String>> {
        let lines: Vec<&str> = text.lines().collect();
        let (mut changed, mut done, mut wrong) = (Vec::new(), 0, Vec::new());
        for hunk in &self.hunks {
            match hunk.place(&lines, done) {
                Ok(place) => {
                    changed.extend(lines[done..place].iter().copied());
                    changed.extend(hunk.after.iter().map(String::as_str));
                    done = place + hunk.before.len();
                }
                Err(why) => {
                    let faults: Vec<String> = hunk.faults().collect();
                    let faults = faults.join(", ");
                    wrong.push(format!("{}: {} ({faults}): {why}", self.path, hunk.head));
                }
            }
        }
        changed.extend(lines[done..].iter().copied());
        if wrong.is_empty() { Ok(changed.join("\n") + "\n") } else { Err(wrong) }
    }
}

impl Hunk {
    /// An empty hunk with the head `@@ -10,4 +12,6 @@`.
    fn of(head: &str) -> Hunk {
        let mut ranges = head.split(' ').skip(1).map(|range| {
            let range = range.trim_start_matches(['-', '+']);
            let (line, count) = range.split_once(',').unwrap_or((range, "1"));
            line.parse().ok().zip(count.parse().ok()).unwrap_or((0, 0))
        });
        let ((line, before), (_, after)) = (|| Some((ranges.next()?, ranges.next()?)))()
            .unwrap_or_else(|| panic!("the head of a hunk: {head}"));
        assert!(line > 0, "the head of a hunk: {head}");
        Hunk {
            head: head.split(" @@").next().unwrap_or(head).to_owned() + " @@",
            line: line - 1,
            left: (before, after),
            before: Vec::new(),
            after: Vec::new(),
        }
    }

    fn push(&mut self, line: &str) {
        // An editor may have removed the space that an empty line of a patch has.
        let (sign, text) = if line.is_empty() { (" ", "") } else { line.split_at(1) };
        let (was, is) = match sign {
            " " => (true, true),
            "-" => (true, false),
            "+" => (false, true),
            _ => panic!("{}: a line that belongs to no hunk: {line}", self.head),
        };
        let left = |count: usize, taken| count.checked_sub(usize::from(taken));
        let still = left(self.left.0, was).zip(left(self.left.1, is));
        self.left = still.unwrap_or_else(|| panic!("{}: other counts of lines", self.head));
        if was {
            self.before.push(text.to_owned());
        }
        if is {
            self.after.push(text.to_owned());
        }
    }

    /// The line at which the hunk fits, `from` or later.
    fn place(&self, lines: &[&str], from: usize) -> Result<usize, &'static str> {
        let count = self.before.len();
        let is_here = |&place: &usize| {
            let here = lines.get(place..place + count);
            here.is_some_and(|here| *here == self.before[..])
        };
        let places: Vec<usize> = (from..lines.len()).filter(is_here).collect();
        match places[..] {
            [place] => Ok(place),
            _ if places.contains(&self.line) => Ok(self.line),
            [] => Err("its lines are not there"),
            _ => Err("its lines are at several places"),
        }
    }

    fn faults(&self) -> impl Iterator<Item = String> {
        let calls = self.after.iter().flat_map(|line| line.split("is_planted(\"").skip(1));
        calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "\
For people.

--- a/x.rs
+++ b/x.rs
@@ -2,3 +2,4 @@ fn one() {
 b
-c
+C
+is_planted(\"Fault\")

@@ -7,2 +8,2 @@
 f
--- not the name of a file
+g
--- a/y.rs
+++ b/y.rs
@@ -1 +1,2 @@
 a
+b
";

    fn applied(text: &str) -> Result<String, Vec<String>> {
        Patch::read(PATCH).files[0].apply(text)
    }

    #[test]
    fn a_patch_is_read_and_put_where_its_heads_say() {
        let patch = Patch::read(PATCH);
        let paths: Vec<&str> = patch.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["x.rs", "y.rs"]);
        assert_eq!(patch.faults(), BTreeSet::from(["Fault".to_owned()]));
        let text = applied("a\nb\nc\n\nd\ne\nf\n-- not the name of a file\nz\n").unwrap();
        assert_eq!(text, "a\nb\nC\nis_planted(\"Fault\")\n\nd\ne\nf\ng\nz\n");
    }

    #[test]
    fn a_hunk_is_found_at_another_line_if_it_fits_at_one_place_alone() {
        let text = applied("b\nc\n\nf\n-- not the name of a file\n").unwrap();
        assert_eq!(text, "b\nC\nis_planted(\"Fault\")\n\nf\ng\n");
        let twice = applied("b\nc\n\nb\nc\n\nf\n-- not the name of a file\n").unwrap_err();
        assert_eq!(twice, ["x.rs: @@ -2,3 +2,4 @@ (Fault): its lines are at several places"]);
    }

    #[test]
    fn every_hunk_that_does_not_fit_is_named() {
        let wrong = applied("a\nb\n").unwrap_err();
        let ends =
            ["(Fault): its lines are not there", "@@ -7,2 +8,2 @@ (): its lines are not there"];
        assert_eq!(wrong.len(), 2);
        assert!(wrong.iter().zip(ends).all(|(line, end)| line.ends_with(end)), "{wrong:?}");
    }
}
