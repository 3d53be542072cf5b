// Holds memory in a way that a sum over processes does not show: hoard KIND MIB. Never holds more
// than MIB.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char block[1 << 20];

static void hold(const char *said) {
    printf("%s\n", said);
    fflush(stdout);
    sleep(20);
    exit(0);
}

// Written, but not mapped.
static void memfd(long mib) {
    for (long n = 0; n < mib; n += 32) {
        int fd = memfd_create("hoard", 0);
        if (fd < 0) {
            puts("refused");
            exit(0);
        }
        for (long m = 0; m < 32 && n + m < mib; m++)
            if (write(fd, block, sizeof block) < 0) hold("refused");
    }
}

// Buffers of socket pairs, in several processes because each may open few files.
static void sockets(long mib) {
    long pairs = mib * 4 / 2;
    while (pairs > 0) {
        if (fork() == 0) {
            for (int n = 0; n < 480; n++) {
                int pair[2];
                if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) hold("refused");
                for (int side = 0; side < 2; side++) {
                    fcntl(pair[side], F_SETFL, O_NONBLOCK);
                    while (write(pair[side], block, 32768) > 0) {}
                }
            }
            sleep(20);
            exit(0);
        }
        pairs -= 480;
    }
}

// Socket pairs with empty buffers, in several processes because each may open few files.
static void empty(long pairs) {
    for (; pairs > 0; pairs -= 400) {
        if (fork() == 0) {
            for (long n = 0; n < 400; n++) {
                int pair[2];
                if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) hold("refused");
            }
            sleep(20);
            exit(0);
        }
    }
}

// Open files, 1,000 in each process.
static void files(long thousands) {
    for (long n = 0; n < thousands; n++) {
        if (fork() == 0) {
            for (int file = 0; file < 1000; file++) dup(0);
            sleep(20);
            exit(0);
        }
    }
}

// Shared memory that the last process has never touched.
static void shared(long mib) {
    char *p = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) hold("refused");
    if (fork() == 0) {
        sleep(20);
        exit(0);
    }
    if (fork() == 0) {
        memset(p, 1, mib << 20);
        exit(0);
    }
    munmap(p, mib << 20);
    wait(NULL);
}

// Page tables: one page of zeros in every two MiB of addresses.
static void tables(long mib) {
    long step = 2L << 20, count = mib * 256;
    volatile char *p = mmap(NULL, step * count, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) hold("refused");
    madvise((void *)p, step * count, MADV_NOHUGEPAGE);
    for (long n = 0; n < count; n++) (void)p[n * step];
}

// Watches of epoll: every epoll of some processes watches every pipe of theirs.
static void watches(long processes) {
    for (; processes > 0; processes--) {
        if (fork() == 0) {
            int ends[500], count = 0, epoll;
            while (count < 500 && pipe(ends + count) == 0) count += 2;
            while ((epoll = epoll_create1(0)) >= 0)
                for (int n = 0; n < count; n++) {
                    struct epoll_event event = {.events = EPOLLIN};
                    epoll_ctl(epoll, EPOLL_CTL_ADD, ends[n], &event);
                }
            sleep(20);
            exit(0);
        }
    }
}

static void refused(void) {
    puts("refused");
    exit(0);
}

static void notifiers(long count) {
    while (count-- > 0)
        if (inotify_init() < 0) refused();
}

static void terminals(long count) {
    while (count-- > 0)
        if (posix_openpt(O_RDWR) < 0) refused();
}

static void *wait_for(void *files) {
    poll(files, 1000, -1);
    return NULL;
}

// Notifiers without a descriptor: a thread waits for them, which keeps them open.
static void awaited(long count) {
    static struct pollfd files[1000];
    for (long n = 0; n < 1000; n++) files[n].fd = -1;
    long had = 0;
    while (had < count && (files[had].fd = inotify_init()) >= 0) had++;
    if (had == 0) refused();
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for, files);
    usleep(20000);
    for (long n = 0; n < had; n++) close(files[n].fd);
}

