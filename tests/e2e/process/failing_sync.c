/* Loaded into the program by LD_PRELOAD: while the file that SYNC_FAILS names is there, a sync by the store's writer reports a failure
   after it has been made. What was written before it is on the disk all the same. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static int synced(const char *function, int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, function);
    int result = real(file);
    char thread[16] = "";
    prctl(PR_GET_NAME, thread);
    const char *fails = getenv("SYNC_FAILS");
    if (result == 0 && fails && strcmp(thread, "store") == 0 && access(fails, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    return result;
}

int fsync(int file) { return synced("fsync", file); }

int fdatasync(int file) { return synced("fdatasync", file); }
