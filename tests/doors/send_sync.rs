//! Which types may go to another thread, and which may be looked at from several: the compiler
//! checks it. This file does not build if one of these changes.

use redlatch::{Batch, Client, Completion, Config, Engine, Error, FdEngine, Guard, Lock, Op};

/// Builds if the type is one of these.
macro_rules! is {
    ($type:ty: $($bound:path),+) => {
        const _: () = {
            const fn holds<T: $($bound +)+ ?Sized>() {}
            holds::<$type>()
        };
    };
}

/// Builds if the type is not one of these: if it were, two impls would answer to one name.
macro_rules! is_not {
    ($type:ty: $bound:path) => {
        const _: fn() = || {
            trait Either<A> {
                fn answer() {}
            }
            struct It;
            impl<T: ?Sized> Either<()> for T {}
            impl<T: $bound + ?Sized> Either<It> for T {}
            let _ = <$type as Either<_>>::answer;
        };
    };
}

// A client may move to another thread, and cannot be shared.
is!(Client: Send);
is_not!(Client: Sync);
is_not!(Client: Clone);
// A guard stays on the thread of its client.
is_not!(Guard<'static>: Send);
is_not!(Guard<'static>: Sync);
is_not!(Guard<'static>: Clone);
// Requests take `&mut`. Looks take `&`, on any thread.
is!(Engine: Send, Sync);
is!(FdEngine: Send, Sync);
is!(Batch<'static>: Send);
is_not!(Engine: Clone);
is_not!(FdEngine: Clone);
// The values that go between threads.
is!(Config: Send, Sync, Clone);
is!(Completion: Send, Sync);
is!(Error: Send, Sync, Clone, std::error::Error);
is!(Op: Send, Sync, Copy);
is!(Lock: Send, Sync);
// A lock has one handle.
is_not!(Lock: Clone);
