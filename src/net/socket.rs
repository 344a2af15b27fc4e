//! Reads from a socket once and reports whether more may be there, and writes as much as the socket
//! takes. Generic over `Read` and `Write`, so that tests can use a scripted stream.

use std::io::{self, Read, Write};

/// Whether a socket has more to read, after a read.
#[derive(Debug)]
pub enum Readiness {
    /// Nothing is left to read. The poller reports when more arrives.
    Drained,
    /// More may be left to read, which the poller does not report: read again.
    More,
    /// The other side closed, or the connection failed.
    Closed(io::Error),
}

/// Reads once into `buffer`, and returns how many bytes were read, and whether more may be left. A
/// read that does not fill the buffer means `Drained`. But if `read_closed` says that the other
/// side has closed, it means `More`, because the end has to be read, too.
pub fn read(stream: &mut impl Read, buffer: &mut [u8], read_closed: bool) -> (usize, Readiness) {
    loop {
        match stream.read(buffer) {
            Ok(0) => {
                let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the node");
                return (0, Readiness::Closed(closed));
            }
            Ok(count) if count == buffer.len() || read_closed => return (count, Readiness::More),
            Ok(count) => return (count, Readiness::Drained),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return (0, Readiness::Drained);
            }
            Err(error) => return (0, Readiness::Closed(error)),
        }
    }
}

/// Writes `bytes`, and returns how many the socket took. If it took fewer than all, the socket is
/// full, and the poller reports when it takes more.
///
/// # Errors
/// If the connection failed.
pub fn write(stream: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// The system's error text, without the number that it ends with.
pub fn error_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Returns the scripted results, one for each call.
    struct Script(VecDeque<Result<usize, io::ErrorKind>>);

    impl Script {
        fn step(&mut self, most: usize) -> io::Result<usize> {
            match self.0.pop_front().expect("more calls than steps") {
                Ok(count) => Ok(count.min(most)),
                Err(kind) => Err(kind.into()),
            }
        }
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.step(buffer.len())
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.step(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn script<const N: usize>(steps: [Result<usize, io::ErrorKind>; N]) -> Script {
        Script(steps.into_iter().collect())
    }

    #[test]
    fn short_read_means_that_the_socket_is_drained() {
        let mut buffer = [0; 8];
        let read = |step| read(&mut script([step]), &mut buffer.clone(), false);
        assert!(matches!(read(Ok(7)), (7, Readiness::Drained)));
        assert!(matches!(read(Ok(8)), (8, Readiness::More)));
        assert!(matches!(read(Ok(0)), (0, Readiness::Closed(_))));
        assert!(matches!(read(Err(io::ErrorKind::WouldBlock)), (0, Readiness::Drained)));
        assert!(matches!(read(Err(io::ErrorKind::ConnectionReset)), (0, Readiness::Closed(_))));
        let mut interrupted = script([Err(io::ErrorKind::Interrupted), Ok(3)]);
        assert!(matches!(super::read(&mut interrupted, &mut buffer, false), (3, _)));
        let mut closing = script([Ok(3)]);
        assert!(matches!(super::read(&mut closing, &mut buffer, true), (3, Readiness::More)));
    }

    #[test]
    fn a_write_goes_on_until_the_socket_is_full() {
        let bytes = [0; 10];
        let full = Err(io::ErrorKind::WouldBlock);
        assert_eq!(write(&mut script([Ok(10)]), &bytes).unwrap(), 10);
        assert_eq!(write(&mut script([Ok(4), Ok(6)]), &bytes).unwrap(), 10);
        assert_eq!(write(&mut script([Ok(4), full]), &bytes).unwrap(), 4);
        assert_eq!(write(&mut script([full]), &bytes).unwrap(), 0);
        let interrupted = [Err(io::ErrorKind::Interrupted), Ok(10)];
        assert_eq!(write(&mut script(interrupted), &bytes).unwrap(), 10);
        assert!(write(&mut script([Ok(4), Err(io::ErrorKind::BrokenPipe)]), &bytes).is_err());
        assert!(write(&mut script([Ok(0)]), &bytes).is_err());
    }
}
