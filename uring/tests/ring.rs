//! The ring on real sockets and the kernel of this machine. No test is possible without a kernel:
//! miri does not know these system calls. If this kernel has no io_uring, the tests do nothing.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "tests wait for a kernel, on a real clock")]

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redlatch_uring::{Event, Ring};

const SECOND: Duration = Duration::from_secs(1);

fn ring(places: usize, count: u16, size: usize) -> Option<Ring> {
    match Ring::new(places, count, size) {
        Ok(ring) => Some(ring),
        Err(error) => {
            println!("no io_uring here: {error}");
            None
        }
    }
}

/// A connection in the ring at this place, and its other side.
fn connect(ring: &mut Ring, place: usize) -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("the system has sockets");
    // As the sockets of the library.
    ours.set_nonblocking(true).expect("the system has it");
    ring.attach(place, ours.as_fd()).expect("the ring has room");
    (ours, theirs)
}

/// Takes what is there: the bytes of each place, and which ended.
fn take(ring: &mut Ring, received: &mut [Vec<u8>]) -> Vec<(usize, ErrorKind)> {
    let mut ended = Vec::new();
    while let Some(event) = ring.next_event() {
        match event {
            Event::Received { place, bytes } => received[place].extend_from_slice(bytes),
            Event::Ended { place, error } => ended.push((place, error.kind())),
            Event::Watched => panic!("nothing is watched"),
        }
    }
    ended
}

#[test]
fn bytes_arrive_at_their_place_and_a_close_is_reported() {
    let Some(mut ring) = ring(3, 8, 64) else { return };
    let mut pairs: Vec<_> = (0..3).map(|place| connect(&mut ring, place)).collect();
    for (place, (_, theirs)) in pairs.iter_mut().enumerate() {
        theirs.write_all(format!("hello {place}").as_bytes()).expect("it is open");
    }
    let mut received = vec![Vec::new(); 3];
    ring.submit_and_wait(Some(SECOND)).expect("the ring works");
    assert_eq!(take(&mut ring, &mut received), []);
    assert_eq!(received, [b"hello 0", b"hello 1", b"hello 2"]);
    drop(pairs.remove(1));
    ring.submit_and_wait(Some(SECOND)).expect("the ring works");
    assert_eq!(take(&mut ring, &mut received), [(1, ErrorKind::UnexpectedEof)]);
}

#[test]
fn a_stream_that_is_larger_than_all_buffers_arrives_in_order() {
    let Some(mut ring) = ring(1, 2, 16) else { return };
    let (_ours, mut theirs) = connect(&mut ring, 0);
    let sent: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8).collect();
    theirs.write_all(&sent).expect("the socket takes it");
    let mut received = vec![Vec::new()];
    while received[0].len() < sent.len() {
        let before = received[0].len();
        ring.submit_and_wait(Some(SECOND)).expect("the ring works");
        assert_eq!(take(&mut ring, &mut received), []);
        assert!(received[0].len() > before, "silent after {before} bytes");
    }
    assert_eq!(received[0], sent);
}

#[test]
fn one_call_sends_to_all_places_and_waits_for_an_answer() {
    let Some(mut ring) = ring(2, 8, 64) else { return };
    let (_ours, mut first) = connect(&mut ring, 0);
    let (_ours, mut second) = connect(&mut ring, 1);
    assert!(ring.send(0, b"ab") && ring.send(0, b"c") && ring.send(1, b"xyz"));
    assert!(ring.has_unsent(0) && ring.has_queued());
    let thread = std::thread::spawn(move || {
        let mut bytes = [0; 3];
        second.read_exact(&mut bytes).expect("it is open");
        std::thread::sleep(Duration::from_millis(50));
        second.write_all(&bytes).expect("it is open");
        second
    });
    let start = Instant::now();
    ring.submit_and_wait(Some(20 * SECOND)).expect("the ring works");
    assert!(start.elapsed() >= Duration::from_millis(40), "a send is no reason to return");
    assert!(start.elapsed() < 10 * SECOND);
    let mut received = vec![Vec::new(); 2];
    assert_eq!(take(&mut ring, &mut received), []);
    assert_eq!(received[1], b"xyz");
    let mut bytes = [0; 3];
    first.read_exact(&mut bytes).expect("it is open");
    assert_eq!(&bytes, b"abc");
    assert!(!ring.has_unsent(0) && !ring.has_queued());
    drop(thread.join());
}

