/* Tries what a command in a sandbox should not be able to do. Each attempt runs in a child process and prints a line:
 *
 *     name: ok            it succeeded
 *     name: refused E     it failed with errno E, or signal E ended it
 *
 * An attempt that succeeds does no harm: it sets a value to its current value, passes arguments that
 * the kernel refuses after its permission check, or works on files that the test created for it.
 *
 * Arguments: a folder outside the workspace with files that the test prepared, the host's process id,
 * a TCP port and a UDP port on which the host listens, and the name of its abstract socket. The probe
 * runs in the workspace's folder "w". With two arguments: see `single`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static int begin(const char *name) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(3);
        errno = 0;
        return 1;
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) printf("%s: not tried\n", name);
    else if (WIFSIGNALED(status)) printf("%s: refused signal %d\n", name, WTERMSIG(status));
    else if (WEXITSTATUS(status) == 0) printf("%s: ok\n", name);
    else printf("%s: refused %d\n", name, WEXITSTATUS(status));
    return 0;
}

static void end(long result, int reached) {
    int why = errno;
    if (result >= 0) _exit(0);
    /* Any other error concerns the arguments, so the permission check was passed. */
    if (reached && why != EPERM && why != ENOSYS && why != EACCES) _exit(0);
    _exit(why ? why : 255);
}

/* An attempt that succeeds if its value is not negative. */
#define TRY(name, ...) do { if (begin(name)) end((long)({ __VA_ARGS__; }), 0); } while (0)
/* An attempt with invalid arguments, which succeeds if the kernel gets as far as checking them. */
#define REACH(name, ...) do { if (begin(name)) end((long)({ __VA_ARGS__; }), 1); } while (0)

static char text[8][4096];
static const char *in(const char *folder, const char *name) {
    static int next;
    char *out = text[next++ % 8];
    snprintf(out, 4096, "%s/%s", folder, name);
    return out;
}
static const char *of(int pid, const char *file) {
    char number[64];
    snprintf(number, sizeof number, "/proc/%d", pid);
    return in(number, file);
}

/* Whether the file has content; a masked file is empty. */
static long reads(const char *path) {
    char byte;
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    if (fd < 0) return -1;
    ssize_t got = read(fd, &byte, 1);
    if (got > 0) return 0;
    if (got == 0) errno = ENODATA;
    return -1;
}
static long opens(const char *path, int flags) { return open(path, flags | O_NONBLOCK | O_NOCTTY, 0600); }
static long lists(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) return -1;
    int names = 0;
    for (struct dirent *entry; (entry = readdir(dir));) names += entry->d_name[0] != '.';
    errno = ENODATA;
    return names > 0 ? 0 : -1;
}
static long writes(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0) return -1;
    long wrote = write(fd, "x", 1);
    close(fd);
    return wrote;
}

/* Creates a file and removes it. */
static long makes(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd >= 0) unlink(path);
    return fd;
}
static long makes_folder(const char *path) {
    long made = mkdir(path, 0700);
    if (made == 0) rmdir(path);
    return made;
}
static mode_t mode_of(const char *path) {
    struct stat s = {0};
    stat(path, &s);
    return s.st_mode & 07777;
}

static long unix_connect(int kind, const char *path, int abstract) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, kind, 0);
    if (fd < 0) return -1;
    strncpy(address.sun_path + abstract, path, sizeof address.sun_path - 2);
    return connect(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + abstract + strlen(path) + !abstract);
}
static long inet(int kind, const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    int fd = socket(AF_INET, kind, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0) return -1;
    if (kind == SOCK_STREAM) return 0;
    /* The error that the first datagram causes is reported to the second one. */
    if (send(fd, "x", 1, 0) < 0) return -1;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    poll(&one, 1, 100);
    return send(fd, "x", 1, 0);
}
static long pair(int family, int kind) {
    int fds[2];
    return socketpair(family, kind, 0, fds);
}
static long clone_with(unsigned long flags) {
    long child = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    return child;
}
static long clone3_with(unsigned long long flags) {
    struct { unsigned long long flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls; } args = {.flags = flags, .exit_signal = SIGCHLD};
    long child = syscall(SYS_clone3, &args, sizeof args);
    if (child == 0) _exit(0);
    return child;
}
static long pidfd_of(int pid) { return syscall(SYS_pidfd_open, pid, 0); }
static long enter(const char *path, int flags) {
    int fd = open(path, O_RDONLY);
    return fd < 0 ? -1 : setns(fd, flags);
}
static long control(unsigned long request) {
    char byte = ' ';
    return syscall(SYS_ioctl, 0, request, &byte);
}
static long file_flags(const char *path) {
    long flags = 0;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || ioctl(fd, 0x80086601, &flags) < 0) return -1;
    return ioctl(fd, 0x40086602, &flags);
}
static long runs(const char *path, const char *argument) {
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0), dup2(null, 1), dup2(null, 2);
        execl(path, path, argument, (char *)0);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    errno = EACCES;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}
static long more_of(int resource) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) < 0) return -1;
    if (limit.rlim_max == RLIM_INFINITY) return 0;
    limit.rlim_max += 1;
    return setrlimit(resource, &limit);
}

