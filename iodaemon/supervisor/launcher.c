/* The launcher: makes the first process of each job, and is that process until execve(2).
 *
 * A small process beside the supervisor, which may die at any moment. It clones with CLONE_PARENT:
 * the child is the supervisor's own, and nothing of an interpreter is copied for each job (0.7
 * instead of 3.2 ms of CPU for a /bin/true).
 *
 * An order is one datagram with two descriptors: the child's end of a socketpair and the job's
 * cgroup. On the socketpair the child reads a record, which launch.py packs, and says a JSON line,
 * {"pid", "ticks"} once it is ready, or why it cannot be: a code, of what, an error number
 * (launch.py: explain). Then it reads its EXEC record, appends that to the ledger and executes. The
 * end of the socketpair without it ends the child; the socketpair is close-on-exec.
 *
 * Arguments: descriptors of the line to the supervisor and of the ledger, group that reads own files
 * (-1: none). With a fourth it is a job's first process itself, a holder's child (holder.py); the
 * first descriptor is then its end of the socketpair.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/keyctl.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <pwd.h>
#include <sched.h>
#include <shadow.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { HAS_USER = 1, HAS_REPORT = 2 };                /* launch.py: flags of the record */
enum { STRANGER = -1, LINKS = -2, IS_LEDGER = -3 };   /* launch.py: beside errno */
enum { REPORT_FD = 3, ACCOUNT_WITHIN_S = 10, RECORD_BYTES = 64, MOST_GROUPS = 65536 };

struct launch {             /* launch.py: _RECORD. Strings follow, each with its NUL */
    uint32_t size, flags, uid, umask;
    int32_t nice;
    uint32_t words, variables, limits;
    uint64_t open_files, cpus[128], nodes[16];
    struct { uint64_t number, soft, hard; } limit[16];
};

static const char *faults;
static int ledger, line = -1;
static gid_t readers = -1;      /* group of own files: the daemon's; -1: nobody's but the user */

static void reach(const char *point)    /* failpoint.py */
{
    char path[PATH_MAX], taken[PATH_MAX + 16];
    int passage = 0, number = 0;
    FILE *file;

    if (!faults)
        return;
    snprintf(path, sizeof path, "%s/%s", faults, point);
    snprintf(taken, sizeof taken, "%s.%d", path, getpid());
    if (rename(path, taken) || !(file = fopen(taken, "re")))
        return;
    int is_read = fscanf(file, "%d %d", &passage, &number) == 2;
    fclose(file);
    if (is_read && passage > 1) {
        if ((file = fopen(taken, "we"))) {      /* not as the job's user */
            fprintf(file, "%d %d", passage - 1, number);
            fclose(file);
        }
        rename(taken, path);
        return;
    }
    unlink(taken);
    kill(getpid(), number);
}

static void say(const char *format, ...)
{
    char text[128];
    va_list given;

    va_start(given, format);
    send(line, text, vsnprintf(text, sizeof text, format, given), MSG_NOSIGNAL);
    va_end(given);
}

static void tell(const char *code, const char *of, int error)
{
    say("{\"code\":\"%s\",\"of\":\"%s\",\"error\":%d}\n", code, of, error);
}

static void fail(const char *code, const char *of, int error)
{
    tell(code, of, error);
    _exit(1);
}

static void no_answer(int number)
{
    (void)number;
    fail("no_answer", "", 0);
}

static void do_nothing(int number)
{
    (void)number;
}

static void write_file(const char *path, const char *text)     /* where there is one */
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd >= 0 && write(fd, text, strlen(text)) >= 0)
        close(fd);
}