// Notifiers without a descriptor: they are in messages that nobody receives.
static void send_notifiers(int socket, long count) {
    for (long n = 0; n < count; n++) {
        int file = inotify_init();
        if (file < 0) return;
        char space[CMSG_SPACE(sizeof file)] = {0};
        struct iovec byte = {block, 1};
        struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof file);
        memcpy(CMSG_DATA(part), &file, sizeof file);
        sendmsg(socket, &message, MSG_DONTWAIT);
        close(file);
    }
}

static void sent(long count) {
    int pair[2], file = inotify_init();
    if (file < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) refused();
    close(file);
    send_notifiers(pair[0], count);
}

// The same, given back and taken again all the time.
static void toggled(long count) {
    for (;;) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) refused();
        send_notifiers(pair[0], count);
        usleep(2000);
        close(pair[0]);
        close(pair[1]);
        usleep(1000);
    }
}

// What is sent over connections of its own and not read: a number of connections.
static void tcp(long connections) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, size) < 0 || listen(listener, 64) < 0) hold("refused");
    getsockname(listener, (void *)&at, &size);
    static int ends[2048];
    int count = 0;
    for (long n = 0; n < connections; n++) {
        int out = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(out, (void *)&at, size) < 0) break;
        ends[count++] = out;
        ends[count++] = accept(listener, NULL, NULL);
    }
    puts("connected");
    fflush(stdout);
    for (;;) {
        for (int n = 0; n < count; n++) send(ends[n], block, sizeof block, MSG_DONTWAIT);
        usleep(1000);
    }
}

// Answers of the kernel about its network that are not read: a number of sockets.
static void netlink(long sockets) {
    struct {
        struct nlmsghdr header;
        struct ifinfomsg about;
    } ask = {.header = {.nlmsg_len = sizeof ask, .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST},
             .about = {.ifi_family = AF_UNSPEC, .ifi_index = 1}};
    for (long n = 0; n < sockets; n++) {
        int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, NETLINK_ROUTE);
        if (fd < 0) hold("refused");
        for (int asked = 0; asked < 400; asked++) send(fd, &ask, sizeof ask, 0);
    }
}

// Processes that read the list of mounts without a pause.
static void mounts(long processes) {
    for (long n = 1; n < processes; n++)
        if (fork() == 0) break;
    for (;;) {
        int fd = open("/proc/self/mountinfo", O_RDONLY);
        while (read(fd, block, sizeof block) > 0) {}
        close(fd);
    }
}

static void private(long mib) {
    for (long n = 0; n < mib; n++) memset(malloc(1 << 20), 1, 1 << 20);
}

static void *attack(void *given) {
    char **argv = given;
    long mib = argv[2] ? atol(argv[2]) : 0;
    memset(block, 'x', sizeof block);
    if (!strcmp(argv[1], "private")) private(mib);
    if (!strcmp(argv[1], "memfd")) memfd(mib);
    if (!strcmp(argv[1], "sockets")) sockets(mib);
    if (!strcmp(argv[1], "tcp")) tcp(mib);
    if (!strcmp(argv[1], "netlink")) netlink(mib);
    if (!strcmp(argv[1], "mounts")) mounts(mib);
    if (!strcmp(argv[1], "empty")) empty(mib);
    if (!strcmp(argv[1], "files")) files(mib);
    if (!strcmp(argv[1], "watches")) watches(mib);
    if (!strcmp(argv[1], "notifiers")) notifiers(mib);
    if (!strcmp(argv[1], "sent")) sent(mib);
    if (!strcmp(argv[1], "toggled")) toggled(mib);
    if (!strcmp(argv[1], "awaited")) awaited(mib);
    if (!strcmp(argv[1], "terminals")) terminals(mib);
    if (!strcmp(argv[1], "shared")) shared(mib);
    if (!strcmp(argv[1], "tables")) tables(mib);
    hold("held");
    return NULL;
}

// With a third argument, after the main thread has ended: /proc/PID shows nothing of such a process.
int main(int argc, char **argv) {
    pthread_t thread;
    if (argc < 4) attack(argv);
    pthread_create(&thread, NULL, attack, argv);
    syscall(SYS_exit, 0);
}
