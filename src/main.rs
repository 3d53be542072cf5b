//! The `callboard` command. An application of the library like any other: it brings the runtime, the subscriber, the allocator.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    callboard::cli::main()
}
