//! The `callboard` binary.
fn main() {}
