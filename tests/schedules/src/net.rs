//! What `src/shared` needs of `net`. The files that have a path are those of the library.

pub mod clock;
#[path = "../../../src/net/connecting.rs"]
pub mod connecting;
pub mod engine;
pub mod names;
#[path = "../../../src/net/observe/mod.rs"]
pub mod observe;
pub mod reactor;
pub mod sync;
pub mod world;
