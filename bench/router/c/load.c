/* A load generator that is cheaper than any router. One JSON line at the end tells what came back.

       load --port P [--connections N] [--requests N] [--rate PER_S] [--stream] [--tokens N] [--body BYTES]
            [--ramp PER_S] [--opening N] [--seconds S] [--plain] [--tls] [--ttft-ms MS] [--tpot-ms MS]

   Closed loop: each connection asks again when it is answered. With --ramp, connections begin that many a second while
   fewer than --opening wait for their first answer; with --requests equal to --connections each asks once. Open loop
   with --rate: Poisson arrivals on any idle connection (`dropped` counts arrivals that found none). A stream of the
   mock is checked token by token, and each token's way is timed from its stamp; --plain takes any engine's streams.
   `within` counts streams within both targets. */
#include "histogram.h"
#include "http.h"
#include "options.h"
#include "wire.h"

#define PROMPTS 64
enum { SIZE, DATA, DATA_END, TRAILER };

struct conn {
  struct wire wire;
  bool busy, connecting, have_head, chunked, closes;
  int status;
  int64_t left, began_ns, first_ns, last_ns;
  int part;
  char line[24];
  int line_bytes;
  long tokens;
  int mark;
  char stamp[24], tail[16];
  struct buffer head;
  const char *request;
  size_t unsent;
};

static int epoll;
static struct histogram first_byte, chunk_delay, whole, refusal;
static long ok, failed, refused, within, began, ended, dropped, chunks, reads, bytes_read, out_of_order;
static int bad_status; /* of the last answer that was not 200 */
static char *texts[PROMPTS];
static size_t text_bytes[PROMPTS];
static struct conn *conns;
static int *idle, idles, waiting; /* waiting: for the head of an answer */
static int64_t started_ns;

/* Requests */

static void make_texts(void) {
  srand(getpid());
  for (int i = 0; i < PROMPTS; i++) {
    char *body = malloc(body_bytes + 512), rest[160];
    int rest_bytes = sprintf(rest, "\",\"max_tokens\":%d,\"ignore_eos\":true,\"temperature\":0.7%s}", tokens,
                             stream ? ",\"stream\":true" : "");
    int at = sprintf(body, "{\"model\":\"mock\",\"prompt\":\"");
    for (int word = 0; at < body_bytes - rest_bytes; at++) {
      word = word ? word - 1 : 2 + rand() % 8;
      body[at] = word ? 'a' + rand() % 26 : ' ';
    }
    memcpy(body + at, rest, rest_bytes);
    at += rest_bytes;
    texts[i] = malloc(at + 512);
    int head = sprintf(texts[i],
                       "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nuser-agent: load/1\r\naccept: */*\r\n"
                       "content-type: application/json\r\nauthorization: Bearer sk-none\r\ncontent-length: %d\r\n\r\n",
                       port, at);
    memcpy(texts[i] + head, body, at);
    text_bytes[i] = head + at;
    free(body);
  }
}

static void watch(struct conn *c, int operation, bool out) {
  struct epoll_event event = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(epoll, operation, c->wire.fd, &event);
}

static void begin(struct conn *c);

/* A request is over: `good`, or failed. */
static void end(struct conn *c, bool good) {
  ended++;
  waiting -= !c->have_head;
  c->busy = false;
  if (good)
    ok++;
  else
    failed++;
  if (!good || c->closes)
    wire_end(&c->wire);
  if (rate > 0)
    idle[idles++] = c - conns;
  else
    begin(c);
}

static void write_rest(struct conn *c) {
  while (c->unsent) {
    ssize_t sent = wire_send(&c->wire, c->request, c->unsent);
    if (sent < 0) {
      if (errno == EAGAIN)
        watch(c, EPOLL_CTL_MOD, c->wire.wants_out);
      return; /* a broken connection is found by reading */
    }
    c->request += sent;
    c->unsent -= sent;
  }
}

static bool dial(struct conn *c) {
  struct sockaddr_in address = loopback(port);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (fd < 0)
    fail("socket");
  no_delay(fd);
  if (connect(fd, (void *)&address, sizeof address) < 0 && errno != EINPROGRESS) {
    close(fd);
    return false;
  }
  c->wire = (struct wire){.fd = fd, .tls = tls ? tls_begin(fd) : NULL};
  watch(c, EPOLL_CTL_ADD, true);
  c->connecting = true;
  return true;
}

