// Gives the programs that preload it another time of day: CLOCK_AWAY seconds ahead. libfaketime breaks the sleep of Python 3.11.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += atol(getenv("CLOCK_AWAY"));
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec time;
    int failed = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec, now->tv_usec = time.tv_nsec / 1000;
    return failed;
}
time_t time(time_t *now) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (now) *now = time.tv_sec;
    return time.tv_sec;
}
