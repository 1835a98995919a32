/* What the load generator is told; load.c says what it means. */
#ifndef NARWHAL_BENCH_OPTIONS_H
#define NARWHAL_BENCH_OPTIONS_H
#include "common.h"

static int port, connections = 1, tokens = 16, body_bytes = 500, opening = 1 << 30;
static bool stream, plain, tls;
static long requests = 1000;
static double rate, ramp, seconds = 600, ttft_ms = 1e9, tpot_ms = 1e9;
static struct option options[] = {
    {"port", 1, 0, 'p'},    {"connections", 1, 0, 'c'}, {"requests", 1, 0, 'n'},
    {"rate", 1, 0, 'r'},    {"stream", 0, 0, 's'},      {"tokens", 1, 0, 't'},
    {"body", 1, 0, 'b'},    {"ramp", 1, 0, 'R'},        {"opening", 1, 0, 'o'},
    {"seconds", 1, 0, 'd'}, {"plain", 0, 0, 'P'},       {"tls", 0, 0, 'S'},
    {"ttft-ms", 1, 0, 'T'}, {"tpot-ms", 1, 0, 'O'},     {0},
};

static void read_options(int argc, char **argv) {
  int option;
  while ((option = getopt_long(argc, argv, "", options, NULL)) > 0) {
    double value = optarg ? atof(optarg) : 0;
    switch (option) {
    case 'p': port = value; break;
    case 'c': connections = value; break;
    case 'n': requests = value; break;
    case 'r': rate = value; break;
    case 's': stream = true; break;
    case 't': tokens = value; break;
    case 'b': body_bytes = value; break;
    case 'R': ramp = value; break;
    case 'o': opening = value; break;
    case 'd': seconds = value; break;
    case 'P': plain = true; break;
    case 'S': tls = true; break;
    case 'T': ttft_ms = value; break;
    case 'O': tpot_ms = value; break;
    default: exit(2);
    }
  }
}

#endif
