//! Where commands run and paths end.
