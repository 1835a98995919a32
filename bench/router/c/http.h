/* As much of HTTP as the tools need. */
#ifndef NARWHAL_BENCH_HTTP_H
#define NARWHAL_BENCH_HTTP_H
#include "common.h"

/* The value of a header in a zero-terminated head, or NULL. `name` is written "\r\nname:". */
static inline const char *header(const char *head, const char *name) {
  const char *found = strcasestr(head, name);
  return found ? found + strlen(name) + strspn(found + strlen(name), " ") : NULL;
}

static inline void put_chunk(struct buffer *out, const char *text, size_t bytes) {
  char size[24];
  put(out, size, snprintf(size, sizeof size, "%zx\r\n", bytes));
  put(out, text, bytes);
  put(out, "\r\n", 2);
}

static inline void respond(struct buffer *out, int status, const char *type, const char *body, size_t bytes) {
  char head[256];
  put(out, head,
      snprintf(head, sizeof head,
               "HTTP/1.1 %d X\r\ndate: Sun, 30 Nov 2025 03:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %zu\r\n"
               "content-type: %s\r\n\r\n",
               status, bytes, type));
  put(out, body, bytes);
}

static inline void respond_text(struct buffer *out, int status, const char *type, const char *body) {
  respond(out, status, type, body, strlen(body));
}

/* Size of a chunked body in place of its framing; -1: it is not complete. `used`: bytes with framing. */
static inline ssize_t unchunk(char *body, size_t bytes, size_t *used) {
  char *at = body, *end = body + bytes, *line;
  size_t size = 0, length = 0;
  for (;;) {
    if (!(line = memmem(at, end - at, "\r\n", 2)))
      return -1;
    size = strtoul(at, NULL, 16);
    if ((size_t)(end - line) < size + 4)
      return -1;
    at = line + 4 + size;
    if (!size)
      break;
  }
  *used = at - body;
  for (at = body;; at = line + 4 + size) {
    line = memmem(at, end - at, "\r\n", 2);
    if (!(size = strtoul(at, NULL, 16)))
      return length;
    memmove(body + length, line + 2, size);
    length += size;
  }
}

/* Where the value of a JSON key begins, or NULL; nothing is parsed. */
static inline const char *after_key(const char *body, size_t bytes, const char *key) {
  const char *found = memmem(body, bytes, key, strlen(key));
  return found ? found + strlen(key) + strspn(found + strlen(key), " :") : NULL;
}

static inline bool is_true(const char *body, size_t bytes, const char *key) {
  const char *value = after_key(body, bytes, key);
  return value && *value == 't';
}

#endif
