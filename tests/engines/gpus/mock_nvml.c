/* A stand-in for libnvidia-ml.so.1: it answers what the file in MOCK_NVML says, one GPU or event in a line,
 * fields separated by tabs:
 *   init  STATUS            what nvmlInit returns
 *   hang                    nvmlInit never returns
 *   crash                   nvmlInit ends the process
 *   gpu   STATUS  NAME  MIB  UUID  PCI  MINOR   a GPU; STATUS is what its handle is answered with
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, MOST = 64 };

struct gpu { int status; char name[96]; unsigned long long mib; char uuid[96]; char pci[32]; unsigned minor; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };

static struct gpu gpus[MOST];
static unsigned count;
static int is_ready;

int nvmlInitWithFlags(unsigned flags) {
    char line[512];
    FILE *file = fopen(getenv("MOCK_NVML"), "r");
    if (!file) return UNINITIALIZED;
    while (fgets(line, sizeof line, file)) {
        struct gpu *g = &gpus[count];
        int status;
        if (!strncmp(line, "hang", 4)) for (;;) pause();
        if (!strncmp(line, "crash", 5)) {
            setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
            abort();
        }
        if (sscanf(line, "init\t%d", &status) == 1 && status) return status;
        if (sscanf(line, "gpu\t%d\t%95[^\t]\t%llu\t%95[^\t]\t%31[^\t]\t%u", &g->status, g->name, &g->mib, g->uuid, g->pci,
                   &g->minor) == 6 && count + 1 < MOST)
            count++;
    }
    fclose(file);
    is_ready = 1;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : code == 18 ? "Driver/library version mismatch" : "Error"; }

int nvmlDeviceGetCount_v2(unsigned *found) { *found = count; return is_ready ? SUCCESS : UNINITIALIZED; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **handle) {
    if (index >= count) return INVALID_ARGUMENT;
    *handle = &gpus[index];
    return gpus[index].status;
}

static int copy(char *target, unsigned size, const char *text) { snprintf(target, size, "%s", text); return SUCCESS; }

int nvmlDeviceGetName(struct gpu *g, char *name, unsigned size) { return copy(name, size, g->name); }
int nvmlDeviceGetUUID(struct gpu *g, char *uuid, unsigned size) { return copy(uuid, size, g->uuid); }
int nvmlDeviceGetMinorNumber(struct gpu *g, unsigned *minor) { *minor = g->minor; return SUCCESS; }

int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory *memory) {
    memory->total = memory->free = g->mib << 20;
    memory->used = 0;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(struct gpu *g, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    return copy(pci->bus_id, sizeof pci->bus_id, g->pci);
}
