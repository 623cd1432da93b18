/* A stand-in for libnvidia-ml.so.1, driven by the scenario in the file that MOCK_NVML names: a line each, a word
 * and its value. What answers through it is simulated, and the symbol neocloud_simulated says so to programs.
 *
 *   init STATUS              what nvmlInit returns
 *   hang, crash              without a function: nvmlInit never returns, or ends the process
 *   xid CODE TEXT            when NVML starts, the last GPU's driver has written this to the log in MOCK_KMSG
 *   gpu                      begins a GPU, which is healthy; the lines after it change it:
 *   name, uuid, serial, vbios, pci, memory_mib, minor, temperature, margin, slowdown_at, reasons, clock_mhz, pstate,
 *   ecc_corrected, ecc_uncorrected, sram_corrected, sram_uncorrected, remap_pending, remap_failed, retired,
 *   nvlinks, nvlinks_up, gen, max_gen, width, use, memory_use, power_mw, power_limit_mw, memory_used_mib   (a negative number: this GPU does not support it)
 *   tensor PERCENT           it has GPM, which says this of its tensor cores; without the line it has none
 *   gpm STATUS               what GPM says of that metric instead
 *   handle STATUS            what asking for its handle returns
 *   lost_after N             it has fallen off the bus after N calls for it
 *   hang FUNCTION            this call never returns
 *   crash FUNCTION           this call ends the process
 *   fail FUNCTION STATUS     what this call returns
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, UNINITIALIZED = 1, NOT_SUPPORTED = 3, TOO_SMALL = 7, LOST = 15, MISMATCH = 18, MOST = 64 };
enum key {
    TEMPERATURE, MARGIN, SLOWDOWN_AT, REASONS, CLOCK, PSTATE, ECC_C, ECC_U, SRAM_C, SRAM_U, PENDING, FAILED, RETIRED,
    LINKS, LINKS_UP, GEN, MAX_GEN, WIDTH, MEMORY, MINOR, HANDLE, LOST_AFTER,
    USE, MEMORY_USE, POWER, POWER_LIMIT, MEMORY_USED, TENSOR, GPM, KEYS
};
static const char *const KEY_NAMES[KEYS] = {
    "temperature", "margin", "slowdown_at", "reasons", "clock_mhz", "pstate", "ecc_corrected", "ecc_uncorrected",
    "sram_corrected", "sram_uncorrected", "remap_pending", "remap_failed", "retired", "nvlinks", "nvlinks_up", "gen",
    "max_gen", "width", "memory_mib", "minor", "handle", "lost_after",
    "use", "memory_use", "power_mw", "power_limit_mw",
    "memory_used_mib", "tensor", "gpm",
};
static const long long HEALTHY[KEYS] = {
    [TEMPERATURE] = 40, [MARGIN] = 47, [SLOWDOWN_AT] = 87, [CLOCK] = 1980, [RETIRED] = -1, [LINKS] = 18,
    [LINKS_UP] = 18, [GEN] = 5, [MAX_GEN] = 5, [WIDTH] = 16, [MEMORY] = 81559, [LOST_AFTER] = -1,
    [POWER] = 78000, [POWER_LIMIT] = 700000, [TENSOR] = -1,
};

struct gpu {
    long long values[KEYS];
    char name[256], uuid[256], serial[256], vbios[256], pci[256], hang[256], crash[256], fail[64];
    int fail_status;
    long long calls;
};
static struct gpu gpus[MOST];
static unsigned count;
static int is_ready;
int neocloud_simulated = 1;

static void write_xid(const char *pci, int code, const char *text) {
    char line[512];
    long sequence = 0;
    FILE *log = fopen(getenv("MOCK_KMSG") ? getenv("MOCK_KMSG") : "/dev/null", "a+");
    if (!log) return;
    while (fgets(line, sizeof line, log)) sequence++;
    /* NVML has eight digits for the domain and the log has four, without the function */
    fprintf(log, "4,%ld,%ld,-;NVRM: Xid (PCI:%.10s): %d, %s\n", sequence, 1000000 + sequence, pci + 4, code, text);
    fclose(log);
}

static void hang(void) { for (;;) pause(); }
static void crash(void) {
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    abort();
}