static void files(const char *out) {
    TRY("file outside: read", reads(in(out, "file")));
    TRY("file outside: open to write", opens(in(out, "file"), O_WRONLY));
    TRY("file outside: append", opens(in(out, "file"), O_WRONLY | O_APPEND));
    TRY("file outside: open by path alone", opens(in(out, "file"), O_PATH));
    TRY("file outside: truncate", truncate(in(out, "file"), 0));
    TRY("file outside: stat", ({ struct stat s; stat(in(out, "file"), &s); }));
    TRY("file outside: access", access(in(out, "file"), R_OK));
    TRY("file outside: unlink", unlink(in(out, "spare")));
    TRY("file outside: rename", rename(in(out, "file"), in(out, "file2")));
    TRY("file outside: rename into the workspace", rename(in(out, "file"), "got"));
    TRY("file outside: exchange", syscall(SYS_renameat2, AT_FDCWD, in(out, "file"), AT_FDCWD, "own", 2));
    TRY("file outside: hard link", link(in(out, "file"), "hard"));
    TRY("file outside: hard link by descriptor", ({ int fd = open(in(out, "file"), O_PATH); fd < 0 ? -1 : linkat(fd, "", AT_FDCWD, "hard2", AT_EMPTY_PATH); }));
    TRY("file outside: read by a link", ({ symlink(in(out, "file"), "soft"); reads("soft"); }));
    TRY("file outside: read by the root of /proc/self", reads(in("/proc/self/root", in(out, "file"))));
    TRY("file outside: read by the root of the first process", reads(in("/proc/1/root", in(out, "file"))));
    TRY("file outside: chmod", chmod(in(out, "file"), 0640));
    TRY("file outside: fchmodat", fchmodat(AT_FDCWD, in(out, "file"), 0640, 0));
    TRY("file outside: fchmodat2", syscall(452, AT_FDCWD, in(out, "file"), 0640, 0));
    TRY("file outside: chown", chown(in(out, "file"), getuid(), getgid()));
    TRY("file outside: lchown", lchown(in(out, "file"), getuid(), getgid()));
    TRY("file outside: fchownat", fchownat(AT_FDCWD, in(out, "file"), getuid(), getgid(), 0));
    TRY("file outside: times", utimensat(AT_FDCWD, in(out, "file"), (struct timespec[2]){{1, 0}, {1, 0}}, 0));
    TRY("file outside: older times", utimes(in(out, "file"), (struct timeval[2]){{1, 0}, {1, 0}}));
    TRY("file outside: attribute", setxattr(in(out, "file"), "user.x", "y", 1, 0));
    TRY("file outside: attribute of a link", lsetxattr(in(out, "file"), "user.x", "y", 1, 0));
    TRY("file outside: remove an attribute", removexattr(in(out, "file"), "user.there"));
    TRY("file outside: flags", file_flags(in(out, "file")));
    TRY("file outside: execute", runs(in(out, "script"), "x"));
    TRY("file outside: handle", ({ struct { struct file_handle h; char room[128]; } h = {.h.handle_bytes = 128}; int m; name_to_handle_at(AT_FDCWD, in(out, "file"), &h.h, &m, 0); }));
    REACH("handle: open", ({ struct { struct file_handle h; char room[8]; } h = {.h.handle_bytes = 8, .h.handle_type = 1}; open_by_handle_at(AT_FDCWD, &h.h, O_RDONLY); }));
    TRY("folder outside: list", lists(out));
    TRY("folder outside: enter", chdir(out));
    TRY("folder outside: make a file", makes(in(out, "new")));
    TRY("folder outside: make a folder", makes_folder(in(out, "newdir")));
    TRY("folder outside: remove a folder", rmdir(in(out, "empty")));
    TRY("folder outside: make a link", symlink("x", in(out, "newlink")));
    TRY("folder outside: make a pipe", mkfifo(in(out, "newpipe"), 0600));
    TRY("folder outside: unnamed file", opens(out, O_TMPFILE | O_WRONLY));
    TRY("folder outside: watch", ({ int fd = inotify_init(); fd < 0 ? -1 : inotify_add_watch(fd, out, IN_ALL_EVENTS); }));
    TRY("folder above the workspace: list", lists("../.."));
    TRY("another tenant's file: read", reads(in(out, "tenant/file")));
    TRY("another tenant's folder: list", lists(in(out, "tenant")));
    TRY("the user's key: read", reads(in(out, "home/.ssh/id_rsa")));
    TRY("the database: read", reads(in(out, "callboard.db")));
    TRY("the database: open to write", opens(in(out, "callboard.db"), O_RDWR));
    TRY("/etc/shadow: read", reads("/etc/shadow"));
    TRY("/etc/shadow: chmod", chmod("/etc/shadow", mode_of("/etc/shadow")));
    TRY("/etc/passwd: open to write", opens("/etc/passwd", O_WRONLY));
    TRY("/etc: make a file", makes("/etc/callboard-probe"));
    TRY("/usr/bin: make a file", makes("/usr/bin/callboard-probe"));
    TRY("/usr/bin/env: open to write", opens("/usr/bin/env", O_WRONLY));
    TRY("/usr/bin/env: chmod", chmod("/usr/bin/env", mode_of("/usr/bin/env")));
    TRY("/usr/bin/env: chmod by descriptor", ({ int fd = open("/usr/bin/env", O_RDONLY); fd < 0 ? -1 : fchmod(fd, mode_of("/usr/bin/env")); }));
    TRY("/usr/bin/env: chown by descriptor", ({ int fd = open("/usr/bin/env", O_RDONLY); fd < 0 ? -1 : fchown(fd, 0, 0); }));
    TRY("/usr/bin/env: attribute by descriptor", ({ int fd = open("/usr/bin/env", O_RDONLY); fd < 0 ? -1 : fsetxattr(fd, "user.x", "y", 1, 0); }));
    TRY("/: make a file", makes("/callboard-probe"));
    TRY("/root: list", lists("/root"));
    TRY("/home: list", lists("/home"));
    TRY("/var/lib: list", lists("/var/lib"));
    TRY("/etc: list all", lists("/etc/ssh"));
    TRY("/boot: list", lists("/boot"));
}

