/* reader FILE PASSES US : reads FILE from its beginning to its end, PASSES times, through the page
 * cache in blocks of 128 KiB, and computes for US microseconds after every MiB.
 * Exit code 0: all of it was read; 1: FILE cannot be opened or read, or is empty.
 * gcc -O2 -o reader reader.c
 */
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static char block[1 << 17];
static volatile unsigned long sum;

static long cpu_us (void)
{
  struct timespec t;
  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

static void compute (long us)
{
  long until = cpu_us () + us;
  while (us > 0 && cpu_us () < until)
    for (int i = 0; i < 2000; i++)
      sum += block[i];
}

static int pass (int fd, long us)
{
  ssize_t got;
  long since = 0, total = 0;
  lseek (fd, 0, SEEK_SET);
  while ((got = read (fd, block, sizeof block)) > 0) {
    since += got;
    total += got;
    if (since >= 1 << 20) {
      since -= 1 << 20;
      compute (us);
    }
  }
  return got == 0 && total > 0;
}

int main (int argc, char **argv)
{
  int fd = argc == 4 ? open (argv[1], O_RDONLY) : -1;
  if (fd < 0)
    return 1;
  for (int left = atoi (argv[2]); left > 0; left--)
    if (!pass (fd, atol (argv[3])))
      return 1;
  return 0;
}
