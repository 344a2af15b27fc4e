//! The rounds of the decoders, in turns, and their figures.
//!
//! A round is one stream through one decoder, again and again. Each figure is the median of its
//! rounds. The hazard is a decoder that stops early: the replies of each pass are counted.

use std::hint::black_box;
use std::time::{Duration, Instant};

use redlatch::proto::resp::{Limits, Step, decode};

use super::streams::{self, Stream};

/// Decodes a stream, and returns how many replies it found.
pub type Decode = dyn FnMut(&[u8]) -> usize;

/// A decoder.
pub struct Decoder {
    pub name: &'static str,
    pub decode: Box<Decode>,
}

/// The decoder of this library.
pub fn ours() -> Decoder {
    Decoder { name: "redlatch", decode: Box::new(decode_all) }
}

fn decode_all(mut bytes: &[u8]) -> usize {
    let limits = Limits::default();
    let mut replies = 0;
    while let Ok(Step::Complete { reply, consumed }) = decode(bytes, &limits) {
        black_box(reply);
        bytes = &bytes[consumed..];
        replies += 1;
    }
    replies
}

/// The whole bench.
pub fn main(decoders: &mut [Decoder]) {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}");
            std::process::exit(2);
        }
    };
    begin(decoders, &options);
    for stream in streams::all().iter().filter(|stream| stream.name.contains(&options.only)) {
        let figures = measure(decoders, stream, &options);
        show(decoders, stream, &figures, &options);
    }
}

/// The median time of one pass, in seconds, by decoder; `None`: it cannot decode the stream.
fn measure(decoders: &mut [Decoder], stream: &Stream, options: &Options) -> Vec<Option<f64>> {
    let mut rounds: Vec<Option<Vec<f64>>> = decoders
        .iter_mut()
        .map(|it| ((it.decode)(&stream.bytes) == stream.replies).then(Vec::new))
        .collect();
    for number in 0..options.rounds {
        for place in 0..decoders.len() {
            // Each round begins with another decoder.
            let which = (number + place) % decoders.len();
            if let Some(passes) = &mut rounds[which] {
                passes.push(round(&mut decoders[which], stream, options.length));
            }
        }
    }
    rounds.into_iter().map(|passes| passes.map(median)).collect()
}

/// The mean time of one pass within a round.
fn round(decoder: &mut Decoder, stream: &Stream, length: Duration) -> f64 {
    let started = Instant::now();
    let mut passes = 0;
    loop {
        let replies = (decoder.decode)(black_box(&stream.bytes));
        assert_eq!(replies, stream.replies, "{} lost replies", decoder.name);
        passes += 1;
        let elapsed = started.elapsed();
        if elapsed >= length {
            return elapsed.as_secs_f64() / f64::from(passes);
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

fn begin(decoders: &[Decoder], options: &Options) {
    if options.json {
        return;
    }
    println!("GB/s (ns a reply); medians of {} rounds of {:?}", options.rounds, options.length);
    println!();
    let names: Vec<&str> = decoders.iter().map(|it| it.name).collect();
    println!("| stream | {} |", names.join(" | "));
    println!("|:--|{}", "--:|".repeat(names.len()));
}

fn show(decoders: &[Decoder], stream: &Stream, figures: &[Option<f64>], options: &Options) {
    let rate = |seconds: f64| stream.bytes.len() as f64 / seconds / 1e9;
    let nanos = |seconds: f64| seconds * 1e9 / stream.replies as f64;
    if options.json {
        for (decoder, seconds) in decoders.iter().zip(figures) {
            let Some(seconds) = *seconds else { continue };
            println!(
                "{{\"stream\":\"{}\",\"decoder\":\"{}\",\"gb_per_s\":{:.4},\
                 \"ns_per_reply\":{:.3}}}",
                stream.name,
                decoder.name,
                rate(seconds),
                nanos(seconds)
            );
        }
        return;
    }
    let cell = |seconds: &Option<f64>| match *seconds {
        Some(seconds) => format!("{:.2} ({:.1})", rate(seconds), nanos(seconds)),
        None => "cannot".to_owned(),
    };
    let cells: Vec<String> = figures.iter().map(cell).collect();
    println!("| {} | {} |", stream.name, cells.join(" | "));
}

/// The options of the bench.
struct Options {
    rounds: usize,
    length: Duration,
    only: String,
    json: bool,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let length = Duration::from_millis(20);
        let mut options = Options { rounds: 15, length, only: String::new(), json: false };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--rounds" => options.rounds = positive(&value()?)?,
                "--seconds-per-round" => options.length = seconds(&value()?)?,
                "--only" => options.only = value()?,
                "--json" => options.json = true,
                // `cargo bench` passes `--bench` to every bench.
                "--bench" => {}
                other => return Err(format!("unknown option {other}")),
            }
        }
        Ok(options)
    }
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or(format!("{text} is not a positive number"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&seconds: &f64| seconds > 0.0);
    let length = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    length.ok_or(format!("{text} is not a number of seconds"))
}
