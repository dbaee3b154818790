/* A library with the functions of NVML that agents call, for hosts without GPUs. The directory that NVML_STUB names
   holds a file `gpus` with a line for each device: `UUID USE USED_MIB TOTAL_MIB MILLIWATTS CODE`. MIG instances come
   after the GPUs, and are parts of the last one; they have neither use nor power. A function that reads the name `hang` there never returns.
   With -DOLD, functions of later drivers are missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6

typedef struct { char uuid[96]; unsigned use, used, total, power; int code; } Device;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;

static void path(char *into, size_t size, const char *name) { snprintf(into, size, "%s/%s", getenv("NVML_STUB"), name); }

/* Read device `index`; returns whether there is one. */
static int look(unsigned index, Device *one) {
    char name[4096];
    path(name, sizeof name, "hang");
    while (access(name, F_OK) == 0) usleep(20000);
    path(name, sizeof name, "gpus");
    FILE *file = fopen(name, "r");
    if (!file) return 0;
    int found = 0;
    for (unsigned at = 0; !found; at++) {
        if (fscanf(file, "%95s %u %u %u %u %d", one->uuid, &one->use, &one->used, &one->total, &one->power, &one->code) != 6)
            break;
        found = at == index;
    }
    fclose(file);
    return found;
}

static int is_mig(const Device *one) { return strncmp(one->uuid, "MIG-", 4) == 0; }

/* Handles are indices plus one. */
static int get(void *device, Device *one) {
    if (!look((unsigned)(size_t)device - 1, one)) return INVALID_ARGUMENT;
    return one->code;
}

static int count(unsigned *into) {
    Device one;
    for (*into = 0; look(*into, &one) && !is_mig(&one);) ++*into;
    return SUCCESS;
}

static int by_index(unsigned index, void **device) {
    Device one;
    unsigned all;
    count(&all);
    if (index >= all) return INVALID_ARGUMENT;
    *device = (void *)(size_t)(index + 1);
    look(index, &one);
    return one.code;
}

#ifdef OLD
int nvmlInit(void) { return SUCCESS; }
int nvmlDeviceGetCount(unsigned *into) { return count(into); }
int nvmlDeviceGetHandleByIndex(unsigned index, void **device) { return by_index(index, device); }
#else
int nvmlInit_v2(void) {
    Device one;
    look(0, &one);
    return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *into) { return count(into); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return by_index(index, device); }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    Device one;
    int code = get(device, &one);
    if (code == SUCCESS) *milliwatts = one.power;
    return code == SUCCESS && is_mig(&one) ? NOT_SUPPORTED : code;
}
#endif

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    Device one;
    for (unsigned at = 0; look(at, &one); at++)
        if (strcmp(one.uuid, uuid) == 0) {
            *device = (void *)(size_t)(at + 1);
            return one.code;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *instance, void **device) {
    Device one;
    unsigned all;
    int code = get(instance, &one);
    count(&all);
    *device = (void *)(size_t)all;
    return code == SUCCESS && !is_mig(&one) ? INVALID_ARGUMENT : code;
}

int nvmlDeviceGetUUID(void *device, char *into, unsigned size) {
    Device one;
    int code = get(device, &one);
    if (code == SUCCESS) snprintf(into, size, "%s", one.uuid);
    return code;
}

int nvmlDeviceGetUtilizationRates(void *device, Utilization *into) {
    Device one;
    int code = get(device, &one);
    if (code == SUCCESS) *into = (Utilization){one.use, 0};
    return code == SUCCESS && is_mig(&one) ? NOT_SUPPORTED : code;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *into) {
    Device one;
    int code = get(device, &one);
    if (code == SUCCESS)
        *into = (Memory){(unsigned long long)one.total << 20, (unsigned long long)(one.total - one.used) << 20,
                         (unsigned long long)one.used << 20};
    return code;
}