static void confine(const struct launch *launch)
{
    static const uint64_t all[128];
    struct rlimit limit;

    write_file("/proc/self/oom_score_adj", "0");
    setpriority(PRIO_PROCESS, 0, launch->nice);
    if (memcmp(launch->cpus, all, sizeof all) &&
        sched_setaffinity(0, sizeof launch->cpus, (const cpu_set_t *)launch->cpus))
        fail("cpus", "", errno);
    if (memcmp(launch->nodes, all, sizeof launch->nodes) &&
        syscall(SYS_set_mempolicy, 5 /* MPOL_PREFERRED_MANY */, launch->nodes, 1025)) {
        uint64_t first[16] = {0};
        int word = 0;
        while (!launch->nodes[word])
            word++;
        first[word] = launch->nodes[word] & -launch->nodes[word];
        syscall(SYS_set_mempolicy, 1 /* MPOL_PREFERRED */, first, 1025);
    }
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = launch->open_files < limit.rlim_max ? launch->open_files : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (uint32_t i = 0; i < launch->limits; i++) {     /* root alone may raise hard ones */
        getrlimit(launch->limit[i].number, &limit);
        if (launch->limit[i].hard > limit.rlim_max)
            limit.rlim_max = launch->limit[i].hard;
        if (setrlimit(launch->limit[i].number, &limit))
            fail("limit", "", errno);
    }
}

static void new_keyring(int is_shared)
{
    long serial = syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);

    if (serial < 0 && (errno == ENOSYS || errno == EPERM || (errno == EDQUOT && !is_shared)))
        return;
    if (serial < 0 || (is_shared && syscall(SYS_keyctl, KEYCTL_SETPERM, serial, 0x0B000000)))
        fail("system", "", errno);
}

static struct passwd *find_user(uid_t uid, gid_t *groups, int *count)
{
    struct passwd *user;
    const struct spwd *shadow;

    signal(SIGALRM, no_answer);
    alarm(ACCOUNT_WITHIN_S);
    user = getpwuid(uid);
    if (!user || getgrouplist(user->pw_name, user->pw_gid, groups, count) < 0)
        fail("no_account", "", 0);
    shadow = getspnam(user->pw_name);
    if (shadow && shadow->sp_expire >= 0 && time(NULL) / 86400 >= shadow->sp_expire)
        fail("expired", "", 0);
    alarm(0);
    return user;
}

static void take_on(const struct passwd *user, const gid_t *groups, int count)
{
    char number[16];

    new_keyring(1);
    snprintf(number, sizeof number, "%u", user->pw_uid);
    write_file("/proc/self/loginuid", number);
    if (setgroups(count, groups) || setresgid(user->pw_gid, user->pw_gid, user->pw_gid) ||
        setresuid(user->pw_uid, user->pw_uid, user->pw_uid))
        fail("system", "", errno);
    prctl(PR_SET_DUMPABLE, 0);
    new_keyring(0);
}

static int make_own(const struct launch *launch, const char *path)
{
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
    mode_t mode = readers == (gid_t)-1 ? 0600 : 0640;
    int fd = open(path, flags, mode);

    if (fd < 0 && errno == ENOENT) {            /* its disk was full as the anchor began */
        char *parent = strndup(path, strrchr(path, '/') - path);
        if (parent && !mkdir(parent, 0750) && chown(parent, -1, readers))
            fail("output", "own", errno);
        fd = open(path, flags, mode);
    } else if (fd < 0 && errno == EEXIST) {     /* of an earlier try that never ran */
        unlink(path);
        fd = open(path, flags, mode);
    }
    if (fd < 0 || (launch->flags & HAS_USER && fchown(fd, launch->uid, readers)))
        fail("output", "own", errno);
    return fd;
}

static void refuse_strangers(const char *path, const char *of, const struct stat *opened)
{
    const mode_t everybodys = S_ISVTX | S_IWOTH;
    const char *end = strrchr(path, '/');
    char parent[PATH_MAX] = ".";
    struct stat directory, named;

    if (end)
        snprintf(parent, sizeof parent, "%.*s", (int)(end == path ? 1 : end - path), path);
    if (stat(parent, &directory))
        fail("output", of, errno);
    if ((directory.st_mode & everybodys) != everybodys)
        return;
    if (lstat(path, &named)) {
        if (errno == ENOENT && !opened)
            return;
        fail("output", of, errno);
    }
    int is_swapped = opened && !S_ISLNK(named.st_mode) &&
                     (named.st_ino != opened->st_ino || named.st_dev != opened->st_dev);
    if (is_swapped || (named.st_uid != geteuid() && named.st_uid != directory.st_uid))
        fail("output", of, STRANGER);
    if (S_ISREG(named.st_mode) && named.st_nlink > 1)
        fail("output", of, LINKS);
}

