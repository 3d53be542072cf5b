//! Where journals and events live.