static void begin(struct conn *c) {
  if (began >= requests || (now_ns() - started_ns) * 1e-9 > seconds)
    return;
  struct conn fresh = {.wire = c->wire, .busy = true, .left = -1, .began_ns = now_ns()};
  discard(&c->head);
  fresh.request = texts[began % PROMPTS];
  fresh.unsent = text_bytes[began % PROMPTS];
  *c = fresh;
  began++;
  waiting++;
  if (c->wire.fd >= 0)
    write_rest(c);
  else if (!dial(c)) {
    c->busy = false;
    waiting--;
    ended++;
    failed++;
  }
}

/* Answers */

/* Follow `@stamp#number` in the mock's tokens, which a read may cut anywhere. */
static void follow_tokens(struct conn *c, const char *data, size_t bytes, int64_t now) {
  for (size_t i = 0; i < bytes;) {
    if (!c->mark) {
      const char *at = memchr(data + i, '@', bytes - i);
      if (!at)
        return;
      i = at - data + 1;
      c->mark = 1;
      continue;
    }
    c->stamp[c->mark - 1] = data[i++];
    if (++c->mark <= 23)
      continue;
    c->mark = 0;
    c->stamp[16] = c->stamp[23] = 0;
    out_of_order += atol(c->stamp + 17) != c->tokens;
    count(&chunk_delay, now - (int64_t)strtoull(c->stamp, NULL, 16));
    c->tokens++;
    chunks++;
  }
}

static void take_payload(struct conn *c, const char *data, size_t bytes) {
  if (!bytes)
    return;
  c->last_ns = now_ns();
  if (!c->first_ns) {
    c->first_ns = c->last_ns;
    if (c->status == 200)
      count(&first_byte, c->first_ns - c->began_ns);
  }
  size_t kept = sizeof c->tail, fresh = bytes < kept ? bytes : kept;
  memmove(c->tail, c->tail + fresh, kept - fresh);
  memcpy(c->tail + kept - fresh, data + bytes - fresh, fresh);
  if (stream && !plain && c->status == 200)
    follow_tokens(c, data, bytes, c->last_ns);
}

static void complete(struct conn *c) {
  int64_t now = now_ns();
  bool good = c->status == 200;
  if (!good)
    bad_status = c->status;
  if (good && stream)
    good = memmem(c->tail, sizeof c->tail, "[DONE]", 6) && (plain || c->tokens == tokens);
  if (c->status == 429 || c->status == 503) {
    refused++;
    count(&refusal, now - c->began_ns);
  } else if (good) {
    double tpot = tokens > 1 ? (c->last_ns - c->first_ns) * 1e-6 / (tokens - 1) : 0;
    count(&whole, now - c->began_ns);
    within += (c->first_ns - c->began_ns) * 1e-6 <= ttft_ms && tpot <= tpot_ms;
  }
  end(c, good);
}

/* Take bytes of a body; true when it is complete. */
static bool take_body(struct conn *c, const char *data, size_t bytes) {
  if (!c->chunked) {
    size_t piece = c->left >= 0 && (int64_t)bytes > c->left ? (size_t)c->left : bytes;
    take_payload(c, data, piece);
    c->left -= c->left >= 0 ? (int64_t)piece : 0;
    return c->left == 0;
  }
  for (size_t i = 0; i < bytes;) {
    if (c->part == DATA || c->part == DATA_END) {
      size_t piece = (int64_t)(bytes - i) > c->left ? (size_t)c->left : bytes - i;
      if (c->part == DATA)
        take_payload(c, data + i, piece);
      i += piece;
      c->left -= piece;
      if (!c->left) {
        c->left = c->part == DATA ? 2 : -1;
        c->part = c->part == DATA ? DATA_END : SIZE;
      }
      continue;
    }
    char letter = data[i++];
    if (letter != '\n') {
      if (letter != '\r' && c->line_bytes < (int)sizeof c->line - 1)
        c->line[c->line_bytes++] = letter;
      continue;
    }
    c->line[c->line_bytes] = 0;
    if (c->part == TRAILER && !c->line_bytes)
      return true;
    if (c->part == SIZE) {
      c->left = strtol(c->line, NULL, 16);
      c->part = c->left ? DATA : TRAILER;
    }
    c->line_bytes = 0;
  }
  return false;
}

