//! The ring: it receives from connections and sends to them, and one call submits and waits.
//!
//! Each connection has a place, and each place a generation. A completion that carries an older
//! generation belongs to a connection that is gone: its buffer goes back, and nothing is reported.

mod kernel;
mod memory;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};
use rustix::io::Errno;

use crate::Event;
use kernel::{Kernel, is_last};
use memory::Memory;

/// `MSG_DONTWAIT`: a send ends inside the call that submits it: in full, in part or not at all.
const DO_NOT_WAIT: i32 = 0x40;

/// `POLLIN`.
const READABLE: u32 = 1;

/// What an operation is: the lowest byte of its user data.
const RECEIVE: u8 = 1;
const SEND: u8 = 2;
const WATCH: u8 = 3;
const CANCEL: u8 = 4;

/// An io_uring ring with its connections. See the crate's documentation.
#[derive(Debug)]
pub struct Ring {
    places: Vec<Place>,
    watched: Option<OwnedFd>,
    /// An operation watches it.
    watching: bool,
    /// Descriptors of connections that are gone: entries that are not submitted yet may name them.
    closing: Vec<OwnedFd>,
    /// Bytes of connections that are gone: an operation may still read them.
    orphans: Vec<(u64, Vec<u8>)>,
    /// Places with bytes that no operation sends yet.
    to_send: Vec<usize>,
    /// Completions that were taken from the queue and are not reported yet.
    backlog: VecDeque<cqueue::Entry>,
    /// The buffer of the last event, and the place that it belongs to.
    lent: Option<(usize, u16)>,
    /// Operations whose last completion was not taken from the queue yet.
    in_flight: u64,
    /// Sends that were queued since the last call of the kernel.
    queued_sends: u32,
    /// The receive buffers of each place: a connection that sends without end takes none from the
    /// others. Empty after the drop alone.
    memory: Vec<Memory>,
    kernel: Kernel,
}

/// A place for a connection.
#[derive(Debug, Default)]
struct Place {
    generation: u32,
    /// The connection; `None`: the place is free.
    stream: Option<OwnedFd>,
    /// An operation receives.
    receiving: bool,
    /// What is to be sent. It does not move or change while an operation reads it.
    output: Vec<u8>,
    /// How much of it was sent.
    sent: usize,
    /// An operation reads `output`.
    sending: bool,
    /// The socket took less than everything: the ring tries again after `resume`.
    full: bool,
}

impl Ring {
    /// A ring on this thread for `places` connections. Each place has `count` receive buffers (a
    /// power of two) of `size` bytes.
    ///
    /// # Errors
    /// If the kernel refuses it: it is older than Linux 6.1, or io_uring is switched off.
    pub fn new(places: usize, count: u16, size: usize) -> io::Result<Ring> {
        let entries = (4 * places + 8).next_power_of_two() as u32;
        let completions = entries * 2 + places as u32 * u32::from(count);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(completions.next_power_of_two())
            .build(entries)?;
        let needed = ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop();
        if !needed {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let memory = (0..places).map(|_| Memory::new(count, size));
        let memory = memory.collect::<io::Result<Vec<Memory>>>()?;
        for (place, memory) in memory.iter().enumerate() {
            // SAFETY: the list begins at a page, has room for `count` entries, and lives as long as
            // the ring: the drop frees it only after every operation has ended.
            unsafe {
                let (list, count) = (memory.list(), memory.count());
                ring.submitter().register_buf_ring_with_flags(list, count, group(place), 0)?;
            }
        }
        Ok(Ring {
            places: (0..places).map(|_| Place::default()).collect(),
            watched: None,
            watching: false,
            closing: Vec::new(),
            orphans: Vec::new(),
            to_send: Vec::with_capacity(places),
            backlog: VecDeque::new(),
            lent: None,
            in_flight: 0,
            queued_sends: 0,
            memory,
            kernel: Kernel::new(ring)?,
        })
    }

    /// Whether this is the copy in a forked process. No system call.
    pub fn is_a_copy(&self) -> bool {
        self.kernel.is_a_copy()
    }

    /// Reports [`Event::Watched`] whenever this descriptor becomes readable.
    ///
    /// # Errors
    /// If the system refuses a copy of the descriptor.
    pub fn watch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.watched = Some(descriptor.try_clone_to_owned()?);
        self.queue_watch()
    }

