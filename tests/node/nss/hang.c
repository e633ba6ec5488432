/* A name service (nsswitch.conf: "files hang") that knows nobody, and says nothing while GATE is
 * there. As a directory server that does not answer. */
#include <errno.h>
#include <grp.h>
#include <nss.h>
#include <pwd.h>
#include <unistd.h>

static enum nss_status nobody(int *errnop)
{
    while (access(GATE, F_OK) == 0)
        usleep(10000);
    *errnop = ENOENT;
    return NSS_STATUS_NOTFOUND;
}

enum nss_status _nss_hang_getpwuid_r(uid_t uid, struct passwd *p, char *b, size_t n, int *e)
{
    return nobody(e);
}

enum nss_status _nss_hang_getpwnam_r(const char *name, struct passwd *p, char *b, size_t n, int *e)
{
    return nobody(e);
}

enum nss_status _nss_hang_getgrnam_r(const char *name, struct group *g, char *b, size_t n, int *e)
{
    return nobody(e);
}

enum nss_status _nss_hang_getgrgid_r(gid_t gid, struct group *g, char *b, size_t n, int *e)
{
    return nobody(e);
}

enum nss_status _nss_hang_initgroups_dyn(const char *user, gid_t group, long *start, long *size,
                                         gid_t **groups, long limit, int *e)
{
    return nobody(e);
}
