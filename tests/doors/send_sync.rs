//! Which types may be sent to another thread (`Send`), and which may be shared by threads (`Sync`).
//! The compiler checks it: this file does not build if one of them changes.

use redlatch::{Batch, Client, Completion, Config, Engine, Error, FdEngine, Guard, Lock, Op};

/// Builds only if the type has these traits.
macro_rules! is {
    ($type:ty: $($bound:path),+) => {
        const _: () = {
            const fn holds<T: $($bound +)+ ?Sized>() {}
            holds::<$type>()
        };
    };
}

/// Builds only if the type lacks this trait. If the type has it, both impls match, and the compiler
/// cannot infer the `_` in `AmbiguousIf<_>`.
macro_rules! is_not {
    ($type:ty: $bound:path) => {
        const _: fn() = || {
            trait AmbiguousIf<A> {
                fn answer() {}
            }
            struct HasBound;
            impl<T: ?Sized> AmbiguousIf<()> for T {}
            impl<T: $bound + ?Sized> AmbiguousIf<HasBound> for T {}
            let _ = <$type as AmbiguousIf<_>>::answer;
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
// Requests take `&mut self`. Methods that only read take `&self`, on any thread.
is!(Engine: Send, Sync);
is!(FdEngine: Send, Sync);
is!(Batch<'static>: Send);
is_not!(Engine: Clone);
is_not!(FdEngine: Clone);
// Values that callers pass between threads.
is!(Config: Send, Sync, Clone);
is!(Completion: Send, Sync);
is!(Error: Send, Sync, Clone, std::error::Error);
is!(Op: Send, Sync, Copy);
is!(Lock: Send, Sync);
// A lock cannot be cloned, so it has one owner.
is_not!(Lock: Clone);
