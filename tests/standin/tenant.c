/* A program that works on a GPU: kernels of one length, launched one after the other. What it did is printed
 * at the end. It knows nothing of shares.
 *
 *   tenant KERNEL_US SECONDS [--every N] [--think US] [--graph N] [--streams N] [--threads N] [--count N] [--memory MIB] [--fork] */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuCtxSynchronize(void), cuStreamCreate(void **, unsigned), cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *), cuStreamSynchronize(void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **), cuGraphLaunch(void *, void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuMemAlloc_v2(uint64_t *, size_t);

static uint64_t kernel_ns, every = 64, think_us, graph_nodes, streams = 1, threads = 1, count, memory;
static double seconds;
static void *context, *function;
static uint64_t longest[64], launches[64];

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void *work(void *argument)
{
    uint64_t me = (uint64_t)argument, end = now() + (uint64_t)(seconds * 1e9), number = 0, worst = 0;
    void *stream[16] = {0}, *graph = 0, *parameters[] = {&kernel_ns};
    cuCtxSetCurrent(context);
    for (uint64_t i = 0; i < streams; i++)
        cuStreamCreate(&stream[i], 1);
    if (graph_nodes) {
        void *drawn;
        cuStreamBeginCapture_v2(stream[0], 0);
        for (uint64_t i = 0; i < graph_nodes; i++)
            cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream[0], parameters, 0);
        cuStreamEndCapture(stream[0], &drawn);
        cuGraphInstantiateWithFlags(&graph, drawn, 0);
    }
    for (uint64_t before = now(); before < end && (!count || number < count); number++) {
        void *on = stream[number % streams];
        if (graph ? cuGraphLaunch(graph, on) : cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, on, parameters, 0))
            exit(3);
        if (every && (number + 1) % every == 0) {
            for (uint64_t i = 0; i < streams; i++)
                cuStreamSynchronize(stream[i]);
            if (think_us)
                usleep((unsigned)think_us);
        }
        if (!count || every) {
            uint64_t after = now();
            if (after - before > worst)
                worst = after - before;
            before = after;
        }
    }
    cuCtxSynchronize();
    longest[me] = worst;
    launches[me] = number;
    return 0;
}

int main(int argc, char **argv)
{
    void *module;
    pthread_t thread[64];
    struct { const char *name; uint64_t *value; } options[] = {{"--every", &every}, {"--think", &think_us},
        {"--graph", &graph_nodes}, {"--streams", &streams}, {"--threads", &threads}, {"--count", &count}, {"--memory", &memory}};
    uint64_t held;
    kernel_ns = (uint64_t)(atof(argv[1]) * 1000);
    seconds = atof(argv[2]);
    for (int i = 3; i < argc; i++) {
        if (!strcmp(argv[i], "--fork") && fork()) {
            int status;
            wait(&status);
        }
        for (unsigned j = 0; j < sizeof options / sizeof *options; j++)
            if (!strcmp(argv[i], options[j].name) && i + 1 < argc)
                *options[j].value = strtoull(argv[i + 1], 0, 10);
    }
    int device;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device))
        return 2;
    cuCtxSetCurrent(context);
    if (memory && cuMemAlloc_v2(&held, memory << 20))
        return 4;
    cuModuleLoadData(&module, "");
    cuModuleGetFunction(&function, module, "kernel");
    uint64_t start = now();
    struct timespec cpu;
    for (uint64_t i = 0; i < threads; i++)
        pthread_create(&thread[i], 0, work, (void *)i);
    uint64_t sum = 0, worst = 0;
    for (uint64_t i = 0; i < threads; i++) {
        pthread_join(thread[i], 0);
        sum += launches[i];
        worst = longest[i] > worst ? longest[i] : worst;
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    printf("{\"launches\": %llu, \"wall_ns\": %llu, \"longest_ns\": %llu, \"cpu_ns\": %llu}\n", (unsigned long long)sum,
        (unsigned long long)(now() - start), (unsigned long long)worst,
        (unsigned long long)cpu.tv_sec * 1000000000ULL + (unsigned long long)cpu.tv_nsec);
    return 0;
}
