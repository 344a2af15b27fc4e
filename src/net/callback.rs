//! A function of the caller in a configuration. Copies of the configuration share the function.

use std::fmt;
use std::sync::Arc;

/// A function of the caller, which `Debug` does not show.
pub(crate) struct Callback<F: ?Sized>(pub(crate) Arc<F>);

impl<F: ?Sized> Clone for Callback<F> {
    fn clone(&self) -> Callback<F> {
        Callback(Arc::clone(&self.0))
    }
}

impl<F: ?Sized> fmt::Debug for Callback<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function")
    }
}
