//! One small program per family of the driver API: its steps, and the functions that it calls.
//!
//! A step is a list of commands of the workload program, after which memwatch and the simulator
//! must agree. `$` is replaced by the thread's number, so that many threads can run a scenario
//! concurrently. A command after `!` must be refused.

/// Scenario of one family.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Description as a sentence.
    pub name: &'static str,
    /// Probed functions that the steps call.
    pub covers: &'static [&'static str],
    /// Steps, each a list of commands.
    pub steps: &'static [&'static [&'static str]],
    /// Whether the scenario uses state that all threads share, so that only one thread can run it.
    pub alone: bool,
}

const fn together(
    name: &'static str,
    covers: &'static [&'static str],
    steps: &'static [&'static [&'static str]],
) -> Scenario {
    Scenario { name, covers, steps, alone: false }
}

const fn alone(
    name: &'static str,
    covers: &'static [&'static str],
    steps: &'static [&'static [&'static str]],
) -> Scenario {
    Scenario { name, covers, steps, alone: true }
}

/// Start of every CUDA program, and so of every scenario.
pub const PROLOGUE: &[&str] = &["uuid 0", "device 0"];

/// The functions that the prologue calls.
pub const PROLOGUE_COVERS: &[&str] = &["cuInit", "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"];

/// Scenarios of all families.
pub const SCENARIOS: &[Scenario] = &[
    together(
        "linear memory: small, large, pitched, refused, freed",
        &["cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemFree_v2"],
        &[
            &["alloc a$ 4096", "alloc b$ 3000000", "pitch p$ 1000 64", "!alloc huge$ 900G"],
            &["free a$", "alloc c$ 256", "free p$", "!free 12345", "free 0"],
            &["free b$", "free c$"],
        ],
    ),
    together(
        "managed memory is in no GPU's live bytes",
        &["cuMemAllocManaged"],
        &[&["managed m$ 64M", "alloc a$ 2M"], &["free m$"], &["free a$"]],
    ),
    together(
        "pinned and registered host memory is in no GPU's live bytes",
        &["cuMemHostAlloc", "cuMemAllocHost_v2", "cuMemFreeHost", "cuMemHostRegister_v2", "cuMemHostUnregister"],
        &[
            &["hostalloc h$ 8M", "hostalloc g$ 64K plain", "register r$ 1M"],
            &["hostfree h$", "hostfree g$"],
            &["unregister r$"],
        ],
    ),
    together(
        "stream-ordered memory, from the default pool and a given one, freed either way",
        &[
            "cuStreamCreate",
            "cuStreamCreateWithPriority",
            "cuMemAllocAsync",
            "cuMemAllocAsync_ptsz",
            "cuMemAllocFromPoolAsync",
            "cuMemAllocFromPoolAsync_ptsz",
            "cuMemFreeAsync",
            "cuMemFreeAsync_ptsz",
            "cuMemPoolCreate",
            "cuMemPoolDestroy",
        ],
        &[
            &["stream s$", "call cuStreamCreateWithPriority *u$ 0 0", "async a$ 5M", "async b$ 1M s$"],
            &["async t$ 1M u$ ptsz", "pool create q$ 0", "frompool c$ 7M q$", "frompool d$ 2M q$ s$ ptsz"],
            &["asyncfree a$", "free b$", "asyncfree t$ u$ ptsz", "!async huge$ 900G s$"],
            &["asyncfree c$", "pool destroy q$", "asyncfree d$ s$"],
        ],
    ),
    together(
        "what a pool holds is exact as soon as the program asks for it",
        &["cuMemPoolSetAttribute", "cuMemPoolGetAttribute", "cuMemPoolTrimTo"],
        &[
            &["pool create q$ 0", "pool threshold q$ max", "frompool a$ 40M q$", "frompool b$ 3M q$", "pool info q$"],
            &["asyncfree a$", "streamsync 0", "pool info q$"],
            &["pool trim q$ 0", "pool info q$"],
            &["asyncfree b$", "pool trim q$ 0", "pool info q$", "pool destroy q$"],
        ],
    ),
    alone(
        "the current pool of a device serves allocations that name none",
        &["cuDeviceSetMemPool", "cuDeviceGetMemPool", "cuDeviceGetDefaultMemPool"],
        &[
            &["pool default d 0", "pool current c 0", "async a 4M", "pool info d"],
            &["pool create q 0", "pool threshold q max", "pool use q 0", "async b 6M", "pool info q"],
            &["asyncfree b", "pool info q", "pool use d 0", "async e 2M", "pool info d", "pool info q"],
            &["asyncfree a", "asyncfree e", "pool trim q 0", "pool info q", "pool trim d 0", "pool info d"],
        ],
    ),
    alone(
        "host and managed pools are no device memory",
        &["cuMemGetDefaultMemPool", "cuMemGetMemPool", "cuMemSetMemPool"],
        &[
            &["pool create h 0 host", "pool create m 0 managed", "frompool a 3M h", "frompool b 5M m"],
            // CUmemLocation: type 2 is the host; allocation type 1 is pinned.
            &["set place 0 2", "call cuMemGetDefaultMemPool *dh *place 1", "frompool c 2M dh"],
            &["set place 0 2", "call cuMemSetMemPool *place 1 h", "set place 0 2", "call cuMemGetMemPool *ch *place 1"],
            &["frompool e 1M ch", "asyncfree a", "asyncfree b"],
            &["asyncfree c", "asyncfree e"],
        ],
    ),
    together(
        "another process's pool, and addresses from it, are aliases without bytes of their own",
        &["cuMemPoolExportPointer", "cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer"],
        &[
            &["pool create q$ 0", "frompool a$ 4M q$"],
            &["call cuMemPoolExportToShareableHandle *f$ q$ 1 0", "call cuMemPoolExportPointer *x$ a$"],
            &["call cuMemPoolImportFromShareableHandle *i$ f$ 1 0", "call cuMemPoolImportPointer *y$ i$ *x$"],
            &["free y$", "asyncfree a$"],
        ],
    ),
    together(
        "physical memory lives while a reference or a mapping does",
        &[
            "cuMemAddressReserve",
            "cuMemAddressFree",
            "cuMemCreate",
            "cuMemMap",
            "cuMemRetainAllocationHandle",
            "cuMemRelease",
            "cuMemUnmap",
        ],
        &[
            &["reserve va$ 64M", "create h$ 4M", "map va$ 4M h$", "access va$ 4M 0", "!create huge$ 900G"],
            &["retain again$ va$", "release h$"],
            &["release again$"],
            &["unmap va$ 4M", "unreserve va$ 64M"],
        ],
    ),
    together(
        "one unmap ends many mappings of memory released long ago",
        &[],
        &[
            &["reserve va$ 64M", "create h$ 2M", "map va$ 2M h$", "release h$"],
            &["create i$ 6M", "map va$+2M 6M i$", "release i$", "create j$ 2M", "map va$+8M 2M j$", "release j$"],
            &["unmap va$ 8M"],
            &["unmap va$+8M 2M", "unreserve va$ 64M"],
        ],
    ),
    together("physical memory in host memory is apart", &[], &[&["create h$ 4M host"], &["release h$"]]),
    together(
        "an imported handle has no bytes of its own",
        &["cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"],
        &[&["create h$ 4M", "export f$ h$", "import i$ f$"], &["release i$", "release h$"]],
    ),
    together(
        "a multicast object has no memory, and keeps what is bound to it",
        &["cuMulticastCreate", "cuMulticastBindMem", "cuMulticastBindMem_v2", "cuMulticastUnbind"],
        &[
            &["multicast m$ 8M", "create h$ 4M", "bind m$ h$ 4M", "release h$"],
            &["unbind m$ 4M", "create i$ 2M", "call cuMulticastBindMem m$ 0 i$ 0 2M 0", "release i$"],
            &["unbind m$ 2M", "release m$"],
        ],
    ),
    together(
        "external memory and what is mapped of it is another API's",
        &["cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer", "cuDestroyExternalMemory"],
        &[
            &["set d$ 24 8M", "call cuImportExternalMemory *e$ *d$", "set b$ 8 4M"],
            &["call cuExternalMemoryGetMappedBuffer *p$ e$ *b$"],
            &["free p$", "call cuDestroyExternalMemory e$"],
        ],
    ),
    together(
        "arrays count by their shape",
        &[
            "cuArrayCreate_v2",
            "cuArray3DCreate_v2",
            "cuArrayDestroy",
            "cuMipmappedArrayCreate",
            "cuMipmappedArrayDestroy",
        ],
        &[
            &["array a$ 1024 256", "array3d b$ 64 64 64 0", "mipmap m$ 512 512 1"],
            &["array3d sparse$ 256 256 16 0x40"],
            &["arrayfree a$", "arrayfree b$", "arrayfree sparse$", "mipmapfree m$"],
        ],
    ),
    together(
        "what a graph allocates by nodes is in no GPU's live bytes",
        &[
            "cuGraphAddMemAllocNode",
            "cuGraphAddMemFreeNode",
            "cuGraphAddNode",
            "cuGraphAddNode_v2",
            "cuGraphInstantiate",
            "cuGraphInstantiateWithFlags",
            "cuGraphInstantiateWithParams",
            "cuGraphExecDestroy",
            "cuGraphDestroy",
            "cuDeviceGraphMemTrim",
        ],
        &[
            // CUDA_MEM_ALLOC_NODE_PARAMS: allocation type 1, location type 1 at 8, size at 104,
            // address at 112.
            &["call cuGraphCreate *g$ 0", "set p$ 0 1", "set p$ 8 1", "set p$ 104 4M"],
            &["call cuGraphAddMemAllocNode *n$ g$ 0 0 *p$", "get a$ p$ 112"],
            // CUgraphNodeParams: type 10 allocates: pool properties at 16, size at 120, address at
            // 128. Type 11 frees the address at 16.
            &[
                "set q$ 0 10",
                "set q$ 16 1",
                "set q$ 24 1",
                "set q$ 120 2M",
                "call cuGraphAddNode *n$ g$ 0 0 *q$",
                "get b$ q$ 128",
            ],
            &["set r$ 0 11", "set r$ 16 b$", "call cuGraphAddNode_v2 *n$ g$ 0 0 0 *r$"],
            &["call cuGraphAddMemFreeNode *n$ g$ 0 0 a$"],
            &[
                "call cuGraphInstantiate *x$ g$ 0 0 0",
                "instantiate y$ g$",
                "call cuGraphInstantiateWithParams *z$ g$ *w$",
            ],
            &["execdestroy x$", "execdestroy y$", "execdestroy z$", "call cuDeviceGraphMemTrim 0", "graphdestroy g$"],
        ],
    ),
    together(
        "what a stream captures is a graph's and no memory",
        &["cuStreamBeginCapture_v2", "cuStreamEndCapture"],
        &[
            &["stream s$", "capture s$", "async a$ 4M s$", "asyncfree a$ s$", "endcapture g$ s$"],
            &["async b$ 2M s$"],
            &["asyncfree b$ s$", "graphdestroy g$"],
        ],
    ),
    together(
        "the same through the functions of per-thread default streams",
        &["cuStreamBeginCapture_v2_ptsz", "cuStreamEndCapture_ptsz", "cuGraphInstantiateWithParams_ptsz"],
        &[
            &["stream s$", "call cuStreamBeginCapture_v2_ptsz s$ 2", "async a$ 4M s$ ptsz"],
            &["asyncfree a$ s$ ptsz", "call cuStreamEndCapture_ptsz s$ *g$"],
            &["call cuGraphInstantiateWithParams_ptsz *x$ g$ *w$", "execdestroy x$", "graphdestroy g$"],
        ],
    ),
    alone(
        "a launched graph holds its memory until it is trimmed or gone",
        &["cuGraphLaunch", "cuGraphLaunch_ptsz"],
        &[
            &["stream s", "capture s", "async a 4M s", "async k 2M s", "asyncfree a s", "endcapture g s"],
            &["instantiate x g"],
            &["launch x s"],
            &["call cuGraphLaunch_ptsz x s"],
            &["graphtrim 0"],
            &["execdestroy x", "graphdestroy g"],
            &["free k"],
        ],
    ),
    alone(
        "a context takes its linear memory with it, and leaves pool and physical memory",
        &["cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuCtxDestroy_v2", "cuCtxPopCurrent_v2"],
        &[
            &["ctx create 0 as own v2", "alloc a 3M", "hostalloc h 1M", "async s 2M", "create p 2M", "array x 512 512"],
            &["ctx destroy own"],
            &["release p", "ctx create 0 as third v3", "alloc b 1M", "ctx pop", "alloc c 2M"],
            &["ctx create 0 as fourth v4", "alloc d 1M", "ctx destroy fourth", "ctx destroy third"],
            &["asyncfree s", "free c"],
        ],
    ),
    alone(
        "a reset of the primary context frees what was allocated in it",
        &["cuDevicePrimaryCtxReset_v2"],
        &[&["alloc a 3M", "managed m 4M", "alloc b 4096"], &["reset 0"]],
    ),
    alone(
        "the last release of the primary context is a teardown",
        &["cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2"],
        &[
            &["primary retain 0", "alloc a 3M"],
            &["primary release 0"],
            &["primary release 0"],
            &["ctx create 0 as own", "ctx pop", "ctx push own", "alloc b 2M"],
            &["ctx destroy own"],
        ],
    ),
    alone(
        "what a green context allocates is the primary one's",
        &["cuGreenCtxCreate", "cuCtxFromGreenCtx", "cuGreenCtxDestroy"],
        &[&["green g 0", "alloc a 3M"], &["greendestroy g"], &["reset 0"]],
    ),
    together(
        "an address of another process is opened and closed, and has no bytes here",
        &["cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"],
        &[&["alloc a$ 4M", "ipc again$ a$"], &["ipcclose again$", "free a$"]],
    ),
    together(
        "code, limits and names of devices are no allocations",
        &[
            "cuDeviceGetPCIBusId",
            "cuDeviceGetUuid",
            "cuCtxSetLimit",
            "cuModuleLoad",
            "cuModuleLoadData",
            "cuModuleLoadDataEx",
            "cuModuleLoadFatBinary",
            "cuModuleUnload",
            "cuLibraryLoadData",
            "cuLibraryLoadFromFile",
            "cuLibraryUnload",
        ],
        &[
            &["call cuDeviceGetPCIBusId *bus$ 13 0", "call cuDeviceGetUuid *id$ 0", "call cuCtxSetLimit 2 16M"],
            &["call cuModuleLoadData *m$ *image$", "call cuModuleLoadDataEx *e$ *image$ 0 0 0"],
            &["call cuModuleLoadFatBinary *f$ *image$", "call cuModuleLoad *l$ *image$"],
            &["call cuLibraryLoadData *b$ *image$ 0 0 0 0 0 0", "call cuLibraryLoadFromFile *c$ *image$ 0 0 0 0 0 0"],
            &["call cuModuleUnload m$", "call cuModuleUnload e$", "call cuModuleUnload f$", "call cuModuleUnload l$"],
            &["call cuLibraryUnload b$", "call cuLibraryUnload c$"],
        ],
    ),
    alone(
        "a checkpoint takes the memory off the device, and a restore brings it back",
        &["cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore"],
        &[&["alloc a 4M"], &["tgid", "checkpoint tgid"], &["restore tgid"], &["free a"]],
    ),
    alone(
        "the driver's word on the current context and device is asked for all the time",
        &["cuCtxGetCurrent", "cuCtxGetDevice"],
        &[&["call cuCtxGetCurrent *c", "call cuCtxGetDevice *d", "alloc a 2M"], &["free a"]],
    ),
];
