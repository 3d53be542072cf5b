//! What an adapter must keep, as tests that every adapter calls.