static int open_output(const char *path, const char *of)
{
    struct open_how how = {
        .flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
        .mode = 0666, .resolve = RESOLVE_NO_MAGICLINKS,
    };
    struct stat found, records;

    refuse_strangers(path, of, NULL);
    int fd = syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (fd < 0 && errno == ENOSYS)
        fd = open(path, how.flags, how.mode);
    if (fd < 0 || fstat(fd, &found) || fstat(ledger, &records))
        fail("output", of, errno);
    refuse_strangers(path, of, &found);
    if (found.st_ino == records.st_ino && found.st_dev == records.st_dev)
        fail("output", of, IS_LEDGER);
    if (S_ISREG(found.st_mode) && ftruncate(fd, 0))
        fail("output", of, errno);
    fcntl(fd, F_SETFL, how.flags & ~O_NONBLOCK);
    return fd;
}

static struct launch *read_launch(void)
{
    uint32_t size;
    ssize_t part;
    struct launch *launch;

    if (recv(line, &size, sizeof size, MSG_PEEK | MSG_WAITALL) != sizeof size)
        _exit(0);
    if (!(launch = malloc(size)))
        fail("system", "", ENOMEM);
    for (uint32_t done = 0; done < size; done += part)          /* a signal cuts it short */
        if ((part = recv(line, (char *)launch + done, size - done, MSG_WAITALL)) <= 0)
            _exit(0);
    return launch;
}

static uint64_t start_ticks(void)       /* field 22 of proc_pid_stat(5) */
{
    char text[1024] = "", *at;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);

    if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
        fail("system", "", errno);
    close(fd);
    at = strrchr(text, ')') + 1;
    for (int field = 2; field < 21; field++)
        at = strchr(at + 1, ' ');
    return strtoull(at, NULL, 10);
}

static int execute(char **words)
{
    int saved = 0;
    char path[PATH_MAX];
    const char *part = getenv("PATH") ? getenv("PATH") : "/bin:/usr/bin";

    if (strchr(*words, '/')) {
        execve(*words, words, environ);
        return errno;
    }
    for (size_t length; part; part = part[length] ? part + length + 1 : NULL) {
        length = strcspn(part, ":");
        snprintf(path, sizeof path, "%.*s%s%s", (int)length, part, length ? "/" : "", *words);
        execve(path, words, environ);
        if (!saved && errno != ENOENT && errno != ENOTDIR)
            saved = errno;
    }
    return saved ? saved : ENOENT;
}

static void be_the_job(void)
{
    static gid_t groups[MOST_GROUPS];
    int count = MOST_GROUPS, null, own, out, err;
    struct passwd *user = NULL;
    char exec[RECORD_BYTES];

    reach("child.begun");
    struct launch *launch = read_launch();
    uint32_t total = 4 + launch->words + launch->variables;
    char **text = calloc(total + 2, sizeof *text), *at = (char *)(launch + 1), **words = text + 4;
    if (!text)
        fail("system", "", ENOMEM);
    for (uint32_t i = 0; i < total; i++, at += strlen(at) + 1)
        text[i < 4 + launch->words ? i : i + 1] = at;
    const char *directory = text[0], *to_out = text[1], *to_err = text[2], *to_own = text[3];

    setsid();
    confine(launch);
    if (launch->flags & HAS_USER)
        user = find_user(launch->uid, groups, &count);
    if (launch->flags & HAS_REPORT) {
        char report[PATH_MAX];
        snprintf(report, sizeof report, "%s.report", to_own);
        dup2(make_own(launch, report), REPORT_FD);
    }
    own = *to_out || !*to_own ? -1 : make_own(launch, to_own);
    if (user)
        take_on(user, groups, count);
    environ = words + launch->words + 1;        /* not before: libraries look into it */
    if (user) {
        setenv("HOME", user->pw_dir, 0);
        setenv("USER", user->pw_name, 0);
        setenv("LOGNAME", user->pw_name, 0);
        setenv("SHELL", *user->pw_shell ? user->pw_shell : "/bin/sh", 0);
        setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 0);
    }
    umask(launch->umask);
    if (chdir(directory))
        fail("directory", "", errno);
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++)      /* until all is open nothing of the launcher's is */
        dup2(null, fd);
    out = *to_out ? open_output(to_out, "stdout") : own < 0 ? null : own;
    err = *to_err && strcmp(to_err, to_out) ? open_output(to_err, "stderr") : out;
    if (null < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        fail("system", "", errno);
    uint64_t ticks = start_ticks();
    reach("child.prepared");
    say("{\"pid\":%d,\"ticks\":%" PRIu64 "}\n", getpid(), ticks);
    if (read(line, exec, sizeof exec) != sizeof exec)
        _exit(0);
    reach("child.let_go");
    if (write(ledger, exec, sizeof exec) != sizeof exec)
        fail("ledger_full", "", 0);
    reach("child.recorded");
    for (uint32_t i = 0; i < launch->limits; i++) {     /* last: none is to hurt what is above */
        struct rlimit limit = {launch->limit[i].soft, launch->limit[i].hard};
        if (setrlimit(launch->limit[i].number, &limit))
            fail("system", "", errno);
    }
    int error = execute(words);
    int is_there = error == ENOENT && strchr(*words, '/') && !access(*words, F_OK);
    tell("exec", is_there ? "interpreter" : "", error);
    _exit(error == ENOENT ? 127 : 126);
}

