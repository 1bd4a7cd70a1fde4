/* A fake libnvidia-ml.so.1 for tests, driven by a text file.
 *
 * The file named in $FAKE_NVML_STATE is read again at every call, so a test changes what a
 * running process sees by replacing the file. Its lines:
 *
 *   system driver_version 580.65.06        default "580.00.fake"
 *   system cuda_version 13000              default 13000
 *   gpu <index> <key> <value>              a GPU exists when it has the key "uuid";
 *                                          indexes count from 0 without a hole
 *     uuid, name, serial, pci, minor       minor defaults to the index, serial to "not supported"
 *     mem_total, mem_used                  bytes
 *     util, temp, power_mw                 percent, degrees Celsius, milliwatts
 *     mig 1                                MIG mode is on (without the key: not supported)
 *     lost 1                               every call but the handle's fails with "GPU is lost"
 *     proc <pid> <bytes>                   a compute process; may stand several times
 *     ecc_vol, ecc_agg                     uncorrectable memory errors since the load and in its life
 *                                          (without the key: not supported)
 *     rows_failure 1                       a row remap failed (without the key: not supported)
 *     nvlinks <n>, nvlink_down <bits>      links it has (none: not supported), those that are down,
 *     nvlink_silent <bits>                 and those whose state cannot be read
 *     nvlink_count 1                       it tells how many it has (without the key: not supported)
 *     recovery <code>                      the recovery action asked for (without: not supported)
 *     only_totals 1                        errors are told in total only, as before Ampere
 *
 * Faults, for one GPU or for calls that concern none ("system"), by the function's name
 * without "nvml" and version suffix, e.g. "DeviceGetUUID", "Init":
 *
 *   gpu 2 error.DeviceGetHandleByIndex 15  that call returns this NVML error
 *   system error.Init 18
 *   gpu 2 hang.DeviceGetMemoryInfo 1       that call does not return while the line stands
 *   gpu 2 deaf 1                           ... and no signal but KILL ends it meanwhile (as in state D)
 *   system crash.DeviceGetCount 1          that call ends the process with SIGSEGV
 *
 * Each successful nvmlInit appends "<pid>\n" to $FAKE_NVML_STATE.inits.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int uint;
typedef unsigned long long ull;
typedef int Result;
typedef void *Device;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    UNKNOWN = 999,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15
};

#define MAX_GPUS 64
#define SYSTEM -1
#define LINE 512

static int initialised;
static char handles[MAX_GPUS]; /* a handle is the address of its element */

/* ---- The state file ---------------------------------------------------------------- */

static FILE *open_state(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    return path ? fopen(path, "r") : NULL;
}

/* True when `line` is about this GPU (or the system) and key; its value goes to `value`. */
static int matches(const char *line, int gpu, const char *key, char value[LINE]) {
    char prefix[LINE];
    if (gpu == SYSTEM)
        snprintf(prefix, sizeof prefix, "system %s ", key);
    else
        snprintf(prefix, sizeof prefix, "gpu %d %s ", gpu, key);
    size_t length = strlen(prefix);
    if (strncmp(line, prefix, length) != 0)
        return 0;
    snprintf(value, LINE, "%s", line + length);
    value[strcspn(value, "\n")] = '\0';
    return 1;
}

/* Find the n-th line with this key (n counts from 0). */
static int find(int gpu, const char *key, int n, char value[LINE]) {
    char line[LINE];
    int found = 0;
    FILE *file = open_state();
    if (!file)
        return 0;
    while (!found && fgets(line, sizeof line, file))
        if (matches(line, gpu, key, value) && n-- == 0)
            found = 1;
    fclose(file);
    return found;
}

static ull number(int gpu, const char *key, ull otherwise) {
    char value[LINE];
    return find(gpu, key, 0, value) ? strtoull(value, NULL, 0) : otherwise;
}

static Result text(int gpu, const char *key, char *buffer, uint size) {
    char value[LINE];
    if (!find(gpu, key, 0, value))
        return NOT_SUPPORTED;
    snprintf(buffer, size, "%s", value);
    return SUCCESS;
}

static int count(void) {
    char value[LINE];
    int n = 0;
    while (n < MAX_GPUS && find(n, "uuid", 0, value))
        n++;
    return n;
}

/* ---- Faults ------------------------------------------------------------------------ */

static void hang_while(int gpu, const char *key) {
    sigset_t all, before;
    int deaf = (int)number(gpu, "deaf", 0);
    sigfillset(&all);
    if (deaf)
        sigprocmask(SIG_BLOCK, &all, &before);
    while (number(gpu, key, 0))
        usleep(10000);
    if (deaf)
        sigprocmask(SIG_SETMASK, &before, NULL);
}

/* What every call does first: hang, crash or fail as the state file says. */
static Result fault(int gpu, const char *function) {
    char key[LINE];
    snprintf(key, sizeof key, "hang.%s", function);
    if (number(gpu, key, 0))
        hang_while(gpu, key);
    snprintf(key, sizeof key, "crash.%s", function);
    if (number(gpu, key, 0))
        raise(SIGSEGV);
    snprintf(key, sizeof key, "error.%s", function);
    return (Result)number(gpu, key, SUCCESS);
}