static void workspace(void) {
    TRY("own file: write", writes("own"));
    TRY("own file: chmod", chmod("own", 0644));
    TRY("own file: chown to the superuser of the host", chown("own", 0, 0));
    TRY("own file: lease for writing", fcntl(opens("own", O_RDONLY), F_SETLEASE, F_WRLCK));
    TRY("own file: lease for reading", fcntl(opens("own", O_RDONLY), F_SETLEASE, F_RDLCK));
    TRY("own file: delegation", fcntl(opens("own", O_RDONLY), 1040, "\0\0\0\0\1\0\0\0"));
    TRY("protected: lease on .git/config", fcntl(opens("../.git/config", O_RDONLY), F_SETLEASE, F_WRLCK));
    TRY("system's file: lease", fcntl(opens("/etc/ld.so.cache", O_RDONLY), F_SETLEASE, F_WRLCK));
    TRY("own folder: notices", fcntl(opens(".", O_RDONLY), F_NOTIFY, DN_CREATE));
    TRY("own file: attribute", setxattr("own", "user.x", "y", 1, 0));
    TRY("own file: capability", setxattr("own", "security.capability", "\1\0\0\2\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20, 0));
    TRY("own device: characters", mknod("device", S_IFCHR | 0600, makedev(1, 3)));
    TRY("own device: blocks", mknod("blocks", S_IFBLK | 0600, makedev(7, 0)));
    TRY("own socket: by mknod", mknod("socket", S_IFSOCK | 0600, 0));
    TRY("protected: write .git/config", opens("../.git/config", O_WRONLY));
    TRY("protected: append to a hook", opens("../.git/hooks/there", O_WRONLY | O_APPEND));
    TRY("protected: new hook", opens("../.git/hooks/new", O_WRONLY | O_CREAT));
    TRY("protected: rename .git", rename("../.git", "../git"));
    TRY("protected: rename .git/config", rename("../.git/config", "config"));
    TRY("protected: rename over .git/config", rename("own2", "../.git/config"));
    TRY("protected: hard link to .git/config", ({ link("../.git/config", "config2") < 0 ? -1 : opens("config2", O_WRONLY); }));
    TRY("protected: write its other name", opens("../twin", O_WRONLY));
    TRY("protected: write callboard.toml", opens("../callboard.toml", O_WRONLY));
    TRY("protected: unlink callboard.toml", unlink("../callboard.toml"));
    TRY("protected: chmod .git/config", chmod("../.git/config", 0640));
    TRY("protected: times of .git/config", utimensat(AT_FDCWD, "../.git/config", (struct timespec[2]){{1, 0}, {1, 0}}, 0));
    TRY("hidden: read .env", reads("../.env"));
    TRY("hidden: rename .env", rename("../.env", "env"));
    TRY("hidden: hard link to .env", ({ link("../.env", "env2") < 0 ? -1 : reads("env2"); }));
    TRY("own program: open /proc/self/exe to write", opens("/proc/self/exe", O_WRONLY));
}

static void proc(int host) {
    TRY("host's process: environment", reads(of(host, "environ")));
    TRY("host's process: command line", reads(of(host, "cmdline")));
    TRY("host's process: memory", opens(of(host, "mem"), O_RDONLY));
    TRY("host's process: maps", reads(of(host, "maps")));
    TRY("host's process: descriptors", lists(of(host, "fd")));
    TRY("host's process: folder", lists(of(host, "cwd")));
    TRY("host's process: root", lists(of(host, "root")));
    TRY("host's process: status", reads(of(host, "status")));
    TRY("parent's process: environment", reads(of(getppid(), "environ")));
    TRY("own process: status", reads("/proc/self/status"));
    TRY("own process: memory to write", opens("/proc/self/mem", O_WRONLY));
    TRY("own process: users' map", opens("/proc/self/uid_map", O_WRONLY));
    TRY("own process: score of the OOM killer", opens("/proc/self/oom_score_adj", O_WRONLY));
    TRY("own process: timer slack", opens("/proc/self/timerslack_ns", O_WRONLY));
    TRY("/proc: list", lists("/proc"));
    TRY("/proc/keys: read", reads("/proc/keys"));
    TRY("/proc/key-users: read", reads("/proc/key-users"));
    TRY("/proc/kallsyms: read", reads("/proc/kallsyms"));
    TRY("/proc/kcore: read", reads("/proc/kcore"));
    TRY("/proc/kmsg: read", reads("/proc/kmsg"));
    TRY("/proc/kpagecount: read", reads("/proc/kpagecount"));
    TRY("/proc/locks: read", reads("/proc/locks"));
    TRY("/proc/modules: read", reads("/proc/modules"));
    TRY("/proc/interrupts: read", reads("/proc/interrupts"));
    TRY("/proc/zoneinfo: read", reads("/proc/zoneinfo"));
    TRY("/proc/slabinfo: read", reads("/proc/slabinfo"));
    TRY("/proc/timer_list: read", reads("/proc/timer_list"));
    TRY("/proc/vmallocinfo: read", reads("/proc/vmallocinfo"));
    TRY("/proc/bus: list", lists("/proc/bus"));
    TRY("/proc/fs: list", lists("/proc/fs"));
    TRY("/proc/sysrq-trigger: open to write", opens("/proc/sysrq-trigger", O_WRONLY));
    TRY("sysctl: core_pattern", opens("/proc/sys/kernel/core_pattern", O_WRONLY));
    TRY("sysctl: modprobe", opens("/proc/sys/kernel/modprobe", O_WRONLY));
    TRY("sysctl: hostname", opens("/proc/sys/kernel/hostname", O_WRONLY));
    TRY("sysctl: drop_caches", opens("/proc/sys/vm/drop_caches", O_WRONLY));
    TRY("sysctl: ns_last_pid", opens("/proc/sys/kernel/ns_last_pid", O_WRONLY));
    TRY("sysctl: ip_forward", opens("/proc/sys/net/ipv4/ip_forward", O_WRONLY));
    TRY("sysctl: namespaces of users", opens("/proc/sys/user/max_user_namespaces", O_WRONLY));
    TRY("sysctl: protected links", opens("/proc/sys/fs/protected_hardlinks", O_WRONLY));
    TRY("binfmt_misc: register", opens("/proc/sys/fs/binfmt_misc/register", O_WRONLY));
    TRY("cgroup: make", makes_folder("/sys/fs/cgroup/callboard-probe"));
    TRY("cgroup: move", opens("/sys/fs/cgroup/cgroup.procs", O_WRONLY));
    TRY("cgroup: release agent", opens("/sys/fs/cgroup/release_agent", O_WRONLY));
    TRY("/sys/power/state: open to write", opens("/sys/power/state", O_WRONLY));
    TRY("/sys/kernel: list", lists("/sys/kernel"));
    TRY("/sys/class/net: list", lists("/sys/class/net"));
    TRY("/dev/kmsg: write", opens("/dev/kmsg", O_WRONLY));
    TRY("/dev/kmsg: read", opens("/dev/kmsg", O_RDONLY));
    TRY("/dev/mem: open", opens("/dev/mem", O_RDONLY));
    TRY("/dev/port: open", opens("/dev/port", O_RDONLY));
    TRY("/dev/sda: open", opens("/dev/sda", O_RDONLY));
    TRY("/dev/vda: open", opens("/dev/vda", O_RDONLY));
    TRY("/dev/loop-control: open", opens("/dev/loop-control", O_RDWR));
    TRY("/dev/loop0: open", opens("/dev/loop0", O_RDONLY));
    TRY("/dev/kvm: open", opens("/dev/kvm", O_RDWR));
    TRY("/dev/fuse: open", opens("/dev/fuse", O_RDWR));
    TRY("/dev/net/tun: open", opens("/dev/net/tun", O_RDWR));
    TRY("/dev/vsock: open", opens("/dev/vsock", O_RDWR));
    TRY("/dev/vhost-vsock: open", opens("/dev/vhost-vsock", O_RDWR));
    TRY("/dev/hwrng: open", opens("/dev/hwrng", O_RDONLY));
    TRY("/dev/cpu_dma_latency: open", opens("/dev/cpu_dma_latency", O_WRONLY));
    TRY("/dev/tty: open", opens("/dev/tty", O_RDWR));
    TRY("/dev/tty1: open", opens("/dev/tty1", O_RDWR));
    TRY("/dev/console: open", opens("/dev/console", O_RDWR));
    TRY("/dev/input: list", lists("/dev/input"));
    TRY("/dev: make a file", makes("/dev/callboard-probe"));
    TRY("/dev/shm: make a file", makes("/dev/shm/callboard-probe"));
    TRY("/dev/ptmx: open", opens("/dev/ptmx", O_RDWR));
}

static void sockets(const char *out, int tcp, int udp, const char *abstract) {
    static const struct { const char *name; int family, kind, protocol; } kinds[] = {
        {"TCP", 2, 1, 0}, {"TCP over IPv6", 10, 1, 0}, {"UDP", 2, 2, 0}, {"UDP over IPv6", 10, 2, 0}, {"MPTCP", 2, 1, 262},
        {"SCTP", 2, 1, 132}, {"SCTP of packets", 2, 5, 132}, {"UDP-Lite", 2, 2, 136}, {"DCCP", 2, 6, 33}, {"L2TP", 2, 2, 115}, {"ping", 2, 2, 1},
        {"raw ICMP", 2, 3, 1}, {"raw", 2, 3, 255}, {"raw over IPv6", 10, 3, 58}, {"old packets", 2, 10, 768}, {"packets", 17, 3, 768},
        {"packets cooked", 17, 2, 768}, {"Unix stream", 1, 1, 0}, {"Unix datagrams", 1, 2, 0}, {"Unix packets", 1, 5, 0},
        {"netlink routes", 16, 3, 0}, {"netlink sockets", 16, 3, 4}, {"netlink xfrm", 16, 3, 6}, {"netlink audit", 16, 3, 9},
        {"netlink connector", 16, 3, 11}, {"netlink netfilter", 16, 3, 12}, {"netlink events", 16, 2, 15}, {"netlink generic", 16, 3, 16},
        {"netlink crypto", 16, 3, 21}, {"vsock", 40, 1, 0}, {"vsock datagrams", 40, 2, 0}, {"crypto", 38, 5, 0}, {"Bluetooth", 31, 3, 1},
        {"CAN", 29, 3, 1}, {"XDP", 44, 3, 0}, {"QRTR", 42, 2, 0}, {"TIPC", 30, 5, 0}, {"RDS", 21, 5, 0}, {"KCM", 41, 2, 0}, {"SMC", 43, 1, 0},
        {"RxRPC", 33, 2, 2}, {"NFC", 39, 3, 0}, {"keys", 15, 3, 2}, {"PPPoX", 24, 2, 0}, {"MCTP", 45, 2, 0}, {"LLC", 26, 1, 0}, {"X.25", 9, 5, 0},
        {"AX.25", 3, 5, 0}, {"AppleTalk", 5, 2, 0}, {"IEEE 802.15.4", 36, 3, 0}, {"Phonet", 35, 2, 0}, {"CAIF", 37, 5, 0}, {"ATM", 8, 2, 0},
    };
    char name[128];
    for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++) {
        snprintf(name, sizeof name, "socket: %s", kinds[n].name);
        TRY(name, socket(kinds[n].family, kinds[n].kind, kinds[n].protocol));
    }
    TRY("pair: stream", pair(1, 1));
    TRY("pair: packets", pair(1, 5));
    TRY("pair: datagrams", pair(1, 2));
    TRY("pair: TIPC", pair(30, 1));
    TRY("connect: TCP of the host", inet(SOCK_STREAM, "127.0.0.1", tcp));
    TRY("connect: UDP of the host", inet(SOCK_DGRAM, "127.0.0.1", udp));
    TRY("connect: TCP elsewhere", inet(SOCK_STREAM, "192.0.2.1", 80));
    TRY("connect: UDP elsewhere", inet(SOCK_DGRAM, "192.0.2.1", 53));
    TRY("connect: addresses of a cloud", inet(SOCK_STREAM, "169.254.169.254", 80));
    TRY("connect: socket of the workspace", unix_connect(SOCK_STREAM, "../listener", 0));
    TRY("connect: datagrams of the workspace", unix_connect(SOCK_DGRAM, "../datagrams", 0));
    TRY("connect: socket outside", unix_connect(SOCK_STREAM, in(out, "listener"), 0));
    TRY("connect: abstract socket of the host", unix_connect(SOCK_STREAM, abstract, 1));
    TRY("connect: containers' socket", unix_connect(SOCK_STREAM, "/var/run/docker.sock", 0));
    TRY("connect: bus of the system", unix_connect(SOCK_STREAM, "/run/dbus/system_bus_socket", 0));
    TRY("open: socket of the workspace", opens("../listener", O_RDWR));
}

static void kernel(void) {
    char room[256] = {0};
    REACH("io_uring: set up", syscall(SYS_io_uring_setup, 1, room));
    REACH("io_uring: enter", syscall(SYS_io_uring_enter, -1, 0, 0, 0, 0, 0));
    REACH("io_uring: register", syscall(SYS_io_uring_register, -1, 0, 0, 0));
    REACH("asynchronous requests: set up", syscall(SYS_io_setup, 1, room));
    REACH("bpf", syscall(SYS_bpf, 0, room, sizeof room));
    REACH("perf", ({ *(int *)(room + 4) = 112; *(int *)room = 1; syscall(SYS_perf_event_open, room, 0, -1, -1, 0); }));
    REACH("userfaultfd", syscall(SYS_userfaultfd, 0));
    REACH("userfaultfd of user mode", syscall(SYS_userfaultfd, 1));
    REACH("keyring: add", syscall(SYS_add_key, "user", "callboard-probe", "x", 1, -1));
    REACH("keyring: request", syscall(SYS_request_key, "user", "callboard-host-key", 0, -3));
    REACH("keyring: number of the session's", syscall(SYS_keyctl, 0, -3, 0));
    REACH("keyring: search the session's", syscall(SYS_keyctl, 10, -3, "user", "callboard-host-key", 0));
    REACH("keyring: search the user's", syscall(SYS_keyctl, 10, -4, "user", "callboard-host-key", 0));
    REACH("keyring: read", syscall(SYS_keyctl, 11, -3, room, sizeof room));
    REACH("keyring: describe", syscall(SYS_keyctl, 6, -3, room, sizeof room));
    REACH("keyring: join another session's", syscall(SYS_keyctl, 1, "callboard-probe"));
    REACH("keyring: persistent one", syscall(SYS_keyctl, 22, -1, -2));
    REACH("namespace: users", unshare(CLONE_NEWUSER));
    REACH("namespace: mounts", unshare(CLONE_NEWNS));
    REACH("namespace: network", unshare(CLONE_NEWNET));
    REACH("namespace: processes", unshare(CLONE_NEWPID));
    REACH("namespace: IPC", unshare(CLONE_NEWIPC));
    REACH("namespace: name", unshare(CLONE_NEWUTS));
    REACH("namespace: cgroups", unshare(CLONE_NEWCGROUP));
    REACH("namespace: time", unshare(0x80));
    REACH("clone: users", clone_with(CLONE_NEWUSER));
    REACH("clone: users and network", clone_with(CLONE_NEWUSER | CLONE_NEWNET));
    REACH("clone: mounts", clone_with(CLONE_NEWNS));
    REACH("clone: processes", clone_with(CLONE_NEWPID));
    REACH("clone3: plain", clone3_with(0));
    REACH("clone3: users", clone3_with(CLONE_NEWUSER));
    REACH("clone3: users and mounts", clone3_with(CLONE_NEWUSER | CLONE_NEWNS));
    REACH("clone3: into a cgroup", clone3_with(0x200000000ULL));
    REACH("setns: own network", enter("/proc/self/ns/net", CLONE_NEWNET));
    REACH("setns: first process's mounts", enter("/proc/1/ns/mnt", CLONE_NEWNS));
    REACH("setns: by process", ({ int fd = pidfd_of(getppid()); fd < 0 ? -1 : setns(fd, CLONE_NEWUSER); }));
    REACH("mount: tmpfs", mount("none", "/callboard/probe/none", "tmpfs", 0, ""));
    REACH("mount: bind", mount("/", "/callboard/probe/none", 0, MS_BIND, 0));
    REACH("mount: remount", mount(0, "/callboard/probe/none", 0, MS_REMOUNT | MS_BIND, 0));
    REACH("mount: propagate", mount(0, "/callboard/probe/none", 0, MS_SHARED, 0));
    REACH("mount: away", umount2("/callboard/probe/none", MNT_DETACH));
    REACH("mount: open a file system", syscall(SYS_fsopen, "tmpfs", 0));
    REACH("mount: configure", syscall(SYS_fsconfig, -1, 0, 0, 0, 0));
    REACH("mount: make", syscall(SYS_fsmount, -1, 0, 0));
    REACH("mount: pick", syscall(SYS_fspick, AT_FDCWD, "/", 0));
    REACH("mount: open a tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
    REACH("mount: move", syscall(SYS_move_mount, -1, "", -1, "", 0));
    REACH("mount: attributes", syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, room, 32));
    REACH("mount: state", syscall(457, room, room, sizeof room, 0));
    REACH("mount: list", syscall(458, room, room, 1, 0));
    REACH("mount: other root", syscall(SYS_pivot_root, "/callboard/probe/none", "/callboard/probe/none"));
    REACH("chroot", chroot("."));
    REACH("fanotify", syscall(SYS_fanotify_init, 0, 0));
    REACH("fanotify: mark", syscall(SYS_fanotify_mark, -1, 0, 0, AT_FDCWD, "."));
    REACH("quota", syscall(SYS_quotactl, 0x800007 << 8, "/dev/none", 0, room));
    REACH("quota by descriptor", syscall(SYS_quotactl_fd, -1, 0x800007 << 8, 0, room));
    REACH("acct", acct("/callboard/probe/none"));
    REACH("swapon", syscall(SYS_swapon, "/callboard/probe/none", 0));
    REACH("swapoff", syscall(SYS_swapoff, "/callboard/probe/none"));
    REACH("reboot", syscall(SYS_reboot, 0, 0, 0, 0));
    REACH("kexec", syscall(SYS_kexec_load, 0, 17, 0, 0));
    REACH("kexec by descriptor", syscall(SYS_kexec_file_load, -1, -1, 0, "", 0));
    REACH("module: load", syscall(SYS_init_module, room, 0, ""));
    REACH("module: load by descriptor", syscall(SYS_finit_module, -1, "", 0));
    REACH("module: remove", syscall(SYS_delete_module, "callboard_probe_none", O_NONBLOCK));
    REACH("syslog: size", syscall(SYS_syslog, 10, 0, 0));
    REACH("syslog: read", syscall(SYS_syslog, 3, room, sizeof room));
    REACH("time: settimeofday", syscall(SYS_settimeofday, 0, 0));
    REACH("time: clock_settime", syscall(SYS_clock_settime, CLOCK_REALTIME, 1));
    REACH("time: adjtimex", syscall(SYS_adjtimex, room));
    REACH("time: clock_adjtime", syscall(SYS_clock_adjtime, CLOCK_REALTIME, room));
    REACH("name of the machine", ({ gethostname(room, sizeof room - 1); sethostname(room, strlen(room)); }));
    REACH("domain of the machine", ({ getdomainname(room, sizeof room - 1); setdomainname(room, strlen(room)); }));
    REACH("vhangup", syscall(SYS_vhangup));
    REACH("lookup_dcookie", syscall(SYS_lookup_dcookie, 0LL, room, sizeof room));
    REACH("memory: file", syscall(SYS_memfd_create, "probe", 0));
    REACH("memory: secret file", syscall(447, 0));
    TRY("memory: shared, System V", syscall(SYS_shmget, IPC_PRIVATE, 4096, 0600));
    TRY("memory: shared, POSIX", shm_open("/callboard-probe2", O_CREAT | O_RDWR, 0600));
    TRY("IPC: semaphores", syscall(SYS_semget, IPC_PRIVATE, 1, 0600));
    TRY("IPC: messages", syscall(SYS_msgget, IPC_PRIVATE, 0600));
    TRY("IPC: queue", syscall(SYS_mq_open, "callboard-probe", O_CREAT | O_RDWR, 0600, 0));
    REACH("terminal: type", control(0x5412));
    REACH("terminal: type, high bits", control(0xffffffff00005412UL));
    REACH("terminal: Linux", control(0x541C));
    REACH("terminal: size", control(0x5413));
    REACH("call beyond the list: setxattrat", syscall(463, 0, 0, 0, 0, 0, 0));
    REACH("call beyond the list: open_tree_attr", syscall(467, AT_FDCWD, "/", 1, 0, 0));
    REACH("call beyond the list: file_setattr", syscall(469, AT_FDCWD, "own", room, 24, 0));
    REACH("call beyond the list: 470", syscall(470, 0, 0, 0, 0, 0, 0));
    REACH("call beyond the list: 999", syscall(999, 0, 0, 0, 0, 0, 0));
    REACH("call beyond the list: -1", syscall(-1, 0, 0, 0, 0, 0, 0));
#ifdef __x86_64__
    REACH("x32: getpid", syscall(0x40000000 | 39));
    REACH("x32: socket", syscall(0x40000000 | 41, 1, 1, 0));
    REACH("x32: execve", syscall(0x40000000 | 520, "/callboard/probe/none", 0, 0));
    TRY("i386: getpid", ({ long pid; __asm__ volatile("int $0x80" : "=a"(pid) : "a"(20) : "memory"); pid > 0 ? 0 : -1; }));
    TRY("i386: socketcall", ({ long fd; __asm__ volatile("int $0x80" : "=a"(fd) : "a"(359), "b"(1), "c"(1), "d"(0) : "memory"); fd; }));
    REACH("ports: iopl", syscall(SYS_iopl, 0));
    REACH("ports: ioperm", syscall(SYS_ioperm, 0x80, 1, 0));
    REACH("segments", syscall(SYS_modify_ldt, 0, room, sizeof room));
    REACH("uselib", syscall(SYS_uselib, "/callboard/probe/none"));
#endif
}

static void processes(int host) {
    char room[64];
    struct iovec own = {room, sizeof room};
    TRY("stranger: signal", kill(host, 0));
    TRY("stranger: signal to the group", ({ pid_t group = getpgid(host); group > 0 ? kill(-group, 0) : -1; }));
    TRY("stranger: signal to a thread", syscall(SYS_tgkill, host, host, 0));
    TRY("stranger: old signal to a thread", syscall(SYS_tkill, host, 0));
    TRY("stranger: signal by descriptor", ({ int fd = pidfd_of(host); fd < 0 ? -1 : syscall(SYS_pidfd_send_signal, fd, 0, 0, 0); }));
    TRY("stranger: queued signal", ({ siginfo_t info = {.si_code = SI_QUEUE}; syscall(SYS_rt_sigqueueinfo, host, 0, &info); }));
    TRY("stranger: trace", ({ long seized = ptrace(PTRACE_SEIZE, host, 0, 0); if (seized == 0) ptrace(PTRACE_DETACH, host, 0, 0); seized; }));
    TRY("stranger: read memory", ({ struct iovec theirs = {(void *)0x10000, 1}; long got = process_vm_readv(host, &own, 1, &theirs, 1, 0); got < 0 && errno == EFAULT ? 0 : got; }));
    TRY("stranger: write memory", ({ struct iovec theirs = {(void *)8, 1}; long got = process_vm_writev(host, &own, 1, &theirs, 1, 0); got < 0 && errno == EFAULT ? 0 : got; }));
    TRY("stranger: take a descriptor", ({ int fd = pidfd_of(host); fd < 0 ? -1 : syscall(SYS_pidfd_getfd, fd, 0, 0); }));
    TRY("stranger: compare", syscall(SYS_kcmp, host, getpid(), 0, 0, 0));
    TRY("stranger: limits, read", prlimit(host, RLIMIT_NOFILE, 0, (struct rlimit *)room));
    TRY("stranger: limits, set", ({ struct rlimit limit; prlimit(host, RLIMIT_CORE, 0, &limit) < 0 ? -1 : prlimit(host, RLIMIT_CORE, &limit, 0); }));
    TRY("stranger: priority", setpriority(PRIO_PROCESS, host, getpriority(PRIO_PROCESS, host)));
    TRY("stranger: priority of the group", setpriority(PRIO_PGRP, getpgid(host), getpriority(PRIO_PGRP, getpgid(host))));
    TRY("stranger: processors", ({ cpu_set_t set; sched_getaffinity(host, sizeof set, &set) < 0 ? -1 : sched_setaffinity(host, sizeof set, &set); }));
    TRY("stranger: scheduler", sched_setscheduler(host, SCHED_OTHER, &(struct sched_param){0}));
    TRY("stranger: turn of io", syscall(SYS_ioprio_set, 1, host, 0));
    TRY("stranger: pages", syscall(SYS_migrate_pages, host, 1, (unsigned long[]){1}, (unsigned long[]){1}));
    TRY("stranger: advice on memory", ({ int fd = pidfd_of(host); fd < 0 ? -1 : syscall(SYS_process_madvise, fd, &own, 1, 20, 0); }));
    TRY("stranger: robust list", syscall(SYS_get_robust_list, host, room, room + 8));
    TRY("stranger: descriptor of the process", pidfd_of(host));
    TRY("stranger: session", getsid(host));
    TRY("own: trace a child", ptrace(PTRACE_TRACEME, 0, 0, 0));
    TRY("own: signal to the parent", kill(getppid(), 0));
    TRY("own: user of the superuser", setuid(0) < 0 ? -1 : getuid() == 0 && getppid() ? 0 : -1);
    TRY("own: another user", setresuid(1, 1, 1));
    TRY("own: another group", setresgid(1, 1, 1));
    TRY("own: groups", syscall(SYS_setgroups, 0, 0));
    TRY("own: a capability is left", ({
        struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct data[2] = {{0}};
        syscall(SYS_capget, &head, data);
        errno = EPERM;
        data[0].effective | data[1].effective | data[0].permitted | data[1].permitted | data[0].inheritable | data[1].inheritable ? 0 : -1;
    }));
    TRY("own: a capability can be won", ({
        struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct data[2] = {{1 << CAP_SYS_ADMIN, 1 << CAP_SYS_ADMIN, 0}};
        syscall(SYS_capset, &head, data);
    }));
    TRY("own: programs may give rights", ({ errno = EPERM; prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0 ? 0 : -1; }));
    TRY("own: no filter", ({ errno = EPERM; prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0 ? 0 : -1; }));
    TRY("own: sudo", runs("/usr/bin/sudo", "-n"));
    TRY("own: su", runs("/usr/bin/su", "-ctrue"));
    TRY("own: more files", more_of(RLIMIT_NOFILE));
    TRY("own: more processes", more_of(RLIMIT_NPROC));
    TRY("own: more memory", more_of(RLIMIT_DATA));
    TRY("own: more time", more_of(RLIMIT_CPU));
    TRY("own: larger files", more_of(RLIMIT_FSIZE));
    TRY("own: core files", more_of(RLIMIT_CORE));
    TRY("own: better priority", setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) - 1));
    TRY("own: real time", sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){1}));
    TRY("own: first turn of io", syscall(SYS_ioprio_set, 1, 0, 1 << 13));
    TRY("own: a descriptor is left", ({
        int left = 0;
        for (int fd = 3; fd < 1024; fd++) left += fcntl(fd, F_GETFD) >= 0;
        errno = EBADF;
        left ? 0 : -1;
    }));
    TRY("own: a key is left in the environment", ({
        int left = 0;
        for (char **entry = environ; *entry; entry++) left += strstr(*entry, "KEY") || strstr(*entry, "TOKEN") || !strncmp(*entry, "LD_", 3) || !strncmp(*entry, "CALLBOARD", 9);
        errno = ENOENT;
        left ? 0 : -1;
    }));
    TRY("own: a terminal", ({ errno = ENOTTY; isatty(0) || isatty(1) || isatty(2) ? 0 : -1; }));
}

