//! The `callboard` command. An application of the library like any other: it brings the runtime, the subscriber, the allocator.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    // First of all: this program may have been started to become the jail of a command.
    callboard::sandbox::jail_main_if_asked();
    close_to_other_processes();
    callboard::cli::main()
}

/// Keys of providers stand in this process's environment and memory. Closed to debuggers, its `/proc/PID/environ`, `mem` and `fd` are
/// closed to every other process of the same user, MCP servers among them, and a crash writes no core file. Children that become
/// another program are open again.
fn close_to_other_processes() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        eprintln!("warning: other processes of this user can read this one's memory: {error}");
    }
}
