//! The `callboard` command. It uses the library as any other application does, and adds what a
//! library must not choose: the async runtime, the log subscriber and the allocator.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    // Must be first: the sandbox starts this program again inside a command's jail, and this call
    // then does not return.
    callboard::sandbox::jail_main_if_asked();
    close_to_other_processes();
    callboard::cli::main()
}

/// Marks this process as not dumpable, because its environment and memory hold provider keys.
/// Debuggers, `/proc/PID/environ`, `mem` and `fd` are then closed to every other process of the
/// same user (MCP servers included), and a crash writes no core file. A child that executes another
/// program becomes dumpable again.
fn close_to_other_processes() {
    #[cfg(target_os = "linux")]
    if let Err(error) =
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
    {
        eprintln!("warning: other processes of this user can read this one's memory: {error}");
    }
}
