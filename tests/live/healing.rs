//! Placeholder of the module healing.
