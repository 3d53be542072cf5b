//! The filter of the PDF reader, an allow-list: every call that it does not name is refused.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::{Rules, arch, failed};

/// Calls that a parser needs: reading and writing open files, memory, time and exit.
const OF_A_PARSER: &[i64] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Applies the filter to this process. Afterwards the process can use its open files and its
/// memory, and nothing else.
pub(in crate::sandbox) fn install_for_parser() -> Result<(), String> {
    let rules: Rules = OF_A_PARSER.iter().map(|call| (*call, Vec::new())).collect();
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let program = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch()?)
        .and_then(BpfProgram::try_from)
        .map_err(failed)?;
    seccompiler::apply_filter(&program).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_can_open_reach_and_start_nothing() {
        use std::{fs::File, net::TcpStream, process::Command};
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();

        // A filter applies to the thread that installs it.
        let tried = std::thread::spawn(move || {
            install_for_parser().unwrap();
            let refused =
                |result: std::io::Result<()>| result.map_err(|error| error.raw_os_error());
            [
                refused(File::open("/etc/hostname").map(drop)),
                refused(File::create("/tmp/callboard-never").map(drop)),
                refused(std::fs::metadata("/etc").map(drop)),
                refused(TcpStream::connect(address).map(drop)),
                refused(Command::new("/bin/true").spawn().map(drop)),
                refused(std::thread::Builder::new().spawn(|| ()).map(drop)),
                refused(std::os::unix::net::UnixStream::pair().map(drop)),
            ]
        });

        assert_eq!(tried.join().unwrap(), [Err(Some(libc::EPERM)); 7]);
    }
}