/* Take bytes of an answer. */
static void take_answer(struct conn *c, const char *data, size_t bytes) {
  if (c->have_head) {
    if (take_body(c, data, bytes))
      complete(c);
    return;
  }
  put(&c->head, data, bytes);
  char *head = front(&c->head), *stop = memmem(head, held(&c->head), "\r\n\r\n", 4);
  if (!stop)
    return;
  *stop = 0;
  const char *coding = header(head, "\r\ntransfer-encoding:"), *length = header(head, "\r\ncontent-length:");
  const char *close = header(head, "\r\nconnection:");
  c->status = atoi(head + 9);
  c->chunked = coding && !strncasecmp(coding, "chunked", 7);
  c->left = length && !c->chunked ? atoll(length) : -1;
  c->closes = close && !strncasecmp(close, "close", 5);
  c->have_head = true;
  waiting--;
  size_t rest = held(&c->head) - (stop + 4 - head);
  if ((!c->chunked && c->left == 0) || (rest && take_body(c, stop + 4, rest)))
    complete(c);
}

static void read_from(struct conn *c) {
  static char data[1 << 18];
  while (c->wire.fd >= 0) {
    ssize_t got = wire_receive(&c->wire, data, sizeof data);
    if (got < 0 && errno == EAGAIN)
      return;
    if (got <= 0) {
      bool until_end = got == 0 && c->busy && c->have_head && !c->chunked && c->left < 0;
      c->closes = true;
      if (until_end)
        complete(c);
      else if (c->busy)
        end(c, false);
      else
        wire_end(&c->wire);
      return;
    }
    reads++;
    bytes_read += got;
    if (c->busy)
      take_answer(c, data, got);
    if ((size_t)got < sizeof data && !c->wire.tls) /* under TLS a read ends with its record */
      return;
  }
}

static void handle(struct conn *c, uint32_t events) {
  if (c->wire.fd < 0)
    return;
  if (c->connecting && (events & (EPOLLOUT | EPOLLERR))) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(c->wire.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    c->connecting = false;
    if (error) {
      end(c, false);
      return;
    }
  }
  if (events & EPOLLOUT)
    watch(c, EPOLL_CTL_MOD, false);
  if (c->unsent)
    write_rest(c);
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
    read_from(c);
}

/* The loop */

static int start_due(int *launched, double *next_s, double elapsed_s) {
  if (rate <= 0) {
    int due = ramp > 0 ? (int)(elapsed_s * ramp) + 1 : connections;
    while (*launched < due && *launched < connections && waiting < opening)
      begin(&conns[(*launched)++]);
    return *launched < connections ? 1 : 100;
  }
  for (; began < requests && elapsed_s <= seconds && *next_s <= elapsed_s;
       *next_s -= log((rand() + 1.0) / (RAND_MAX + 2.0)) / rate) {
    if (idles)
      begin(&conns[idle[--idles]]);
    else
      dropped++;
  }
  if (began >= requests || elapsed_s > seconds)
    return 100;
  return *next_s > elapsed_s ? (int)((*next_s - elapsed_s) * 1000) : 0;
}

static void run(void) {
  struct epoll_event events[EVENTS];
  int launched = rate > 0 ? connections : 0;
  double next_s = 0;
  for (;;) {
    double elapsed_s = (now_ns() - started_ns) * 1e-9;
    int wait_ms = start_due(&launched, &next_s, elapsed_s);
    bool no_more = began >= requests || elapsed_s > seconds;
    if ((ended >= began && no_more) || elapsed_s > seconds + 60)
      return;
    int n = epoll_wait(epoll, events, EVENTS, wait_ms);
    for (int i = 0; i < n; i++)
      handle(events[i].data.ptr, events[i].events);
  }
}

int main(int argc, char **argv) {
  behave();
  read_options(argc, argv);
  make_texts();
  epoll = epoll_create1(0);
  conns = calloc(connections, sizeof *conns);
  idle = malloc(sizeof *idle * connections);
  for (int i = 0; i < connections; i++) {
    conns[i].wire.fd = -1;
    if (rate > 0)
      idle[idles++] = connections - 1 - i;
  }
  started_ns = now_ns();
  run();
  printf("{\"ok\":%ld,\"failed\":%ld,\"refused\":%ld,\"within\":%ld,\"unfinished\":%ld,\"dropped\":%ld,"
         "\"bad_status\":%d,\"out_of_order\":%ld,\"chunks\":%ld,\"reads\":%ld,\"bytes\":%ld,\"seconds\":%.4f",
         ok, failed - refused, refused, within, began - ended, dropped, bad_status, out_of_order, chunks, reads,
         bytes_read, (now_ns() - started_ns) * 1e-9);
  print_ms("first_byte_ms", &first_byte);
  print_ms("chunk_delay_ms", &chunk_delay);
  print_ms("whole_ms", &whole);
  print_ms("refusal_ms", &refusal);
  puts("}");
  return 0;
}
