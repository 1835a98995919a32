/* A pair of inference engines in one process, so cheap that it outruns any router.

       mock

   Listens on two ports of its own choice, prints {"prefill": PORT, "decode": PORT}, and serves until it is killed.
   Leg 1 is answered with JSON that holds `kv_transfer_params`, leg 2 with server-sent events, one token each, whose
   text tells when the token was made (`@` and sixteen hex digits of CLOCK_MONOTONIC in ns, `#` and its number).

       GET /ctl?pace_us=N&in_phase=0|1&burst=N

   changes how tokens come and tells counters: `pace_us` between two tokens of a stream (0: as fast as the reader
   reads), all streams ticking together or each on its own, and how many chunks share one write. */
#include "http.h"
#include "texts.h"

enum { PREFILL, DECODE };

struct conn {
  int fd, role;
  bool listener, dead, wants_out, timed;
  struct buffer in, out;
  bool streaming, chat, ids, usage;
  long left, made;
  int64_t due_ms;
  struct conn *next, *previous;
};

static int epoll;
static long pace_us = 0, in_phase = 0, burst = 1;
static long requests, leg1, leg2, chunks, aborts, connections, active, done;
static int64_t aborted_ns;

/* Timers: a wheel of one slot a millisecond. */

#define SLOTS 8192
static struct conn wheel[SLOTS], *graveyard;
static int64_t tick_ms;

static void link_after(struct conn *head, struct conn *c) {
  c->next = head;
  c->previous = head->previous;
  head->previous->next = c;
  head->previous = c;
}

static void timer_set(struct conn *c, int64_t due_ms) {
  c->due_ms = due_ms;
  c->timed = true;
  link_after(&wheel[(due_ms > tick_ms ? due_ms : tick_ms + 1) % SLOTS], c);
}

static void timer_clear(struct conn *c) {
  if (!c->timed)
    return;
  c->next->previous = c->previous;
  c->previous->next = c->next;
  c->timed = false;
}

/* Connections */

