//! In-memory stores: plain data structures behind the storage ports. For tests, benches and hosts that need no disk.