static void read_line(char *line) {
    struct gpu *g = count ? &gpus[count - 1] : NULL;
    char word[64], text[256] = "";
    int code;
    line[strcspn(line, "\n")] = 0;
    if (!strcmp(line, "gpu") && count < MOST) {
        g = &gpus[count];
        memcpy(g->values, HEALTHY, sizeof HEALTHY);
        g->values[MINOR] = count;
        snprintf(g->name, sizeof g->name, "NVIDIA H100 80GB HBM3");
        snprintf(g->uuid, sizeof g->uuid, "GPU-00000000-0000-0000-0000-%012u", count);
        snprintf(g->serial, sizeof g->serial, "16500000000%02u", count);
        snprintf(g->vbios, sizeof g->vbios, "96.00.00.00.01");
        snprintf(g->pci, sizeof g->pci, "00000000:%02X:00.0", 0x18 + count);
        count++;
        return;
    }
    if (!strcmp(line, "hang")) hang();
    if (!strcmp(line, "crash")) crash();
    if (!g || sscanf(line, "%63s %255[^\n]", word, text) < 1) return;
    if (sscanf(line, "xid %d %255[^\n]", &code, text) == 2) write_xid(g->pci, code, text);
    else if (!strcmp(word, "name")) snprintf(g->name, sizeof g->name, "%s", text);
    else if (!strcmp(word, "uuid")) snprintf(g->uuid, sizeof g->uuid, "%s", text);
    else if (!strcmp(word, "serial")) snprintf(g->serial, sizeof g->serial, "%s", text);
    else if (!strcmp(word, "vbios")) snprintf(g->vbios, sizeof g->vbios, "%s", text);
    else if (!strcmp(word, "pci")) snprintf(g->pci, sizeof g->pci, "%s", text);
    else if (!strcmp(word, "hang")) snprintf(g->hang, sizeof g->hang, "%s", text);
    else if (!strcmp(word, "crash")) snprintf(g->crash, sizeof g->crash, "%s", text);
    else if (!strcmp(word, "fail")) sscanf(text, "%63s %d", g->fail, &g->fail_status);
    else
        for (int key = 0; key < KEYS; key++)
            if (!strcmp(word, KEY_NAMES[key])) g->values[key] = atoll(text);
}

int nvmlInitWithFlags(unsigned flags) {
    char line[512];
    int status;
    FILE *file = getenv("MOCK_NVML") ? fopen(getenv("MOCK_NVML"), "r") : NULL;
    if (!file) return UNINITIALIZED;
    count = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "init %d", &status) == 1 && status) return status;
        read_line(line);
    }
    fclose(file);
    is_ready = 1;
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status) { 
    return status == LOST ? "GPU is lost" : status == MISMATCH ? "Driver/library version mismatch" : "Error of the stand-in";
}
int nvmlDeviceGetCount_v2(unsigned *found) { *found = count; return is_ready ? SUCCESS : UNINITIALIZED; }

/* Each call for a GPU passes here, and may hang, crash, fail or find the GPU lost. */
static int enter(struct gpu *g, const char *function) {
    g->calls++;
    if (!strcmp(g->hang, function)) hang();
    if (!strcmp(g->crash, function)) crash();
    if (g->values[LOST_AFTER] >= 0 && g->calls > g->values[LOST_AFTER]) return LOST;
    return strcmp(g->fail, function) ? SUCCESS : g->fail_status;
}
#define CALL(g) do { int status_ = enter(g, __func__); if (status_) return status_; } while (0)
#define ANSWER(key, target) do { CALL(g); if (g->values[key] < 0) return NOT_SUPPORTED; *(target) = g->values[key]; return SUCCESS; } while (0)

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **handle) {
    if (index >= count) return INVALID_ARGUMENT;
    *handle = &gpus[index];
    CALL(*handle);
    return gpus[index].values[HANDLE];
}
static int copy(char *target, unsigned size, const char *text) { snprintf(target, size, "%s", text); return SUCCESS; }
int nvmlDeviceGetName(struct gpu *g, char *name, unsigned size) { CALL(g); return copy(name, size, g->name); }
int nvmlDeviceGetUUID(struct gpu *g, char *uuid, unsigned size) { CALL(g); return copy(uuid, size, g->uuid); }
int nvmlDeviceGetSerial(struct gpu *g, char *serial, unsigned size) {
    CALL(g);
    return *g->serial ? copy(serial, size, g->serial) : NOT_SUPPORTED;
}
int nvmlDeviceGetVbiosVersion(struct gpu *g, char *version, unsigned size) { CALL(g); return copy(version, size, g->vbios); }
int nvmlDeviceGetInforomImageVersion(struct gpu *g, char *version, unsigned size) { CALL(g); return copy(version, size, "G520.0200.00.05"); }
int nvmlDeviceGetMinorNumber(struct gpu *g, unsigned *minor) { ANSWER(MINOR, minor); }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(struct gpu *g, struct pci *pci) {
    CALL(g);
    memset(pci, 0, sizeof *pci);
    return copy(pci->bus_id, sizeof pci->bus_id, g->pci);
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory *memory) {
    CALL(g);
    memory->total = (unsigned long long)g->values[MEMORY] << 20;
    memory->used = (unsigned long long)g->values[MEMORY_USED] << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}
