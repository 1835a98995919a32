/* The least that relaying two legs costs: the same two answers and one relay, and nothing that a router decides.

       floor LISTEN PREFILL DECODE

   One engine of each role, HTTP/1.1 with Content-Length from clients, no limits, no errors, no retries: a yardstick for
   the kernel's share, not a router. It rewrites bodies in place of parsing them, as the load generator writes them. */
#include "http.h"

enum { CLIENT, LEG1, LEG2, LISTENER };
enum { SIZE, DATA, TRAILER };

struct conn {
  int fd, kind;
  bool dead, wants_out, busy, relaying, chunked;
  struct buffer in, out;
  struct conn *peer, *next;
  char *body;
  size_t body_bytes;
  char path[64], line[24];
  int part, line_bytes;
  int64_t left;
};

static int epoll;
static struct conn *idle[3], *graveyard;
static struct sockaddr_in engines[3];

static void watch(struct conn *c, int operation, bool out) {
  struct epoll_event event = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
  c->wants_out = out;
  epoll_ctl(epoll, operation, c->fd, &event);
}

static void drop(struct conn *c) {
  if (c->dead)
    return;
  struct conn *peer = c->peer;
  c->dead = true;
  close(c->fd);
  c->peer = NULL;
  for (struct conn **at = &idle[c->kind]; *at; at = &(*at)->next)
    if (*at == c) {
      *at = c->next;
      break;
    }
  c->next = graveyard;
  graveyard = c;
  if (peer) {
    peer->peer = NULL;
    drop(peer);
  }
}

static void flush(struct conn *c) {
  int sent = send_held(c->fd, &c->out);
  if (sent < 0)
    drop(c);
  else if (c->wants_out != (sent == 0))
    watch(c, EPOLL_CTL_MOD, sent == 0);
}

static void say(struct conn *c, const char *data, size_t bytes) {
  put(&c->out, data, bytes);
  flush(c);
}

/* Legs */

static struct conn *connection(int leg) {
  struct conn *c = idle[leg];
  if (c) {
    idle[leg] = c->next;
    return c;
  }
  c = calloc(1, sizeof *c);
  c->kind = leg;
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (c->fd < 0)
    fail("socket");
  no_delay(c->fd);
  connect(c->fd, (void *)&engines[leg], sizeof engines[leg]); /* what fails is found by reading */
  watch(c, EPOLL_CTL_ADD, true);
  return c;
}

static void ask(struct conn *client, int leg, const struct buffer *body) {
  struct conn *up = connection(leg);
  char head[256];
  up->peer = client;
  client->peer = up;
  up->busy = true;
  up->relaying = false;
  put(&up->out, head,
      snprintf(head, sizeof head,
               "POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n",
               client->path, held(body)));
  put(&up->out, front(body), held(body));
  if (!up->wants_out)
    flush(up);
}

static void release(struct conn *up) {
  up->peer->peer = NULL;
  up->peer = NULL;
  up->busy = false;
  up->next = idle[up->kind];
  idle[up->kind] = up;
}

/* Leg 1: one token, no stream, and the request for a handoff in place of the closing brace. */
static void ask_prefill(struct conn *client) {
  static const char handoff[] = ",\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false}}";
  struct buffer leg = {0};
  const char *body = client->body, *found;
  size_t at = 0, bytes = client->body_bytes - 1;
  if ((found = after_key(body, bytes, "\"max_tokens\""))) {
    put(&leg, body, found - body);
    put(&leg, "1", 1);
    at = found - body + strspn(found, "0123456789");
  }
  if ((found = after_key(body + at, bytes - at, "\"stream\"")) && *found == 't') {
    put(&leg, body + at, found - (body + at));
    put(&leg, "false", 5);
    at = found - body + 4;
  }
  put(&leg, body + at, bytes - at);
  put(&leg, handoff, sizeof handoff - 1);
  ask(client, LEG1, &leg);
  discard(&leg);
}

/* Leg 2: the client's body with everything from leg 1's handoff on. */
static void ask_decode(struct conn *client, const char *answer, size_t bytes) {
  const char *found = memmem(answer, bytes, "\"kv_transfer_params\"", 20);
  struct buffer leg = {0};
  if (!found) {
    drop(client);
    return;
  }
  put(&leg, client->body, client->body_bytes - 1);
  put(&leg, ",", 1);
  put(&leg, found, answer + bytes - found);
  free(client->body);
  client->body = NULL;
  ask(client, LEG2, &leg);
  discard(&leg);
}

/* Clients */

