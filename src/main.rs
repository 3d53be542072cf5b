//! The `callboard` command. An application of the library like any other: it brings the runtime, the subscriber, the allocator.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    // First of all: this program may have been started to become the jail of a command.
    callboard::sandbox::jail_main_if_asked();
    callboard::cli::main()
}