static pid_t clone_into(int cgroup)     /* without clone3, as in many containers, up to 15 ms */
{
    struct clone_args into = {
        .flags = CLONE_PARENT | CLONE_INTO_CGROUP, .cgroup = cgroup,
    };
    pid_t pid = syscall(SYS_clone3, &into, sizeof into);

    if (pid >= 0 || (errno != ENOSYS && errno != EINVAL && errno != EPERM && errno != E2BIG))
        return pid;
    pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        int procs = openat(cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC);
        if (procs < 0 || write(procs, "0", 1) != 1)
            _exit(1);
        close(procs);
    }
    return pid;
}

int main(int count, char **given)
{
    struct sigaction nothing = {.sa_handler = do_nothing, .sa_flags = SA_RESTART};

    faults = getenv("IOD_FAULTS");
    if (count != 4 && count != 5)
        return 2;                               /* launch.py: NO_ARGUMENTS */
    int orders = fcntl(atoi(given[1]), F_DUPFD_CLOEXEC, REPORT_FD + 1);
    ledger = fcntl(atoi(given[2]), F_DUPFD_CLOEXEC, REPORT_FD + 1);
    readers = atol(given[3]);
    close(atoi(given[1]));                      /* no job inherits any other */
    close(atoi(given[2]));
    for (int fd = 3; fd < 1024; fd++)
        if (fd != orders && fd != ledger)
            close(fd);
    umask(0);
    open("/dev/null", O_RDONLY | O_CLOEXEC);    /* keeps REPORT_FD free for a report */
    sigaction(SIGTERM, &nothing, NULL);
    sigaction(SIGINT, &nothing, NULL);
    sigaction(SIGHUP, &nothing, NULL);
    if (count == 5) {
        line = orders;
        be_the_job();
    }
    for (;;) {
        char order;
        union { char space[CMSG_SPACE(2 * sizeof(int))]; struct cmsghdr align; } control;
        struct iovec part = {&order, 1};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1,
            .msg_control = &control, .msg_controllen = sizeof control,
        };
        if (recvmsg(orders, &message, MSG_CMSG_CLOEXEC) <= 0)
            return 0;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (!header || header->cmsg_len != CMSG_LEN(2 * sizeof(int)))
            continue;
        int fds[2];
        memcpy(fds, CMSG_DATA(header), sizeof fds);
        reach("launcher.received");
        line = fds[0];
        pid_t pid = clone_into(fds[1]);
        if (pid == 0) {
            close(orders);
            be_the_job();
        }
        if (pid < 0)
            tell("no_process", "", errno);
        reach("launcher.cloned");
        close(fds[0]);
        close(fds[1]);
    }
}
