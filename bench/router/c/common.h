/* What the tools of this bench share. */
#ifndef NARWHAL_BENCH_COMMON_H
#define NARWHAL_BENCH_COMMON_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 512

/* CLOCK_MONOTONIC, the clock of Python's time.monotonic_ns. */
static inline int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Whoever started us has gone: so do we. A peer that went is an error code, not a signal. */
static inline void behave(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

static inline void fail(const char *what) {
  perror(what);
  exit(1);
}

static inline void no_delay(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static inline struct sockaddr_in loopback(int port) {
  return (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* A listening socket on loopback; port 0: any. */
static inline int listen_on(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in address = loopback(port);
  if (bind(fd, (void *)&address, sizeof address) || listen(fd, 8192))
    fail("listen");
  return fd;
}

static inline int port_of(int fd) {
  struct sockaddr_in address;
  socklen_t size = sizeof address;
  getsockname(fd, (void *)&address, &size);
  return ntohs(address.sin_port);
}

/* Bytes that grow at the end and are taken from the front. */
struct buffer {
  char *data;
  size_t start, end, room;
};

static inline size_t held(const struct buffer *b) { return b->end - b->start; }
static inline char *front(const struct buffer *b) { return b->data + b->start; }

/* Make room for so many bytes, and one more for a terminating zero. */
static inline void reserve(struct buffer *b, size_t bytes) {
  if (b->end + bytes + 1 <= b->room)
    return;
  if (b->start) {
    memmove(b->data, front(b), held(b));
    b->end -= b->start;
    b->start = 0;
  }
  if (b->end + bytes + 1 > b->room) {
    b->room = (b->end + bytes + 1) * 2;
    b->data = realloc(b->data, b->room);
    if (!b->data)
      fail("realloc");
  }
}

static inline void put(struct buffer *b, const void *data, size_t bytes) {
  reserve(b, bytes);
  memcpy(b->data + b->end, data, bytes);
  b->end += bytes;
}

/* Forget the first bytes; an empty large buffer is given back. */
static inline void take(struct buffer *b, size_t bytes) {
  b->start += bytes;
  if (b->start < b->end)
    return;
  b->start = b->end = 0;
  if (b->room > 65536) {
    free(b->data);
    *b = (struct buffer){0};
  }
}

static inline void discard(struct buffer *b) {
  free(b->data);
  *b = (struct buffer){0};
}

/* Send what is held. 1: all is sent; 0: the socket is full; -1: the connection is broken. */
static inline int send_held(int fd, struct buffer *b) {
  while (held(b)) {
    ssize_t sent = send(fd, front(b), held(b), MSG_NOSIGNAL);
    if (sent < 0)
      return errno == EAGAIN ? 0 : -1;
    take(b, sent);
  }
  return 1;
}

/* Read what is there. 1: read; -1: the peer closed or the connection is broken. */
static inline int receive_all(int fd, struct buffer *b) {
  for (;;) {
    reserve(b, 8192);
    size_t room = b->room - b->end - 1;
    ssize_t got = recv(fd, b->data + b->end, room, 0);
    if (got < 0)
      return errno == EAGAIN ? 1 : -1;
    if (got == 0)
      return -1;
    b->end += got;
    if ((size_t)got < room)
      return 1;
  }
}

#endif
