//! The kinds of contenders in a run: the library or a bare loop, the keys, and the options.
//!
//! A kind has a name: its words, joined by `+`, such as `fenced+2of10` or `bare+2of10`.

use std::fmt;
use std::time::Duration;

use redlatch::LockOptions;
use redlatch::proto::MOST_KEYS;

/// The largest number of keys to draw from: far more than contenders, so that hardly any waits.
const MOST_DRAWN_FROM: usize = 1000;

/// The kind of all contenders of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Whether the contenders are bare loops that try again after each denial, without the library.
    pub bare: bool,
    /// Whether a lock has a fencing number.
    pub fenced: bool,
    /// How many keys one lock has.
    pub keys: usize,
    /// From how many shared keys each request draws them.
    pub of: usize,
}

impl Kind {
    /// The library with its defaults, and one key.
    pub const PLAIN: Kind = Kind { bare: false, fenced: false, keys: 1, of: 1 };
    pub const FENCED: Kind = Kind { fenced: true, ..Kind::PLAIN };
    pub const BARE: Kind = Kind { bare: true, ..Kind::PLAIN };

    /// What a bench measures by default. A bare loop stands after the kinds that are compared with
    /// it.
    pub const USUAL: [Kind; 7] = [
        Kind::PLAIN,
        Kind::FENCED,
        Kind::BARE,
        Kind::PLAIN.keys(2, 2),
        Kind::BARE.keys(2, 2),
        Kind::PLAIN.keys(2, 10),
        Kind::BARE.keys(2, 10),
    ];

    /// The kind with this many keys a lock, drawn from `of`.
    pub const fn keys(self, keys: usize, of: usize) -> Kind {
        Kind { keys, of, ..self }
    }

    /// The bare loop for the same keys. It has no fencing numbers.
    pub fn bare(self) -> Kind {
        Kind::BARE.keys(self.keys, self.of)
    }

    /// The options of a request.
    pub fn options(self, ttl: Duration) -> LockOptions {
        let mut options = LockOptions::new(ttl).wait_forever();
        if self.fenced {
            options = options.fenced();
        }
        options
    }

    /// The kind with this name. The error says what is wrong with the name.
    pub fn named(name: &str) -> Result<Kind, String> {
        let mut kind = Kind::PLAIN;
        for word in name.split('+').filter(|_| name != "plain") {
            match word {
                "bare" => kind.bare = true,
                "fenced" => kind.fenced = true,
                _ => (kind.keys, kind.of) = drawn(word, name)?,
            }
        }
        kind.check().map_err(|problem| format!("{name}: {problem}"))?;
        Ok(kind)
    }

    /// Checks that a contender can be of this kind.
    fn check(self) -> Result<(), String> {
        let Kind { bare, fenced, keys, of } = self;
        if bare && fenced {
            return Err("the bare loop is not fenced".into());
        }
        if keys == 0 || keys > of.min(MOST_KEYS) || of > MOST_DRAWN_FROM {
            let drawn = format!("drawn from as many at least, and from {MOST_DRAWN_FROM} at most");
            return Err(format!("a lock has 1 to {MOST_KEYS} keys, {drawn}"));
        }
        Ok(())
    }
}

/// The numbers in a word such as `2of10`.
fn drawn(word: &str, name: &str) -> Result<(usize, usize), String> {
    let numbers = word.split_once("of").map(|(keys, of)| (keys.parse(), of.parse()));
    match numbers {
        Some((Ok(keys), Ok(of))) => Ok((keys, of)),
        _ => Err(format!(
            "{name}: \"{word}\" is neither bare nor fenced, nor keys such as 2of10; the \
             library with its defaults is called plain"
        )),
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [(self.bare, "bare"), (self.fenced, "fenced")];
        let words = words.into_iter().filter(|(is, _)| *is).map(|(_, word)| word.to_owned());
        let keys = (self.of > 1).then(|| format!("{}of{}", self.keys, self.of));
        let words: Vec<String> = words.chain(keys).collect();
        f.pad(&if words.is_empty() { "plain".to_owned() } else { words.join("+") })
    }
}