    /// Receives from this connected socket from now on, and can send to it.
    ///
    /// # Errors
    /// If the system refuses a copy of the descriptor, or the call that makes room in the queue.
    ///
    /// # Panics
    /// If there is a connection at this place.
    pub fn attach(&mut self, place: usize, stream: BorrowedFd<'_>) -> io::Result<()> {
        assert!(self.places[place].stream.is_none(), "place {place} has a connection");
        self.places[place].stream = Some(stream.try_clone_to_owned()?);
        self.receive(place).inspect_err(|_| self.detach(place))
    }

    /// Whether there is a connection at this place.
    pub fn is_attached(&self, place: usize) -> bool {
        self.places[place].stream.is_some()
    }

    /// Forgets the connection at this place: nothing of it is reported any more, and what was not
    /// sent is not sent. May be called on any thread.
    ///
    /// An operation in flight keeps the socket open. So disconnect or shut it down first.
    pub fn detach(&mut self, place: usize) {
        let here = self.kernel.is_here();
        let it = &mut self.places[place];
        let Some(stream) = it.stream.take() else { return };
        self.closing.push(stream);
        let receive = user_data(RECEIVE, place, it.generation);
        let send = user_data(SEND, place, it.generation);
        it.generation = it.generation.wrapping_add(1);
        let receiving = std::mem::take(&mut it.receiving);
        (it.sent, it.full) = (0, false);
        if std::mem::take(&mut it.sending) {
            self.orphans.push((send, std::mem::take(&mut it.output)));
        } else {
            it.output.clear();
        }
        self.to_send.retain(|&other| other != place);
        if receiving && here {
            let cancel = opcode::AsyncCancel::new(receive).build();
            // The socket ends by itself, too: a cancellation that finds no room is not needed.
            let _ = self.push(cancel.user_data(user_data(CANCEL, place, 0)));
        }
    }

    /// Takes bytes, which are sent with the next call that submits. Returns `false`, and takes
    /// nothing, while earlier bytes are not sent yet, or if there is no connection.
    pub fn send(&mut self, place: usize, bytes: &[u8]) -> bool {
        let it = &mut self.places[place];
        if it.stream.is_none() || it.sending || it.full {
            return false;
        }
        if it.output.is_empty() {
            self.to_send.push(place);
        }
        it.output.extend_from_slice(bytes);
        true
    }

    /// Whether bytes were taken that the kernel does not have yet.
    pub fn has_unsent(&self, place: usize) -> bool {
        !self.places[place].output.is_empty()
    }

    /// The socket may take more: what it did not take is sent with the next call that submits.
    pub fn resume(&mut self, place: usize) {
        let it = &mut self.places[place];
        if std::mem::take(&mut it.full) {
            self.to_send.push(place);
        }
    }

    /// Whether operations are queued that were not submitted.
    pub fn has_queued(&mut self) -> bool {
        let rewatch = self.watched.is_some() && !self.watching;
        rewatch || !self.to_send.is_empty() || self.queued() > 0
    }

    /// Submits what is queued, and lets operations complete, without waiting.
    ///
    /// # Errors
    /// If the kernel refuses the call, for instance on another thread.
    pub fn submit(&mut self) -> io::Result<()> {
        self.give_back();
        self.queue_rest()?;
        let queued = self.queued();
        self.kernel.enter(queued, 0, None)?;
        self.submitted();
        self.sort();
        Ok(())
    }