#define SYSTEM_CALL(function)                        \
    do {                                             \
        Result fault_ = fault(SYSTEM, function);     \
        if (fault_ != SUCCESS)                       \
            return fault_;                           \
        if (!initialised)                            \
            return UNINITIALIZED;                    \
    } while (0)

#define GPU_CALL(device, function)                   \
    int gpu = (int)((char *)(device) - handles);     \
    do {                                             \
        if (!initialised)                            \
            return UNINITIALIZED;                    \
        if (gpu < 0 || gpu >= count())               \
            return INVALID_ARGUMENT;                 \
        Result fault_ = fault(gpu, function);        \
        if (fault_ != SUCCESS)                       \
            return fault_;                           \
        if (number(gpu, "lost", 0))                  \
            return GPU_IS_LOST;                      \
    } while (0)

/* ---- Session and system ------------------------------------------------------------ */

static void note_init(void) {
    char path[LINE];
    snprintf(path, sizeof path, "%s.inits", getenv("FAKE_NVML_STATE"));
    FILE *file = fopen(path, "a");
    if (file) {
        fprintf(file, "%d\n", (int)getpid());
        fclose(file);
    }
}

Result nvmlInitWithFlags(uint flags) {
    (void)flags;
    FILE *file = open_state();
    if (!file)
        return DRIVER_NOT_LOADED;
    fclose(file);
    Result faulty = fault(SYSTEM, "Init");
    if (faulty != SUCCESS)
        return faulty;
    initialised++;
    note_init();
    return SUCCESS;
}

Result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

Result nvmlShutdown(void) {
    if (!initialised)
        return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}

