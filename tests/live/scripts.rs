//! Placeholder of the module tokens.
