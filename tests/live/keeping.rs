//! Placeholder of the module keeping.
