//! The ports of the servers that a test starts.
//!
//! A process that runs tests takes its ports out of blocks, and no other such process uses these
//! before it has ended. The hazard is a port whose server was killed: a Sentinel, a replica or a
//! tool of that test still knows it, and would change the server that another test starts there.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};

/// The first port, below the range from which the kernel draws the ports of outgoing connections:
/// in that range a client that reconnects to a killed server can end up connected to itself.
const FIRST: u16 = 21_000;

/// How many ports a block has. A process of tests uses a few of the blocks.
const BLOCK: u16 = 250;

const BLOCKS: u16 = 44;

/// The ports of this process.
static PORTS: Mutex<Ports> = Mutex::new(Ports { blocks: Vec::new(), used: 0 });

#[derive(Debug)]
struct Ports {
    blocks: Vec<Block>,
    /// How many ports of the last block were given out.
    used: u16,
}

/// A block that no other process uses, which is so while the socket has its name. The kernel frees
/// the name when the process ends.
#[derive(Debug)]
struct Block {
    number: u16,
    _name: UnixDatagram,
}

/// A port on which no process listens at this moment, and which no other process of these tests
/// uses before this one ends.
pub fn free_port() -> u16 {
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let port = ports.next();
        if is_free(port) {
            return port;
        }
    }
}

/// Whether a server could listen on this port. Connections that an earlier server left do not
/// matter, because this test and a server both bind with SO_REUSEADDR.
pub(super) fn is_free(port: u16) -> bool {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok()
}

/// Whether any process of these tests, this one included, has the block of this port.
pub fn is_reserved(port: u16) -> bool {
    Block::named((port - FIRST) / BLOCK).is_none()
}

impl Ports {
    fn next(&mut self) -> u16 {
        if self.blocks.is_empty() || self.used == BLOCK {
            match Block::reserve() {
                Some(block) => self.blocks.push(block),
                // No process should still know the servers of the first block.
                None => self.blocks.rotate_left(1),
            }
            self.used = 0;
        }
        let block = self.blocks.last().map(|block| block.number);
        let block = block.unwrap_or_else(|| panic!("other processes have all blocks of ports"));
        let port = FIRST + block * BLOCK + self.used;
        self.used += 1;
        port
    }
}

impl Block {
    /// One that no process has, beginning anywhere: the ports of a process that has just ended are
    /// not the first ones of the next.
    fn reserve() -> Option<Block> {
        let somewhere = RandomState::new().hash_one(0) % u64::from(BLOCKS);
        let somewhere = u16::try_from(somewhere).expect("a remainder of BLOCKS fits");
        (0..BLOCKS).map(|it| (somewhere + it) % BLOCKS).find_map(Block::named)
    }

    /// `None` if a process has it.
    fn named(number: u16) -> Option<Block> {
        let name = format!("redlatch-test-ports-{number}");
        let name = UnixAddr::from_abstract_name(name).expect("a short name is allowed");
        let name = UnixDatagram::bind_addr(&name).ok()?;
        Some(Block { number, _name: name })
    }
}
