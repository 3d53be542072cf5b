//! The walls of a tenant, under races and changes.