int nvmlDeviceGetTemperature(struct gpu *g, int sensor, unsigned *found) { ANSWER(TEMPERATURE, found); }
struct margin { unsigned version; int margin; };
int nvmlDeviceGetMarginTemperature(struct gpu *g, struct margin *found) {
    CALL(g);
    if (g->values[MARGIN] == -99) return NOT_SUPPORTED; /* a margin may be negative */
    found->margin = g->values[MARGIN];
    return SUCCESS;
}
int nvmlDeviceGetTemperatureThreshold(struct gpu *g, int kind, unsigned *found) { ANSWER(SLOWDOWN_AT, found); }
int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *g, unsigned long long *found) { ANSWER(REASONS, found); }
int nvmlDeviceGetClockInfo(struct gpu *g, int kind, unsigned *found) { ANSWER(CLOCK, found); }
struct use { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(struct gpu *g, struct use *found) {
    CALL(g);
    if (g->values[USE] < 0) return NOT_SUPPORTED;
    *found = (struct use){g->values[USE], g->values[MEMORY_USE]};
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(struct gpu *g, unsigned *found) { ANSWER(POWER, found); }
int nvmlDeviceGetEnforcedPowerLimit(struct gpu *g, unsigned *found) { ANSWER(POWER_LIMIT, found); }
int nvmlDeviceGetPerformanceState(struct gpu *g, int *found) { ANSWER(PSTATE, found); }
int nvmlDeviceGetTotalEccErrors(struct gpu *g, int kind, int counter, unsigned long long *found) {
    ANSWER(kind ? ECC_U : ECC_C, found);
}
int nvmlDeviceGetMemoryErrorCounter(struct gpu *g, int kind, int counter, int place, unsigned long long *found) {
    if (place != 7) return NOT_SUPPORTED;
    ANSWER(kind ? SRAM_U : SRAM_C, found);
}
int nvmlDeviceGetRemappedRows(struct gpu *g, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = 0;
    if (g->values[PENDING] < 0) return NOT_SUPPORTED;
    *pending = g->values[PENDING];
    ANSWER(FAILED, failed);
}
int nvmlDeviceGetRetiredPages(struct gpu *g, int cause, unsigned *found, unsigned long long *addresses) {
    unsigned room = *found;
    CALL(g);
    if (g->values[RETIRED] < 0) return NOT_SUPPORTED;
    *found = cause ? 0 : g->values[RETIRED];
    if (room < *found) return TOO_SMALL;
    for (unsigned each = 0; addresses && each < *found; each++) addresses[each] = each << 12;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkState(struct gpu *g, unsigned link, unsigned *found) {
    CALL(g);
    if (g->values[LINKS] < 0) return NOT_SUPPORTED;
    if (link >= g->values[LINKS]) return INVALID_ARGUMENT;
    *found = link < g->values[LINKS_UP];
    return SUCCESS;
}
int nvmlDeviceGetCurrPcieLinkGeneration(struct gpu *g, unsigned *found) { ANSWER(GEN, found); }
int nvmlDeviceGetMaxPcieLinkGeneration(struct gpu *g, unsigned *found) { ANSWER(MAX_GEN, found); }
int nvmlDeviceGetCurrPcieLinkWidth(struct gpu *g, unsigned *found) { ANSWER(WIDTH, found); }

/* GPM: a sample notes its GPU and how many came before it, so that two of the same moment have no answer. */
struct support { unsigned version, is_supported; };
int nvmlGpmQueryDeviceSupport(struct gpu *g, struct support *support) {
    CALL(g);
    if (support->version != 1) return INVALID_ARGUMENT;
    support->is_supported = g->values[TENSOR] >= 0;
    return SUCCESS;
}
struct sample { struct gpu *gpu; long long number; };
int nvmlGpmSampleAlloc(struct sample **sample) { return (*sample = calloc(1, sizeof **sample)) ? SUCCESS : UNINITIALIZED; }
int nvmlGpmSampleFree(struct sample *sample) { free(sample); return SUCCESS; }
int nvmlGpmSampleGet(struct gpu *g, struct sample *sample) {
    CALL(g);
    if (g->values[TENSOR] < 0) return NOT_SUPPORTED;
    *sample = (struct sample){g, g->calls};
    return SUCCESS;
}
struct metric { unsigned id; int status; double value; const char *short_name, *long_name, *unit; };
struct metrics { unsigned version, count; struct sample *first, *last; struct metric metrics[]; };
int nvmlGpmMetricsGet(struct metrics *asked) {
    struct gpu *g = asked->first->gpu;
    CALL(g);
    if (asked->version != 1 || g != asked->last->gpu || asked->last->number <= asked->first->number) return INVALID_ARGUMENT;
    for (unsigned each = 0; each < asked->count; each++) {
        asked->metrics[each].status = asked->metrics[each].id == 5 ? g->values[GPM] : NOT_SUPPORTED;
        asked->metrics[each].value = g->values[TENSOR];
    }
    return SUCCESS;
}
