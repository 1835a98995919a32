/* The bytes of one connection of the load generator, plain or under TLS. Errors as those of send(2) and recv(2). */
#ifndef NARWHAL_BENCH_WIRE_H
#define NARWHAL_BENCH_WIRE_H
#include "common.h"

struct wire {
  int fd;
  void *tls;
  bool wants_out; /* what a write that was not done waits for: room, or (TLS) something to read */
};

#ifdef WITH_TLS
#include <openssl/ssl.h>

static inline void *tls_begin(int fd) {
  static SSL_CTX *context;
  if (!context) {
    context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(context,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  }
  SSL *tls = SSL_new(context);
  SSL_set_fd(tls, fd);
  SSL_set_connect_state(tls);
  return tls;
}

static inline ssize_t tls_result(struct wire *w, int moved) {
  if (moved > 0)
    return moved;
  int why = SSL_get_error(w->tls, moved);
  if (why == SSL_ERROR_ZERO_RETURN)
    return 0;
  w->wants_out = why == SSL_ERROR_WANT_WRITE;
  errno = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNRESET;
  return -1;
}

static inline ssize_t tls_send(struct wire *w, const void *data, size_t bytes) {
  return tls_result(w, SSL_write(w->tls, data, bytes));
}

static inline ssize_t tls_receive(struct wire *w, void *data, size_t room) {
  return tls_result(w, SSL_read(w->tls, data, room));
}

static inline void tls_end(struct wire *w) { SSL_free(w->tls); }
#else
static inline void *tls_begin(int fd) {
  (void)fd;
  fputs("load: built without TLS\n", stderr);
  exit(3);
}
static inline ssize_t tls_send(struct wire *w, const void *data, size_t bytes) { return (void)w, (void)data, bytes; }
static inline ssize_t tls_receive(struct wire *w, void *data, size_t room) { return (void)w, (void)data, room; }
static inline void tls_end(struct wire *w) { (void)w; }
#endif

static inline ssize_t wire_send(struct wire *w, const void *data, size_t bytes) {
  if (w->tls)
    return tls_send(w, data, bytes);
  w->wants_out = true;
  return send(w->fd, data, bytes, MSG_NOSIGNAL);
}

static inline ssize_t wire_receive(struct wire *w, void *data, size_t room) {
  return w->tls ? tls_receive(w, data, room) : recv(w->fd, data, room, 0);
}

static inline void wire_end(struct wire *w) {
  if (w->tls)
    tls_end(w);
  if (w->fd >= 0)
    close(w->fd);
  *w = (struct wire){.fd = -1};
}

#endif
