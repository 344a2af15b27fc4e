//! A second parser of RESP2 and RESP3, written without looking at the decoder: it recurses, copies
//! everything, and is slow. The fuzz targets compare the two.
//!
//! The hazard is a mistake that both make. So this file follows the description of the protocol and
//! the documented limits of the decoder, and shares no code with it.

use redlatch::proto::resp::Limits;

/// A reply, with copies of its bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Boolean(bool),
    Double(Vec<u8>),
    BigNumber(Vec<u8>),
    /// An array, set, map or push, by its first byte. A map has keys and values in turn.
    List(u8, Vec<Value>),
}

/// What the input begins with.
#[derive(Debug, Clone, PartialEq)]
pub enum Parsed {
    /// A reply of this many bytes.
    Whole(Value, usize),
    /// The beginning of a reply, which more bytes may complete.
    Part,
    /// Bytes with which no reply can begin.
    Wrong,
}

/// Reads the reply that `bytes` begin with.
pub fn parse(bytes: &[u8], limits: &Limits) -> Parsed {
    let mut input = Input { bytes, at: 0, left: *limits };
    match input.value(1) {
        Ok(value) => Parsed::Whole(value, input.at),
        Err(Stop::Part) => Parsed::Part,
        Err(Stop::Wrong) => Parsed::Wrong,
    }
}

/// Reads all replies of a stream, each with its end. The second item says what follows them: the
/// beginning of a reply, or bytes that are none.
pub fn parse_all(stream: &[u8], limits: &Limits) -> (Vec<(usize, Value)>, Parsed) {
    let (mut replies, mut from) = (Vec::new(), 0);
    loop {
        match parse(&stream[from..], limits) {
            Parsed::Whole(value, length) => {
                from += length;
                replies.push((from, value));
            }
            rest => return (replies, rest),
        }
    }
}

enum Stop {
    Part,
    Wrong,
}

/// The deepest nesting that the decoder accepts, whatever its limits say.
const DEEPEST: usize = 16;

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
    left: Limits,
}

impl Input<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        let kind = self.next()?;
        match kind {
            b'+' => self.line().map(Value::Simple),
            b'-' => self.line().map(Value::Error),
            b':' => self.integer().map(Value::Integer),
            b'$' if self.peek() == Some(b'-') => self.exactly("-1\r\n").map(|()| Value::Null),
            b'*' if self.peek() == Some(b'-') => self.exactly("-1\r\n").map(|()| Value::Null),
            b'$' => self.bulk().map(Value::Bulk),
            b'!' => self.bulk().map(Value::Error),
            b'=' => {
                let mut text = self.bulk()?;
                if text.len() < 4 || text[3] != b':' {
                    return Err(Stop::Wrong);
                }
                Ok(Value::Bulk(text.split_off(4)))
            }
            b'_' => self.exactly("\r\n").map(|()| Value::Null),
            b'#' => match self.next()? {
                b't' => self.exactly("\r\n").map(|()| Value::Boolean(true)),
                b'f' => self.exactly("\r\n").map(|()| Value::Boolean(false)),
                _ => Err(Stop::Wrong),
            },
            b',' => {
                let text = self.line()?;
                let readable = String::from_utf8(text.clone()).map(|text| text.parse::<f64>());
                if matches!(readable, Ok(Ok(_))) {
                    Ok(Value::Double(text))
                } else {
                    Err(Stop::Wrong)
                }
            }
            b'(' => {
                let text = self.line()?;
                let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(&text);
                let signed = digits.len() < text.len();
                let all_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
                let short = digits[..] == *b"0" && !signed || digits.first() != Some(&b'0');
                if all_digits && short { Ok(Value::BigNumber(text)) } else { Err(Stop::Wrong) }
            }
            b'*' | b'~' | b'%' | b'>' => self.list(kind, depth),
            _ => Err(Stop::Wrong),
        }
    }

    fn list(&mut self, kind: u8, depth: usize) -> Result<Value, Stop> {
        let each = if kind == b'%' { 2 } else { 1 };
        let count = self.number((self.left.elements / each) as u128)? as usize * each;
        if depth > self.left.depth.min(DEEPEST) {
            return Err(Stop::Wrong);
        }
        self.left.elements -= count;
        let mut values = Vec::new();
        for _ in 0..count {
            if self.peek() == Some(b'>') {
                return Err(Stop::Wrong);
            }
            values.push(self.value(depth + 1)?);
        }
        Ok(Value::List(kind, values))
    }

    fn integer(&mut self) -> Result<i64, Stop> {
        let sign = self.peek().filter(|byte| b"+-".contains(byte));
        if sign.is_some() {
            self.at += 1;
            if self.peek() == Some(b'0') {
                return Err(Stop::Wrong);
            }
        }
        let most = if sign == Some(b'-') { 1_u128 << 63 } else { (1_u128 << 63) - 1 };
        let size = self.number(most)? as i128;
        let value = if sign == Some(b'-') { -size } else { size };
        i64::try_from(value).map_err(|_| Stop::Wrong)
    }

    /// Digits in the shortest form, up to the number `most`, and the end of the line.
    fn number(&mut self, most: u128) -> Result<u128, Stop> {
        let rest = &self.bytes[self.at..];
        let digits: String =
            rest.iter().map(|&byte| char::from(byte)).take_while(char::is_ascii_digit).collect();
        self.at += digits.len();
        if digits.is_empty() {
            return Err(if rest.is_empty() { Stop::Part } else { Stop::Wrong });
        }
        if digits.len() > 1 && digits.starts_with('0') || digits.len() > 30 {
            return Err(Stop::Wrong);
        }
        let number: u128 = digits.parse().map_err(|_| Stop::Wrong)?;
        if number > most {
            return Err(Stop::Wrong);
        }
        self.exactly("\r\n").map(|()| number)
    }

    fn bulk(&mut self) -> Result<Vec<u8>, Stop> {
        let length = self.number(self.left.bulk as u128)? as usize;
        if self.bytes.len() - self.at < length {
            return Err(Stop::Part);
        }
        let bytes = self.bytes[self.at..self.at + length].to_vec();
        self.at += length;
        self.left.bulk -= length;
        self.exactly("\r\n").map(|()| bytes)
    }

    fn line(&mut self) -> Result<Vec<u8>, Stop> {
        let mut text = Vec::new();
        loop {
            match self.next() {
                Ok(b'\r') => match self.next()? {
                    b'\n' => break,
                    _ => return Err(Stop::Wrong),
                },
                Ok(b'\n') => return Err(Stop::Wrong),
                Ok(byte) => text.push(byte),
                Err(stop) => return Err(stop),
            }
            if text.len() > self.left.line {
                return Err(Stop::Wrong);
            }
        }
        self.left.line -= text.len();
        Ok(text)
    }

    fn exactly(&mut self, text: &str) -> Result<(), Stop> {
        for expected in text.bytes() {
            if self.next()? != expected {
                return Err(Stop::Wrong);
            }
        }
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Result<u8, Stop> {
        let byte = self.peek().ok_or(Stop::Part)?;
        self.at += 1;
        Ok(byte)
    }
}
