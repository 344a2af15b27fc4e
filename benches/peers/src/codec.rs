//! The decoder of this library beside those of redis-protocol and redis-rs, in turns.
//!
//! Streams and rounds are those of `benches/codec`. Each peer is called in the way that costs it
//! least among the public ones: redis-protocol returns ranges of the input and copies nothing, and
//! redis-rs has the decoder that its connections use, and `Parser`. The hazard is a peer that is
//! called badly, so both ways of redis-rs are measured.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

#[path = "../../codec/rounds.rs"]
mod rounds;
#[path = "../../codec/streams.rs"]
mod streams;

use std::hint::black_box;

use bytes::BytesMut;
use redis_protocol::{resp2, resp3};
use rounds::Decoder;
use tokio_util::codec::Decoder as _;

fn main() {
    rounds::main(&mut [
        rounds::ours(),
        Decoder { name: "redis-protocol, RESP3", decode: Box::new(protocol_3) },
        Decoder { name: "redis-protocol, RESP2", decode: Box::new(protocol_2) },
        Decoder { name: "redis-rs, connection", decode: Box::new(redis_codec()) },
        Decoder { name: "redis-rs, Parser", decode: Box::new(redis_parser) },
    ]);
}

fn protocol_3(mut bytes: &[u8]) -> usize {
    let mut replies = 0;
    while let Ok(Some((frame, consumed))) = resp3::decode::complete::decode_range(bytes) {
        black_box(frame);
        bytes = &bytes[consumed..];
        replies += 1;
    }
    replies
}

fn protocol_2(mut bytes: &[u8]) -> usize {
    let mut replies = 0;
    while let Ok(Some((frame, consumed))) = resp2::decode::decode_range(bytes) {
        black_box(frame);
        bytes = &bytes[consumed..];
        replies += 1;
    }
    replies
}

/// The decoder consumes its buffer, so each pass begins with a copy of 64 KiB: two microseconds.
fn redis_codec() -> impl FnMut(&[u8]) -> usize {
    let mut codec = redis::ValueCodec::default();
    let mut buffer = BytesMut::new();
    move |bytes| {
        buffer.clear();
        buffer.extend_from_slice(bytes);
        let mut replies = 0;
        while let Ok(Some(value)) = codec.decode(&mut buffer) {
            black_box(value);
            replies += 1;
        }
        replies
    }
}

fn redis_parser(mut bytes: &[u8]) -> usize {
    let mut parser = redis::Parser::new();
    let mut replies = 0;
    while let Ok(value) = parser.parse_value(&mut bytes) {
        black_box(value);
        replies += 1;
    }
    replies
}