    /// Submits what is queued, and waits until there is something to report, or the time is over.
    /// A signal ends the wait. One system call.
    ///
    /// # Errors
    /// If the kernel refuses the call, for instance on another thread.
    pub fn submit_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.give_back();
        self.queue_rest()?;
        let queued = self.queued();
        // Each send completes inside this call, and is no reason to return.
        let want = if self.backlog.is_empty() { 1 + self.queued_sends } else { 0 };
        self.kernel.enter(queued, want, timeout)?;
        self.submitted();
        Ok(())
    }

    /// The next event. May be called on any thread.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        self.give_back();
        loop {
            let done = match self.backlog.pop_front() {
                Some(done) => done,
                None => self.take_completion()?,
            };
            let (kind, place, generation) = parts(done.user_data());
            let buffer = cqueue::buffer_select(done.flags());
            // The event after this one gives the buffer back.
            self.lent = buffer.map(|buffer| (place, buffer));
            match kind {
                RECEIVE if self.places[place].generation == generation => {
                    match self.received(place, &done) {
                        Ok(0) => self.give_back(),
                        Ok(length) => {
                            let buffer = buffer.expect("bytes arrive in a provided buffer");
                            let bytes = self.memory[place].filled(buffer, length);
                            return Some(Event::Received { place, bytes });
                        }
                        Err(error) => return Some(Event::Ended { place, error }),
                    }
                }
                SEND => {
                    if let Some(error) = self.was_sent(&done, place, generation) {
                        return Some(Event::Ended { place, error });
                    }
                }
                WATCH => {
                    // The next call that submits watches again.
                    self.watching &= !is_last(&done);
                    return Some(Event::Watched);
                }
                _ => self.give_back(),
            }
        }
    }

    /// What the end of a receive means: the count of bytes, zero if there is nothing to report.
    fn received(&mut self, place: usize, done: &cqueue::Entry) -> io::Result<usize> {
        if is_last(done) {
            self.places[place].receiving = false;
        }
        let ended = match u32::try_from(done.result()) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the other side")),
            Ok(count) => Ok(count as usize),
            Err(_) => match Errno::from_raw_os_error(-done.result()) {
                // All buffers were in use; they are back when this is submitted.
                Errno::NOBUFS | Errno::AGAIN | Errno::INTR => Ok(0),
                error => Err(error.into()),
            },
        };
        if ended.is_ok() && !self.places[place].receiving {
            self.receive(place)?;
        }
        ended
    }

    /// Takes note of the end of a send. Returns an error if the connection failed.
    fn was_sent(
        &mut self,
        done: &cqueue::Entry,
        place: usize,
        generation: u32,
    ) -> Option<io::Error> {
        let it = &mut self.places[place];
        if it.generation != generation {
            self.orphans.retain(|(send, _)| *send != done.user_data());
            return None;
        }
        it.sending = false;
        match u32::try_from(done.result()) {
            Ok(count) => it.sent += count as usize,
            Err(_) => match Errno::from_raw_os_error(-done.result()) {
                Errno::AGAIN | Errno::INTR => {}
                error => return Some(error.into()),
            },
        }
        if it.sent >= it.output.len() {
            it.output.clear();
            it.sent = 0;
        } else {
            it.full = true;
        }
        None
    }

    /// Takes the completions of sends out of the queue, and keeps the others for `next_event`.
    fn sort(&mut self) {
        while let Some(done) = self.take_completion() {
            let (kind, place, generation) = parts(done.user_data());
            if kind != SEND || self.was_sent(&done, place, generation).is_some() {
                // An error is reported by `next_event`.
                self.backlog.push_back(done);
            }
        }
    }

    fn take_completion(&mut self) -> Option<cqueue::Entry> {
        let done = self.kernel.ring.completion().next()?;
        self.in_flight -= u64::from(is_last(&done));
        Some(done)
    }

    /// Gives the buffer of the last event back to the kernel.
    fn give_back(&mut self) {
        if let Some((place, buffer)) = self.lent.take() {
            self.memory[place].provide(buffer);
        }
    }

    /// Queues a receive that goes on until it fails, or until there is no buffer.
    fn receive(&mut self, place: usize) -> io::Result<()> {
        let it = &mut self.places[place];
        let Some(stream) = &it.stream else { return Ok(()) };
        it.receiving = true;
        let receive = opcode::RecvMulti::new(Fd(stream.as_raw_fd()), group(place)).build();
        let receive = receive.user_data(user_data(RECEIVE, place, it.generation));
        self.push(receive)
    }

    /// Queues the operations that were put off, among them a send for each place that has bytes.
    fn queue_rest(&mut self) -> io::Result<()> {
        self.queue_watch()?;
        while let Some(place) = self.to_send.pop() {
            let it = &self.places[place];
            let Some(stream) = &it.stream else { continue };
            let rest = &it.output[it.sent..];
            let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
            let send = opcode::Send::new(Fd(stream.as_raw_fd()), rest.as_ptr(), length)
                .flags(DO_NOT_WAIT)
                .build()
                .user_data(user_data(SEND, place, it.generation));
            // From here on `output` neither moves nor changes, until the completion.
            self.push(send)?;
            self.places[place].sending = true;
            self.queued_sends += 1;
        }
        Ok(())
    }

    /// Queues an operation that reports whenever the watched descriptor becomes readable.
    fn queue_watch(&mut self) -> io::Result<()> {
        let Some(watched) = self.watched.as_ref().filter(|_| !self.watching) else { return Ok(()) };
        let poll = opcode::PollAdd::new(Fd(watched.as_raw_fd()), READABLE).multi(true).build();
        self.push(poll.user_data(user_data(WATCH, 0, 0)))?;
        self.watching = true;
        Ok(())
    }

    /// Queues an operation. If the queue is full, its entries are submitted first.
    ///
    /// Only for operations of this file: they use provided buffers, `output` of a place, or no
    /// memory, and a descriptor that this ring owns.
    fn push(&mut self, entry: Entry) -> io::Result<()> {
        let entry = entry.flags(Flags::empty());
        for _ in 0..2 {
            // SAFETY: what the entry points to stays in place until the operation has ended.
            // Provided buffers belong to `memory`. The bytes of a send are in `output`, which
            // neither moves nor changes while `sending` is set; after `detach` they are in
            // `orphans`. The drop frees neither before the end of every operation. Descriptors
            // are closed only after a call that has submitted everything.
            if unsafe { self.kernel.ring.submission().push(&entry) }.is_ok() {
                self.in_flight += 1;
                return Ok(());
            }
            let queued = self.queued();
            self.kernel.enter(queued, 0, None)?;
        }
        Err(io::Error::other("the submission queue stays full"))
    }

    /// How many operations are queued.
    fn queued(&mut self) -> u32 {
        self.kernel.ring.submission().len() as u32
    }

    /// A call of the kernel has succeeded.
    fn submitted(&mut self) {
        if self.queued() == 0 {
            self.queued_sends = 0;
            self.closing.clear();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.kernel.is_a_copy() {
            // The queue is the parent's: even to count its entries writes to it.
            return;
        }
        // What is only queued is never submitted any more.
        let in_flight = self.in_flight.saturating_sub(u64::from(self.queued()));
        if self.kernel.is_here() && self.kernel.end_all(in_flight) {
            return;
        }
        self.memory.iter_mut().for_each(Memory::give_up);
        let outputs = self.places.iter_mut().map(|place| std::mem::take(&mut place.output));
        std::mem::forget(outputs.collect::<Vec<_>>());
        std::mem::forget(std::mem::take(&mut self.orphans));
    }
}

/// The number of a place's list of buffers.
fn group(place: usize) -> u16 {
    u16::try_from(place).expect("a ring has far fewer places")
}

fn user_data(kind: u8, place: usize, generation: u32) -> u64 {
    u64::from(kind) | (place as u64) << 8 | u64::from(generation) << 32
}

fn parts(user_data: u64) -> (u8, usize, u32) {
    (user_data as u8, (user_data >> 8 & 0xff_ffff) as usize, (user_data >> 32) as u32)
}
