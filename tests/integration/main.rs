//! Integration tests, a module for each part, in one binary: linking twenty would take minutes.
//! Needs the default features.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]
#![cfg(feature = "load")]

mod support;

mod attachments;
mod book;
mod cassettes;
mod cli;
mod clients;
mod config;
mod contracts;
mod costs;
mod evals;
mod file_paths;
mod file_races;
mod hosted;
mod http;
mod kills;
mod library;
mod mcp;
mod mock_model;
mod observe;
mod offline;
mod packaging;
mod postgres;
mod promises;
mod provider_network;
mod provider_queue;
mod providers;
mod readme;
mod real_model;
mod request_size;
mod sandbox;
mod secrets;
mod settings;
mod skills;
mod storage;
mod tools;
mod trust;
mod web;
