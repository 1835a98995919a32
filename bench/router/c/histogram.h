/* Times in nanoseconds, counted. */
#ifndef NARWHAL_BENCH_HISTOGRAM_H
#define NARWHAL_BENCH_HISTOGRAM_H
#include "common.h"

/* Histograms with 64 buckets to each power of two: an error below one in a hundred. */
struct histogram {
  long counts[64 * 44], n;
  double sum;
  int64_t max;
};

static void count(struct histogram *h, int64_t value) {
  if (value < 0)
    value = 0;
  int power = value < 64 ? 0 : 63 - __builtin_clzll(value);
  int bucket = value < 64 ? value : (power - 5) * 64 + ((value >> (power - 6)) & 63);
  h->counts[bucket < 64 * 44 ? bucket : 64 * 44 - 1]++;
  h->n++;
  h->sum += value;
  if (value > h->max)
    h->max = value;
}

static double quantile(const struct histogram *h, double q) {
  long wanted = ceil(h->n * q), seen = 0;
  if (!h->n)
    return 0;
  for (int i = 0; i < 64 * 44; i++)
    if ((seen += h->counts[i]) >= (wanted < 1 ? 1 : wanted))
      return i < 64 ? i : (double)((64ull + i % 64) << (i / 64 - 1)) * (1 + 0.5 / 64);
  return h->max;
}

static void print_ms(const char *name, const struct histogram *h) {
  printf(",\"%s\":{\"n\":%ld,\"mean\":%.4f,\"p50\":%.4f,\"p90\":%.4f,\"p99\":%.4f,\"max\":%.4f}", name, h->n,
         h->n ? h->sum / h->n * 1e-6 : 0, quantile(h, .5) * 1e-6, quantile(h, .9) * 1e-6, quantile(h, .99) * 1e-6,
         h->max * 1e-6);
}

#endif