const char *nvmlErrorString(Result result) {
    switch (result) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

Result nvmlSystemGetDriverVersion(char *buffer, uint size) {
    SYSTEM_CALL("SystemGetDriverVersion");
    if (text(SYSTEM, "driver_version", buffer, size) != SUCCESS)
        snprintf(buffer, size, "580.00.fake");
    return SUCCESS;
}

Result nvmlSystemGetCudaDriverVersion(int *version) {
    SYSTEM_CALL("SystemGetCudaDriverVersion");
    *version = (int)number(SYSTEM, "cuda_version", 13000);
    return SUCCESS;
}

Result nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

Result nvmlDeviceGetCount_v2(uint *n) {
    SYSTEM_CALL("DeviceGetCount");
    *n = (uint)count();
    return SUCCESS;
}

/* A lost GPU still has a handle; error.DeviceGetHandleByIndex takes that away too. */
Result nvmlDeviceGetHandleByIndex_v2(uint index, Device *device) {
    if (!initialised)
        return UNINITIALIZED;
    if ((int)index >= count())
        return INVALID_ARGUMENT;
    Result faulty = fault((int)index, "DeviceGetHandleByIndex");
    if (faulty != SUCCESS)
        return faulty;
    *device = &handles[index];
    return SUCCESS;
}

/* ---- One GPU: identity ------------------------------------------------------------- */

Result nvmlDeviceGetUUID(Device device, char *buffer, uint size) {
    GPU_CALL(device, "DeviceGetUUID");
    return text(gpu, "uuid", buffer, size);
}

Result nvmlDeviceGetName(Device device, char *buffer, uint size) {
    GPU_CALL(device, "DeviceGetName");
    return text(gpu, "name", buffer, size);
}

Result nvmlDeviceGetSerial(Device device, char *buffer, uint size) {
    GPU_CALL(device, "DeviceGetSerial");
    return text(gpu, "serial", buffer, size);
}

Result nvmlDeviceGetMinorNumber(Device device, uint *minor) {
    GPU_CALL(device, "DeviceGetMinorNumber");
    *minor = (uint)number(gpu, "minor", (ull)gpu);
    return SUCCESS;
}

typedef struct {
    char legacy_bus_id[16];
    uint domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

Result nvmlDeviceGetPciInfo_v3(Device device, PciInfo *info) {
    GPU_CALL(device, "DeviceGetPciInfo");
    char bus_id[32] = "00000000:00:00.0";
    text(gpu, "pci", bus_id, sizeof bus_id);
    memset(info, 0, sizeof *info);
    sscanf(bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", bus_id);
    snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "%.15s", bus_id + (strlen(bus_id) > 12 ? 4 : 0));
    info->device_id = 0x233510de;
    return SUCCESS;
}

Result nvmlDeviceGetMigMode(Device device, uint *current, uint *pending) {
    GPU_CALL(device, "DeviceGetMigMode");
    char value[LINE];
    if (!find(gpu, "mig", 0, value))
        return NOT_SUPPORTED;
    *current = *pending = (uint)strtoul(value, NULL, 0);
    return SUCCESS;
}

/* ---- One GPU: memory, processes, sensors ------------------------------------------- */

typedef struct {
    ull total, free, used;
} Memory;

typedef struct {
    uint version;
    ull total, reserved, free, used;
} Memory2;

Result nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    GPU_CALL(device, "DeviceGetMemoryInfo");
    memory->total = number(gpu, "mem_total", 0);
    memory->used = number(gpu, "mem_used", 0);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

Result nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *memory) {
    GPU_CALL(device, "DeviceGetMemoryInfo");
    memory->total = number(gpu, "mem_total", 0);
    memory->reserved = 0;
    memory->used = number(gpu, "mem_used", 0);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

typedef struct {
    uint pid;
    ull used;
    uint gpu_instance, compute_instance;
} Process;

/* As NVML: `*n` is the room on the way in and the need on the way out. */
Result nvmlDeviceGetComputeRunningProcesses_v3(Device device, uint *n, Process *processes) {
    GPU_CALL(device, "DeviceGetComputeRunningProcesses");
    char value[LINE];
    uint room = *n, need = 0;
    for (; find(gpu, "proc", (int)need, value); need++) {
        if (!processes || need >= room)
            continue;
        processes[need].pid = 0;
        processes[need].used = 0;
        sscanf(value, "%u %llu", &processes[need].pid, &processes[need].used);
        processes[need].gpu_instance = processes[need].compute_instance = ~0u;
    }
    *n = need;
    return need > room || (need && !processes) ? INSUFFICIENT_SIZE : SUCCESS;
}

typedef struct {
    uint gpu, memory;
} Utilization;

Result nvmlDeviceGetUtilizationRates(Device device, Utilization *rates) {
    GPU_CALL(device, "DeviceGetUtilizationRates");
    rates->gpu = (uint)number(gpu, "util", 0);
    rates->memory = 0;
    return SUCCESS;
}

Result nvmlDeviceGetTemperature(Device device, int sensor, uint *celsius) {
    (void)sensor;
    GPU_CALL(device, "DeviceGetTemperature");
    *celsius = (uint)number(gpu, "temp", 30);
    return SUCCESS;
}

Result nvmlDeviceGetPowerUsage(Device device, uint *milliwatts) {
    GPU_CALL(device, "DeviceGetPowerUsage");
    *milliwatts = (uint)number(gpu, "power_mw", 70000);
    return SUCCESS;
}

/* ---- One GPU: its own counters ----------------------------------------------------- */

static Result counter(int gpu, const char *key, ull *value) {
    char found[LINE];
    if (!find(gpu, key, 0, found))
        return NOT_SUPPORTED;
    *value = strtoull(found, NULL, 0);
    return SUCCESS;
}

/* Only the total is told, as before Ampere, or all of it as errors of the DRAM (2). */
Result nvmlDeviceGetMemoryErrorCounter(Device device, int error, int kind, int place, ull *value) {
    GPU_CALL(device, "DeviceGetMemoryErrorCounter");
    if (error != 1 || place != 2 || number(gpu, "only_totals", 0))
        return NOT_SUPPORTED;
    return counter(gpu, kind ? "ecc_agg" : "ecc_vol", value);
}

Result nvmlDeviceGetTotalEccErrors(Device device, int error, int kind, ull *value) {
    GPU_CALL(device, "DeviceGetTotalEccErrors");
    return error == 1 ? counter(gpu, kind ? "ecc_agg" : "ecc_vol", value) : NOT_SUPPORTED;
}

Result nvmlDeviceGetRemappedRows(Device device, uint *corrected, uint *uncorrected, uint *pending, uint *failure) {
    GPU_CALL(device, "DeviceGetRemappedRows");
    ull failed = 0;
    Result found = counter(gpu, "rows_failure", &failed);
    *corrected = *uncorrected = *pending = 0;
    *failure = (uint)failed;
    return found;
}

Result nvmlDeviceGetNvLinkState(Device device, uint link, uint *active) {
    GPU_CALL(device, "DeviceGetNvLinkState");
    ull links = number(gpu, "nvlinks", 0);
    if (!links)
        return NOT_SUPPORTED;
    if (link >= links)
        return INVALID_ARGUMENT;
    if (number(gpu, "nvlink_silent", 0) >> link & 1)
        return UNKNOWN;
    *active = !(number(gpu, "nvlink_down", 0) >> link & 1);
    return SUCCESS;
}

typedef struct {
    uint field, scope;
    long long timestamp, latency;
    uint type;
    Result result;
    union {
        double real;
        uint whole;
        ull large;
    } value;
} FieldValue;

Result nvmlDeviceGetFieldValues(Device device, int n, FieldValue *values) {
    GPU_CALL(device, "DeviceGetFieldValues");
    for (int i = 0; i < n; i++) {
        ull action = 0;
        values[i].result = values[i].field == 230 ? counter(gpu, "recovery", &action) : NOT_SUPPORTED;
        if (values[i].field == 91 && number(gpu, "nvlink_count", 0))
            values[i].result = counter(gpu, "nvlinks", &action);
        values[i].type = 1;
        values[i].value.whole = (uint)action;
    }
    return SUCCESS;
}
