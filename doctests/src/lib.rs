//! Empty: this package is its test, `tests/run.rs`.

#![forbid(unsafe_code)]
