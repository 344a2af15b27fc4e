//! The keys of one lock in the order of the command line, and how they are printed.
//!
//! The hazard is a fencing number that is taken for another key's. A lock over several keys has a
//! number for each, and the library sorts the keys by their bytes. So numbers are printed in the
//! order of the command line, or together with their keys.

use redlatch::{KeySet, Lock};
use serde_json::{Map, Value};

/// How many bytes of a key are shown to people.
const SHOWN: usize = 100;

/// A key for people, in quotes. A long key is cut, and its length added. JSON has the whole key.
pub fn shown(key: &str) -> String {
    if key.len() <= SHOWN {
        return format!("\"{}\"", key.escape_debug());
    }
    let ends = key.char_indices().map(|(at, _)| at).take_while(|&at| at <= SHOWN);
    let start = &key[..ends.last().unwrap_or_default()];
    format!("\"{}...\" ({} bytes)", start.escape_debug(), key.len())
}

/// A key for tables: printable ASCII without quotes. A long key is cut, and its length added.
pub fn cut(key: &[u8]) -> String {
    match key.get(..SHOWN) {
        Some(start) if key.len() > SHOWN => {
            format!("{}... ({} bytes)", start.escape_ascii(), key.len())
        }
        _ => key.escape_ascii().to_string(),
    }
}

/// The keys of a command line, in its order and as a set.
#[derive(Debug, Clone)]
pub struct KeyNames {
    names: Vec<String>,
    set: KeySet,
}

impl KeyNames {
    /// Takes one key or more. A key that is named twice counts once.
    pub fn new(
        named: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<KeyNames, redlatch::Error> {
        let mut names: Vec<String> = Vec::new();
        for name in named.into_iter().map(Into::into) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let set = KeySet::new(&names)?;
        Ok(KeyNames { names, set })
    }

    /// The keys as the library takes them.
    pub fn set(&self) -> &KeySet {
        &self.set
    }

    /// The key that was named first.
    pub fn first(&self) -> &str {
        &self.names[0]
    }

    /// The keys for people: the one that was named first, and how many more there are.
    pub fn in_words(&self) -> String {
        let first = shown(self.first());
        match self.names.len() {
            1 => first,
            2 => format!("{first} and 1 more key"),
            count => format!("{first} and {} more keys", count - 1),
        }
    }

    /// Each key with its fencing number, in the order of the command line. Empty if the lock is not
    /// fenced.
    pub fn fences(&self, lock: &Lock) -> Vec<(&str, u64)> {
        let of = |name: &String| {
            let place = self.set.iter().position(|key| key == name.as_bytes())?;
            lock.fences().nth(place)
        };
        self.names.iter().filter_map(|name| Some((&name[..], of(name)?))).collect()
    }

    /// The line that is printed for a lock: its token, and the fencing number of each key, if any.
    pub fn token_line(&self, lock: &Lock) -> String {
        let numbers = self.fences(lock).into_iter().map(|(_, fence)| format!(" {fence}"));
        numbers.fold(lock.token().to_string(), |line, number| line + &number)
    }

    /// The fencing numbers by key; `None` if the lock has fewer than two.
    pub fn fences_by_key(&self, lock: &Lock) -> Option<Value> {
        let fences = self.fences(lock).into_iter();
        let object: Map<String, Value> =
            fences.map(|(name, fence)| (name.to_owned(), fence.into())).collect();
        (object.len() > 1).then_some(Value::Object(object))
    }

    /// Adds to a JSON object the fencing number of the first key, if any, and if there are several
    /// keys, the keys and all numbers.
    pub fn add_to(&self, object: &mut Value, lock: &Lock) {
        if let Some(&(_, fence)) = self.fences(lock).first() {
            object["fence"] = fence.into();
        }
        if let Some(fences) = self.fences_by_key(lock) {
            object["fences"] = fences;
        }
        self.add_keys(object);
    }

    /// Adds the keys to a JSON object, if there are several.
    pub fn add_keys(&self, object: &mut Value) {
        if self.names.len() > 1 {
            let keys = self.set.iter().map(|key| String::from_utf8_lossy(key).into_owned());
            object["keys"] = keys.collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_keys_are_cut_in_tables() {
        assert_eq!(cut(b"deploy\n"), "deploy\\n");
        assert_eq!(cut(&[b'k'; 100]), "k".repeat(100));
        assert_eq!(cut(&[b'k'; 3000]), format!("{}... (3000 bytes)", "k".repeat(100)));
    }

    #[test]
    fn long_keys_are_cut_between_characters() {
        assert_eq!(shown("deploy"), "\"deploy\"");
        assert_eq!(shown(&"k".repeat(100)), format!("\"{}\"", "k".repeat(100)));
        let cut = format!("\"{}...\" (3000 bytes)", "k".repeat(100));
        assert_eq!(shown(&"k".repeat(3000)), cut);
        let cut = format!("\"a{}...\" (201 bytes)", "é".repeat(49));
        assert_eq!(shown(&format!("a{}", "é".repeat(100))), cut);
        assert_eq!(shown("a\nb"), "\"a\\nb\"");
    }
}
