/* A job that says when it began: CLOCK_MONOTONIC in ns as the first thing, then into argv[1]. */
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct timespec now;
    char line[32];
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (argc < 2) /* without an argument: a process that only is there */
        return pause();
    int length = snprintf(line, sizeof line, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    int fd = open(argv[1], O_WRONLY);
    return write(fd, line, length) != length;
}
