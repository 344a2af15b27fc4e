//! Placeholder of the module handing.