/* Single attempts, for tests with two processes. Prints only the result of the attempt. */
static int single(const char *what, const char *on) {
    char value[256] = {0};
    long result = -1;
    errno = EINVAL;
    if (!strcmp(what, "--key-add")) result = syscall(SYS_add_key, "user", on, "LEFT-BEHIND", 11, -3);
    else if (!strcmp(what, "--key-read")) {
        result = syscall(SYS_keyctl, 10, -3, "user", on, 0);
        if (result >= 0) result = syscall(SYS_keyctl, 11, result, value, sizeof value - 1);
    } else if (!strcmp(what, "--connect")) result = unix_connect(SOCK_STREAM, on, 0);
    else if (!strcmp(what, "--trace")) {
        int pid = atoi(on);
        result = ptrace(PTRACE_SEIZE, pid, 0, 0);
        if (result < 0) result = opens(of(pid, "mem"), O_RDONLY);
        if (result < 0) result = readlink(of(pid, "fd/1"), value, sizeof value - 1);
        if (result < 0) result = syscall(SYS_pidfd_getfd, pidfd_of(pid), 0, 0);
    }
    if (result >= 0) printf("ok %s\n", value);
    else printf("refused %d\n", errno);
    return 0;
}

int main(int count, char **argument) {
    if (count == 3) return single(argument[1], argument[2]);
    if (count > 3 && !strcmp(argument[1], "--session")) {
        /* Joins a session keyring with this name, adds a key with this name, then runs the program. */
        if (syscall(SYS_keyctl, 1, argument[2]) < 0 || syscall(SYS_add_key, "user", argument[2], "LEFT-BEHIND", 11, -3) < 0) return 3;
        execv(argument[3], argument + 3);
        return 4;
    }
    if (count != 6) return 2;
    signal(SIGPIPE, SIG_IGN);
    writes("own"), writes("own2");
    int host = atoi(argument[2]);
    files(argument[1]);
    workspace();
    proc(host);
    sockets(argument[1], atoi(argument[3]), atoi(argument[4]), argument[5]);
    kernel();
    processes(host);
    return 0;
}
