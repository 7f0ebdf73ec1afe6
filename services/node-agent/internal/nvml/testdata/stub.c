/* A stand-in for libnvidia-ml.so.1: the few functions that the adapter calls, over devices whose state is one character
 * each of the file named by WEFT_NVMLSTUB:
 *   o works   l lost (and XID 79 when it becomes so)   n works, XID 31 when it becomes so
 *   h calls about its memory never return   x not listed   c asking its memory ends the process as a missing symbol does
 * With -DOLD the newer functions are left out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
enum { OK = 0, NOT_SUPPORTED = 3, INVALID = 2, TIMEOUT = 10, LOST = 15 };

#define MAX 16
struct device { int i; };
static struct device devices[MAX];
struct set { int i; char last; };

static int states(char *out) {
  const char *path = getenv("WEFT_NVMLSTUB");
  FILE *f = path ? fopen(path, "r") : NULL;
  int n = 0;
  if (f) {
    n = (int)fread(out, 1, MAX, f);
    fclose(f);
  }
  while (n > 0 && out[n - 1] == '\n') n--;
  return n;
}

static char state(const struct device *d) {
  char s[MAX];
  return d->i < states(s) ? s[d->i] : 'x';
}

static int gone(const struct device *d) {
  char c = state(d);
  return c == 'l' || c == 'x';
}

const char *nvmlErrorString(int r) { return r == LOST ? "GPU is lost" : "error of the stub"; }
int nvmlInit_v2(void) { return getenv("WEFT_NVMLSTUB") ? OK : 9; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *v, u32 n) { return snprintf(v, n, "580.65.06"), OK; }

int nvmlDeviceGetCount_v2(u32 *n) {
  char s[MAX];
  int all = states(s);
  *n = 0;
  for (int i = 0; i < all; i++) *n += s[i] != 'x';
  return OK;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, struct device **d) {
  char s[MAX];
  int all = states(s);
  for (int i = 0; i < all; i++) {
    if (s[i] == 'x') continue;
    if (index-- == 0) {
      devices[i].i = i;
      *d = &devices[i];
      return OK;
    }
  }
  return INVALID;
}

int nvmlDeviceGetUUID(struct device *d, char *out, u32 n) {
  if (gone(d)) return LOST;
  snprintf(out, n, "GPU-57ab0000-0000-0000-0000-%012d", d->i);
  return OK;
}

/* Minors run against the order of the bus. */
int nvmlDeviceGetMinorNumber(struct device *d, u32 *m) { return *m = 7 - d->i, OK; }
int nvmlDeviceGetName(struct device *d, char *out, u32 n) { return snprintf(out, n, "NVIDIA A100-SXM4-80GB"), OK; }

struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(struct device *d, struct pci *p) {
  memset(p, 0, sizeof *p);
  snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", 0x07 + 8 * d->i);
  return OK;
}

static int touch(struct device *d) {
  switch (state(d)) {
  case 'h': for (;;) pause();
  case 'c': fprintf(stderr, "symbol lookup error: undefined symbol: nvmlStub\n"); _exit(127);
  case 'l': case 'x': return LOST;
  }
  return OK;
}

struct memory { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(struct device *d, struct memory *m) {
  int r = touch(d);
  m->total = 81920ull << 20, m->used = 1ull << 30, m->free = m->total - m->used;
  return r;
}

struct rates { u32 gpu, memory; };
int nvmlDeviceGetUtilizationRates(struct device *d, struct rates *u) { return u->gpu = 37, u->memory = 12, OK; }
int nvmlDeviceGetTemperature(struct device *d, u32 sensor, u32 *t) { return *t = 41, OK; }
int nvmlDeviceGetClockInfo(struct device *d, u32 which, u32 *mhz) { return *mhz = 1410, OK; }
int nvmlDeviceGetEnforcedPowerLimit(struct device *d, u32 *mw) { return *mw = 400000, OK; }

int nvmlDeviceGetSupportedEventTypes(struct device *d, u64 *mask) { return *mask = 0x8 | 0x2, OK; }
int nvmlEventSetCreate(struct set **s) { return (*s = calloc(1, sizeof **s)) ? OK : 999; }
int nvmlEventSetFree(struct set *s) { return free(s), OK; }
int nvmlDeviceRegisterEvents(struct device *d, u64 mask, struct set *s) {
  s->i = d->i, s->last = state(d);
  return OK;
}

struct event { struct device *d; u64 type, data; u32 gi, ci; };
int nvmlEventSetWait_v2(struct set *s, struct event *e, u32 ms) {
  for (u32 waited = 0; waited <= ms; waited += 5) {
    struct device d = {s->i};
    char now = state(&d), was = s->last;
    s->last = now;
    if (now != was && (now == 'l' || now == 'n')) {
      e->d = &devices[s->i], e->type = 0x8, e->data = now == 'l' ? 79 : 31, e->gi = e->ci = 0xffffffff;
      return OK;
    }
    usleep(5000);
  }
  return TIMEOUT;
}

#ifndef OLD
struct memory2 { u32 version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(struct device *d, struct memory2 *m) {
  int r = touch(d);
  m->total = 81920ull << 20, m->reserved = 1ull << 29, m->used = 3ull << 30, m->free = m->total - m->used - m->reserved;
  return r;
}

int nvmlDeviceGetMigMode(struct device *d, u32 *now, u32 *pending) { return *now = *pending = 0, OK; }

/* Devices 0 and 1 are joined, and 2 and 3; so are 1 and 2, which makes no clique of the four. */
int nvmlDeviceGetP2PStatus(struct device *a, struct device *b, u32 index, u32 *status) {
  int low = a->i < b->i ? a->i : b->i, high = a->i < b->i ? b->i : a->i;
  *status = index == 2 && high - low == 1 ? 0 : 5;
  return OK;
}

int nvmlDeviceGetNvLinkState(struct device *d, u32 link, u32 *up) {
  if (link >= 12) return INVALID;
  return *up = link != 3, OK;
}

struct field { u32 id, scope; long long at, latency; u32 type, ret; union { double d; u32 ui; u64 ull; } v; };
int nvmlDeviceGetFieldValues(struct device *d, int n, struct field *f) {
  static u64 calls;
  calls++;
  for (int i = 0; i < n; i++) {
    f[i].ret = OK;
    switch (f[i].id) {
    case 186: f[i].type = 1, f[i].v.ui = 312500; break;
    case 83: f[i].type = 3, f[i].v.ull = 5000000 + calls * 100; break;
    case 197: f[i].type = 3, f[i].v.ull = calls << 20; break;
    case 198: f[i].type = 3, f[i].v.ull = 0x7ffffffffffffff2; break; /* "blank", as some drivers say */
    case 138: f[i].type = 3, f[i].v.ull = f[i].scope == 0xffffffff ? calls : 0; break;
    case 144: case 145: case 3: case 4: f[i].type = 3, f[i].v.ull = 0; break;
    case 230: f[i].type = 1, f[i].v.ui = state(d) == 'l' ? 2 : 0; break;
    default: f[i].ret = NOT_SUPPORTED;
    }
  }
  return OK;
}
#endif