static void take_request(struct conn *c) {
  char *head = front(&c->in), *end = held(&c->in) ? memmem(head, held(&c->in), "\r\n\r\n", 4) : NULL;
  if (c->busy || !end)
    return;
  *end = 0;
  const char *said = header(head, "\r\ncontent-length:");
  size_t head_bytes = end + 4 - head, bytes = said ? strtoul(said, NULL, 10) : 0;
  *end = '\r';
  if (held(&c->in) < head_bytes + bytes)
    return;
  if (head[0] == 'G') {
    take(&c->in, head_bytes);
    say(c, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", 40);
    return;
  }
  if (!bytes || bytes > 1 << 30) {
    drop(c);
    return;
  }
  c->busy = true;
  snprintf(c->path, sizeof c->path, "%.*s", (int)strcspn(head + 5, " "), head + 5);
  c->body = malloc(bytes + 1);
  c->body_bytes = bytes;
  memcpy(c->body, end + 4, bytes);
  take(&c->in, head_bytes + bytes);
  ask_prefill(c);
}

/* Engines */

/* Follow a relayed body; true at its end. */
static bool ends(struct conn *up, const char *data, size_t bytes) {
  if (!up->chunked)
    return (up->left -= bytes) <= 0;
  for (size_t i = 0; i < bytes;) {
    if (up->part == DATA) {
      size_t piece = (int64_t)(bytes - i) > up->left ? (size_t)up->left : bytes - i;
      i += piece;
      if (!(up->left -= piece))
        up->part = SIZE;
    } else if (data[i++] != '\n') {
      if (up->line_bytes < (int)sizeof up->line - 1)
        up->line[up->line_bytes++] = data[i - 1];
    } else if (up->part == TRAILER)
      return true;
    else {
      up->line[up->line_bytes] = 0;
      up->line_bytes = 0;
      up->left = strtol(up->line, NULL, 16) + 2;
      up->part = up->left > 2 ? DATA : TRAILER;
    }
  }
  return false;
}

static void take_answer(struct conn *up) {
  struct conn *client = up->peer;
  const char *data = front(&up->in);
  size_t bytes = held(&up->in);
  if (!client) {
    drop(up);
    return;
  }
  if (!up->relaying) {
    char *end = memmem(data, bytes, "\r\n\r\n", 4);
    if (!end)
      return;
    *end = 0;
    const char *said = header(data, "\r\ncontent-length:");
    size_t length = said ? strtoul(said, NULL, 10) : 0;
    *end = '\r';
    if (up->kind == LEG1) {
      if (bytes < (size_t)(end + 4 - data) + length)
        return;
      release(up);
      ask_decode(client, end + 4, length);
      take(&up->in, bytes);
      return;
    }
    up->relaying = true;
    up->chunked = !said;
    up->left = length;
    up->part = SIZE;
    up->line_bytes = 0;
    say(client, data, end + 4 - data);
    bytes -= end + 4 - data;
    data = end + 4;
  }
  if (!client->dead && bytes)
    say(client, data, bytes);
  if (up->dead)
    return;
  bool over = ends(up, data, bytes);
  take(&up->in, held(&up->in));
  if (over) {
    release(up);
    client->busy = false;
    take_request(client);
  }
}

/* The loop */

static void accept_from(const struct conn *listener) {
  int fd;
  while ((fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    no_delay(fd);
    struct conn *c = calloc(1, sizeof *c);
    c->fd = fd;
    watch(c, EPOLL_CTL_ADD, false);
  }
}

static void handle(struct conn *c, uint32_t events) {
  if (c->kind == LISTENER) {
    accept_from(c);
    return;
  }
  if (!c->dead && (events & EPOLLOUT))
    flush(c);
  if (c->dead || !(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
    return;
  if (receive_all(c->fd, &c->in) < 0)
    drop(c);
  else if (c->kind == CLIENT)
    take_request(c);
  else
    take_answer(c);
}

static void bury(void) {
  while (graveyard) {
    struct conn *c = graveyard;
    graveyard = c->next;
    discard(&c->in);
    discard(&c->out);
    free(c->body);
    free(c);
  }
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fputs("usage: floor LISTEN PREFILL DECODE\n", stderr);
    return 2;
  }
  behave();
  epoll = epoll_create1(0);
  engines[LEG1] = loopback(atoi(argv[2]));
  engines[LEG2] = loopback(atoi(argv[3]));
  struct conn listener = {.fd = listen_on(atoi(argv[1])), .kind = LISTENER};
  watch(&listener, EPOLL_CTL_ADD, false);
  struct epoll_event events[EVENTS];
  for (;;) {
    int count = epoll_wait(epoll, events, EVENTS, -1);
    for (int i = 0; i < count; i++)
      handle(events[i].data.ptr, events[i].events);
    bury();
  }
}