/// The socket takes a part; the rest follows after `resume`, in order.
#[test]
fn a_send_to_a_full_socket_goes_on_after_resume() {
    let Some(mut ring) = ring(1, 4, 64) else { return };
    let (_ours, mut theirs) = connect(&mut ring, 0);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    assert!(ring.send(0, &sent));
    ring.submit().expect("the ring works");
    assert!(ring.has_unsent(0));
    assert!(!ring.send(0, b"later"), "earlier bytes come first");
    theirs.set_nonblocking(true).expect("the system has it");
    let (mut received, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    while received.len() < sent.len() {
        match theirs.read(&mut chunk) {
            Ok(count) => received.extend_from_slice(&chunk[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        ring.resume(0);
        ring.submit().expect("the ring works");
        assert_eq!(take(&mut ring, &mut [Vec::new()]), []);
    }
    assert!(received == sent && !ring.has_unsent(0));
    assert!(ring.send(0, b"later"));
}

#[test]
fn nothing_is_reported_of_a_connection_that_was_detached() {
    let Some(mut ring) = ring(1, 8, 64) else { return };
    for turn in 0..100 {
        let (ours, mut theirs) = connect(&mut ring, 0);
        if turn % 3 == 0 {
            ring.submit().expect("the ring works");
        }
        theirs.write_all(b"late").expect("it is open");
        if turn % 2 == 0 {
            ring.submit().expect("the ring works");
        }
        assert!(ring.send(0, b"never"));
        ring.detach(0);
        assert!(!ring.is_attached(0) && !ring.send(0, b"nor this"));
        drop(ours);
        let (_ours, mut next) = connect(&mut ring, 0);
        next.write_all(b"new").expect("it is open");
        let mut received = vec![Vec::new()];
        while received[0].is_empty() {
            ring.submit_and_wait(Some(SECOND)).expect("the ring works");
            assert_eq!(take(&mut ring, &mut received), []);
        }
        assert_eq!(received[0], b"new");
        // The ring has no copy of the descriptor any more, and no operation holds the socket.
        theirs.set_read_timeout(Some(SECOND)).expect("the system has it");
        let mut rest = Vec::new();
        let ended = theirs.read_to_end(&mut rest).map(drop).map_err(|error| error.kind());
        assert!(matches!(ended, Ok(()) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
        assert_eq!(rest, b"", "what was not submitted is not sent");
        ring.detach(0);
    }
}

#[test]
fn a_watched_descriptor_is_reported_each_time() {
    let Some(mut ring) = ring(0, 1, 64) else { return };
    let (mut ours, mut theirs) = UnixStream::pair().expect("the system has sockets");
    ring.watch(ours.as_fd()).expect("the ring has room");
    for _ in 0..3 {
        ring.submit_and_wait(Some(Duration::from_millis(5))).expect("the ring works");
        assert!(ring.next_event().is_none());
        theirs.write_all(b"!").expect("it is open");
        ring.submit_and_wait(Some(SECOND)).expect("the ring works");
        assert!(matches!(ring.next_event(), Some(Event::Watched)));
        while ring.next_event().is_some() {}
        ours.read_exact(&mut [0]).expect("it is open");
    }
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let Some(mut ring) = ring(0, 1, 64) else { return };
    for wait in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(3)] {
        let start = Instant::now();
        ring.submit_and_wait(Some(wait)).expect("the ring works");
        assert!(start.elapsed() >= wait && start.elapsed() < wait + SECOND);
    }
}

#[test]
fn another_thread_is_refused_and_what_arrived_is_not_lost() {
    let Some(mut ring) = ring(1, 8, 64) else { return };
    let (mut ours, mut theirs) = connect(&mut ring, 0);
    theirs.write_all(b"one").expect("it is open");
    ring.submit().expect("the ring works");
    theirs.write_all(b"two").expect("it is open");
    let thread = std::thread::spawn(move || {
        ring.submit().expect_err("the ring belongs to another thread");
        let mut received = vec![Vec::new()];
        assert_eq!(take(&mut ring, &mut received), []);
        assert_eq!(received[0], b"one");
        ring.detach(0);
        drop(ring);
        // Nothing receives any more, so the rest is in the socket.
        let mut rest = [0; 3];
        ours.set_nonblocking(false).expect("the system has it");
        ours.read_exact(&mut rest).expect("it is open");
        assert_eq!(&rest, b"two");
    });
    thread.join().expect("the thread is content");
}

/// A submit takes what arrived out of the kernel's queue, so the kernel has nothing to report.
#[test]
fn what_a_submit_took_ends_the_next_wait() {
    let Some(mut ring) = ring(1, 8, 64) else { return };
    let (_ours, mut theirs) = connect(&mut ring, 0);
    theirs.write_all(b"early").expect("it is open");
    ring.submit().expect("the ring works");
    let start = Instant::now();
    ring.submit_and_wait(Some(20 * SECOND)).expect("the ring works");
    assert!(start.elapsed() < 10 * SECOND, "the wait did not see what was taken");
    let mut received = vec![Vec::new()];
    assert_eq!(take(&mut ring, &mut received), []);
    assert_eq!(received[0], b"early");
}

/// One side sends without end, and the other one little: as a hostile node beside a healthy one.
#[test]
fn a_connection_that_sends_without_end_leaves_buffers_to_the_others() {
    let Some(mut ring) = ring(2, 8, 64) else { return };
    let (_flooded, mut flood) = connect(&mut ring, 0);
    let (_quiet, mut quiet) = connect(&mut ring, 1);
    flood.set_nonblocking(true).expect("the system has it");
    let mut received = vec![Vec::new(); 2];
    ring.submit().expect("the ring works");
    for turn in 0..10 {
        // The socket is full again before each turn.
        while flood.write(&[7; 4096]).is_ok() {}
        quiet.write_all(&[turn]).expect("it is open");
        for _ in 0..4 {
            ring.submit().expect("the ring works");
            assert_eq!(take(&mut ring, &mut received), []);
        }
        assert_eq!(received[1].len(), usize::from(turn) + 1, "turn {turn}");
    }
    assert!(received[0].len() >= 10 * 8 * 64, "{}", received[0].len());
}
