//! Placeholder of the module paused.
