//! The rounds of the decoders, in turns, and their figures.
//!
//! A round is one stream through one decoder, again and again. Each figure is the median of its
//! rounds. The hazard is a decoder that stops early: the replies of each pass are counted.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kit::clap::{self, Parser};
use kit::{Measured, Only, Rounds, Table};
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

/// How fast the decoders read what nodes send.
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    rounds: Rounds<15, 20>,
    #[command(flatten)]
    only: Only,
    /// Print a line of JSON for each decoder and stream.
    #[arg(long)]
    json: bool,
}

/// The whole bench.
pub fn main(decoders: &mut [Decoder]) {
    let options: Options = kit::read();
    let names = decoders.iter().map(|it| (it.name, 14));
    let table = Table::new([(":stream", 18)].into_iter().chain(names));
    if !options.json {
        println!("GB/s (ns a reply); medians of {}", options.rounds);
        println!();
        println!("{}", table.head());
    }
    for stream in streams::all().iter().filter(|stream| options.only.wants(stream.name)) {
        let passes = measure(decoders, stream, &options);
        if options.json {
            show_json(decoders, stream, &passes);
            continue;
        }
        let cell = |seconds: &f64| match stream.rates(*seconds) {
            [rate, nanos] if rate.is_finite() => format!("{rate:.2} ({nanos:.1})"),
            _ => "cannot".to_owned(),
        };
        let name = std::iter::once(stream.name.to_owned());
        println!("{}", table.row(name.chain(passes.iter().map(cell))));
    }
}

/// The median time of one pass in seconds, by decoder; NaN if the decoder cannot read the stream.
fn measure(decoders: &mut [Decoder], stream: &Stream, options: &Options) -> Vec<f64> {
    let decodes = |it: &mut Decoder| (it.decode)(&stream.bytes) == stream.replies;
    let able: Vec<bool> = decoders.iter_mut().map(decodes).collect();
    let Rounds { count, length } = options.rounds;
    let passes = Measured::in_turns(decoders.len(), count, |which, _| match able[which] {
        true => round(&mut decoders[which], stream, length),
        false => f64::NAN,
    });
    (0..decoders.len()).map(|which| passes.median(which, |pass| *pass)).collect()
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

fn show_json(decoders: &[Decoder], stream: &Stream, passes: &[f64]) {
    for (decoder, &seconds) in decoders.iter().zip(passes).filter(|(_, it)| !it.is_nan()) {
        let [rate, nanos] = stream.rates(seconds);
        let figures = kit::json([("gb_per_s", rate), ("ns_per_reply", nanos)]);
        let (stream, decoder) = (stream.name, decoder.name);
        println!("{{\"stream\":\"{stream}\",\"decoder\":\"{decoder}\",{figures}}}");
    }
}

impl Stream {
    /// Gigabytes a second, and nanoseconds a reply, if a pass takes so many seconds.
    fn rates(&self, seconds: f64) -> [f64; 2] {
        [self.bytes.len() as f64 / seconds / 1e9, seconds * 1e9 / self.replies as f64]
    }
}