static void want_out(struct conn *c, bool on) {
  if (c->wants_out == on)
    return;
  c->wants_out = on;
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | (on ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
}

static void drop(struct conn *c) {
  if (c->dead)
    return;
  if (c->streaming) {
    aborts++;
    active--;
    aborted_ns = now_ns();
  }
  timer_clear(c);
  close(c->fd);
  c->dead = true;
  connections--;
  c->next = graveyard; /* freed when no event of this round can point at it any more */
  graveyard = c;
}

static int flush(struct conn *c) {
  int sent = send_held(c->fd, &c->out);
  if (sent < 0)
    drop(c);
  else
    want_out(c, sent == 0);
  return sent;
}

/* Answers */

/* One token as vLLM writes it; the ids only where they were asked for, those of the prompt only once. */
static void put_token(struct conn *c) {
  static char text[8192];
  const char *ids = c->ids ? "[1234]" : "null";
  const char *prompt = c->ids && c->made == 0 ? prompt_ids : "null";
  const char *reason = c->left == 1 ? "\"length\"" : "null";
  unsigned long long stamp = now_ns();
  int bytes;
  if (c->chat)
    bytes = snprintf(text, sizeof text,
                     "data: {\"id\":\"chatcmpl-" ID "\",\"object\":\"chat.completion.chunk\",\"created\":1764470000,"
                     "\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"@%016llx#%06ld\"},"
                     "\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null,\"token_ids\":%s}],"
                     "\"prompt_token_ids\":%s}\n\n",
                     stamp, c->made, reason, ids, prompt);
  else
    bytes = snprintf(text, sizeof text,
                     "data: {\"id\":\"cmpl-" ID "\",\"object\":\"text_completion\",\"created\":1764470000,"
                     "\"model\":\"mock\",\"choices\":[{\"index\":0,\"text\":\"@%016llx#%06ld\",\"logprobs\":null,"
                     "\"finish_reason\":%s,\"stop_reason\":null,\"prompt_token_ids\":%s,\"token_ids\":%s}]}\n\n",
                     stamp, c->made, reason, prompt, ids);
  put_chunk(&c->out, text, bytes);
  c->left--;
  c->made++;
  chunks++;
}

static void put_end(struct conn *c) {
  char text[512];
  if (c->usage)
    put_chunk(&c->out, text,
              snprintf(text, sizeof text,
                       "data: {\"id\":\"cmpl-" ID "\",\"object\":\"text_completion\",\"created\":1764470000,"
                       "\"model\":\"mock\",\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%ld,"
                       "\"completion_tokens\":%ld}}\n\n",
                       PROMPT_TOKENS, PROMPT_TOKENS + c->made, c->made));
  put_chunk(&c->out, "data: [DONE]\n\n", 14);
  put(&c->out, "0\r\n\r\n", 5);
  c->streaming = false;
  active--;
  done++;
}

static void set_from(const char *path, const char *name, long *value) {
  const char *found = strstr(path, name);
  if (found)
    *value = atol(found + strlen(name));
}

static void respond_ctl(struct conn *c, const char *path) {
  char body[512];
  set_from(path, "pace_us=", &pace_us);
  set_from(path, "in_phase=", &in_phase);
  set_from(path, "burst=", &burst);
  snprintf(body, sizeof body,
           "{\"requests\":%ld,\"leg1\":%ld,\"leg2\":%ld,\"chunks\":%ld,\"aborts\":%ld,\"aborted_ns\":%lld,"
           "\"connections\":%ld,\"active\":%ld,\"done\":%ld}",
           requests, leg1, leg2, chunks, aborts, (long long)aborted_ns, connections, active, done);
  respond_text(&c->out, 200, "application/json", body);
}

static void answer_page(struct conn *c, const char *path) {
  if (!strncmp(path, "/ctl", 4)) {
    respond_ctl(c, path);
    return;
  }
  for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
    if (!strncmp(path, pages[i].path, strlen(pages[i].path))) {
      respond_text(&c->out, 200, pages[i].type, pages[i].body);
      return;
    }
  respond_text(&c->out, 404, "application/json", "{\"detail\":\"Not Found\"}");
}

static void answer_leg1(struct conn *c) {
  char body[2048];
  int bytes =
      snprintf(body, sizeof body,
               "{\"id\":\"cmpl-" ID "\",\"object\":\"%s\",\"created\":1764470000,\"model\":\"mock\","
               "\"choices\":[{\"index\":0,%s,%s",
               c->chat ? "chat.completion" : "text_completion",
               c->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\" t\"}" : "\"text\":\" t\"", leg1_rest);
  respond(&c->out, 200, "application/json", body, bytes);
}

static void answer_whole(struct conn *c, long tokens) {
  size_t room = tokens * 6 + 1024, at = 0;
  char *body = malloc(room);
  at += snprintf(body, room,
                 "{\"id\":\"cmpl-" ID "\",\"object\":\"%s\",\"created\":1764470000,\"model\":\"mock\",\"choices\":"
                 "[{\"index\":0,%s",
                 c->chat ? "chat.completion" : "text_completion",
                 c->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"");
  for (long i = 0; i < tokens; i++, at += 6)
    memcpy(body + at, " token", 6);
  at += snprintf(body + at, room - at,
                 "%s,\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}],\"usage\":{"
                 "\"prompt_tokens\":%d,\"total_tokens\":%ld,\"completion_tokens\":%ld,\"prompt_tokens_details\":null},"
                 "\"kv_transfer_params\":null}",
                 c->chat ? "\"}" : "\"", PROMPT_TOKENS, PROMPT_TOKENS + tokens, tokens);
  respond(&c->out, 200, "application/json", body, at);
  free(body);
}

static void answer_generation(struct conn *c, const char *path, const char *body, size_t bytes) {
  static const char head[] = "HTTP/1.1 200 OK\r\ndate: Sun, 30 Nov 2025 03:00:00 GMT\r\nserver: uvicorn\r\n"
                             "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
  bool stream = is_true(body, bytes, "\"stream\"");
  const char *limit = after_key(body, bytes, "\"max_tokens\"");
  limit = limit ? limit : after_key(body, bytes, "\"max_completion_tokens\"");
  long tokens = limit ? atol(limit) : 16;
  requests++;
  c->chat = strstr(path, "chat") != NULL;
  if (c->role == PREFILL || is_true(body, bytes, "\"do_remote_decode\"")) {
    leg1++;
    if (!stream) {
      answer_leg1(c);
      return;
    }
    tokens = 1;
  } else
    leg2++;
  if (!stream) {
    answer_whole(c, tokens);
    return;
  }
  put(&c->out, head, sizeof head - 1);
  c->ids = is_true(body, bytes, "\"return_token_ids\"");
  c->usage = is_true(body, bytes, "\"include_usage\"");
  c->streaming = true;
  c->left = tokens;
  c->made = 0;
  c->due_ms = tick_ms;
  active++;
}

/* Streams */

static int64_t next_due(const struct conn *c) {
  int64_t interval = pace_us >= 1000 ? pace_us / 1000 : 1;
  if (in_phase)
    return (tick_ms / interval + 1) * interval;
  return c->made == 1 ? tick_ms + 1 + rand() % interval : c->due_ms + interval;
}

static void converse(struct conn *c);

/* Make tokens until the next is not due, or the reader is full. */
static void pump(struct conn *c) {
  while (c->streaming) {
    for (long i = 0; i < (pace_us ? 1 : burst) && c->left; i++)
      put_token(c);
    if (!c->left)
      put_end(c);
    int sent = flush(c);
    if (sent < 0)
      return;
    if (c->streaming && pace_us) {
      timer_set(c, next_due(c));
      return;
    }
    if (sent == 0)
      return;
  }
  converse(c);
}

/* Requests */

/* Answer the requests that are here whole, until one of them streams. */
static void converse(struct conn *c) {
  while (!c->dead && !c->streaming && held(&c->in)) {
    char *head = front(&c->in), *end = memmem(head, held(&c->in), "\r\n\r\n", 4);
    if (!end)
      return;
    *end = 0;
    bool post = !strncmp(head, "POST ", 5);
    if (!post && strncmp(head, "GET ", 4)) { /* a peer asks whether we speak gRPC */
      drop(c);
      return;
    }
    const char *coding = header(head, "\r\ntransfer-encoding:"), *said = header(head, "\r\ncontent-length:");
    size_t head_bytes = end + 4 - head, here = held(&c->in) - head_bytes, used = said ? strtoul(said, NULL, 10) : 0;
    ssize_t bytes = used;
    if (coding && !strncasecmp(coding, "chunked", 7))
      bytes = unchunk(end + 4, here, &used);
    if (bytes < 0 || here < used) {
      *end = '\r';
      return;
    }
    char *path = head + (post ? 5 : 4);
    path[strcspn(path, " ")] = 0;
    if (post)
      answer_generation(c, path, end + 4, bytes);
    else
      answer_page(c, path);
    take(&c->in, head_bytes + used);
    if (c->streaming)
      pump(c);
    else if (flush(c) < 0)
      return;
  }
}

/* The loop */

static void add_listener(int role) {
  struct conn *c = calloc(1, sizeof *c);
  *c = (struct conn){.fd = listen_on(0), .role = role, .listener = true};
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
  printf("%s%d", role == PREFILL ? "{\"prefill\": " : ", \"decode\": ", port_of(c->fd));
}

static void accept_from(const struct conn *listener) {
  int fd;
  while ((fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    no_delay(fd);
    struct conn *c = calloc(1, sizeof *c);
    *c = (struct conn){.fd = fd, .role = listener->role};
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    connections++;
  }
}

static void handle(struct conn *c, uint32_t events) {
  if (c->listener) {
    accept_from(c);
    return;
  }
  if (c->dead)
    return;
  if (events & (EPOLLERR | EPOLLHUP)) {
    drop(c);
    return;
  }
  if (events & EPOLLIN) {
    if (receive_all(c->fd, &c->in) < 0) {
      drop(c);
      return;
    }
    converse(c);
  }
  if (!c->dead && (events & EPOLLOUT) && flush(c) > 0 && c->streaming && !pace_us)
    pump(c);
}

static void run_timers(void) {
  int64_t now_ms = now_ns() / 1000000;
  for (; tick_ms < now_ms;) {
    tick_ms++;
    struct conn *head = &wheel[tick_ms % SLOTS], due;
    if (head->next == head)
      continue;
    due.next = head->next; /* a list of its own: pumping adds timers */
    due.previous = head->previous;
    due.next->previous = due.previous->next = &due;
    head->next = head->previous = head;
    while (due.next != &due) {
      struct conn *c = due.next;
      timer_clear(c);
      if (c->due_ms > tick_ms)
        timer_set(c, c->due_ms);
      else
        pump(c);
    }
  }
}

static void bury(void) {
  while (graveyard) {
    struct conn *c = graveyard;
    graveyard = c->next;
    discard(&c->in);
    discard(&c->out);
    free(c);
  }
}

int main(void) {
  behave();
  epoll = epoll_create1(0);
  for (int i = 0; i < SLOTS; i++)
    wheel[i].next = wheel[i].previous = &wheel[i];
  for (int i = 0, at = 0; i < PROMPT_TOKENS; i++)
    at += sprintf(prompt_ids + at, "%c%d%s", i ? ',' : '[', 1000 + i, i == PROMPT_TOKENS - 1 ? "]" : "");
  add_listener(PREFILL);
  add_listener(DECODE);
  puts("}");
  fflush(stdout);
  tick_ms = now_ns() / 1000000;
  struct epoll_event events[EVENTS];
  for (;;) {
    int count = epoll_wait(epoll, events, EVENTS, pace_us && active ? 1 : 1000);
    for (int i = 0; i < count; i++)
      handle(events[i].data.ptr, events[i].events);
    run_timers();
    bury();
  }
}
