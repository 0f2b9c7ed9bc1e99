//! Texts for causes: the cause, its evidence and a fix, one line each.

mod serving;

use memwatch_core::features::causes::{Cause, CauseKind, Confidence};
use serde::Serialize;

use super::Tone;
use super::format::{bytes, count, plural, printable, rate_per_minute};
use super::sentences::Sentence;

/// A cause with its texts, as in the JSON report.
#[derive(Serialize)]
pub(crate) struct Worded {
    #[serde(flatten)]
    of: Cause,
    cause: String,
    evidence: String,
    fix: String,
}

impl Worded {
    /// Adds the texts to a cause.
    pub(crate) fn of(cause: &Cause) -> Self {
        let [what, evidence, fix] = words(cause);
        Self { of: cause.clone(), cause: what, evidence, fix }
    }
}

/// Returns three lines for each cause.
pub(crate) fn lines(causes: &[Cause]) -> Vec<Sentence> {
    let of = |cause: &Cause| {
        let tones = [Tone::Bad, Tone::Plain, Tone::Plain];
        let labels = ["cause", "evidence", "fix"];
        let lines = labels.into_iter().zip(tones).zip(words(cause));
        lines.map(|((label, tone), text)| Sentence::new(tone, format!("{label:<10}{text}"))).collect::<Vec<_>>()
    };
    causes.iter().flat_map(of).collect()
}

/// Formatted parts of a cause: size, growth, source line.
struct CauseParts {
    size: String,
    subject: String,
    number: u64,
    /// `, +7.40 GiB/min`.
    rate: String,
    /// ` (train.py:76)`.
    line: String,
    wanted: String,
}

impl CauseParts {
    fn of(cause: &Cause) -> Self {
        let line = cause.line.as_deref().filter(|line| cause.subject.as_deref() != Some(line));
        Self {
            size: bytes(cause.bytes),
            subject: cause.subject.as_deref().map(|text| printable(text).into_owned()).unwrap_or_default(),
            number: cause.count.unwrap_or(0),
            rate: cause.bytes_per_minute.map(|rate| format!(", {}", rate_per_minute(rate))).unwrap_or_default(),
            line: line.map(|line| format!(" ({})", printable(line))).unwrap_or_default(),
            wanted: cause.wanted_bytes.map(bytes).unwrap_or_default(),
        }
    }

    /// `20 blocks, 6.20 GiB, +7.40 GiB/min (train.py:76)`.
    fn counted(&self, one: &str, many: &str) -> String {
        let Self { size, number, rate, line, .. } = self;
        let number = if *number > 0 { format!("{}, ", plural(*number, one, many)) } else { String::new() };
        format!("{number}{size}{rate}{line}")
    }
}

/// Returns the cause, its evidence and a fix.
pub(crate) fn words(cause: &Cause) -> [String; 3] {
    let parts = CauseParts::of(cause);
    let [what, evidence, fix] = match cause.kind {
        CauseKind::NoPlaceYet
        | CauseKind::StreamCache
        | CauseKind::PrivatePools
        | CauseKind::CacheGrows
        | CauseKind::PinnedGrows
        | CauseKind::RecordStream
        | CauseKind::OutsideGrows => of_no_tensor(cause.kind, &parts),
        CauseKind::OptimizerState
        | CauseKind::WeightsAlone
        | CauseKind::Activations
        | CauseKind::Fragmentation
        | CauseKind::OwnLimit
        | CauseKind::NoBackward
        | CauseKind::LargerThanGpu => of_failure(cause.kind, &parts),
        CauseKind::OtherProcesses | CauseKind::ForkedKeep | CauseKind::IpcKept => of_others(cause.kind, &parts),
        CauseKind::KvCacheFull => serving::full_kv_cache(cause, &parts),
        CauseKind::KvCacheTooLarge => serving::large_kv_cache(cause, &parts),
        CauseKind::Notebook
        | CauseKind::Instances
        | CauseKind::StateCopies
        | CauseKind::TwoPrecisions
        | CauseKind::ViewKeepsStorage
        | CauseKind::DdpBuckets
        | CauseKind::Workspaces
        | CauseKind::OldOptimizers
        | CauseKind::LongerTensor
        | CauseKind::LineKeeps => of_what_is_held(cause.kind, &parts),
        _ => of_retainer(cause.kind, &parts),
    };
    let what = if cause.confidence == Confidence::Likely { format!("probably: {what}") } else { what };
    [what, evidence, fix]
}

/// Texts for causes in which an object retains tensors that should be free.
fn of_retainer(kind: CauseKind, parts: &CauseParts) -> [String; 3] {
    let subject = &parts.subject;
    match kind {
        CauseKind::GraphsKept => [
            format!("{subject} keeps autograd graphs"),
            parts.counted("block saved for backward", "blocks saved for backward"),
            format!("append loss.item() or loss.detach() instead{}; evaluate under torch.no_grad()", parts.line),
        ],
        CauseKind::RunningSum => [
            format!("{subject} is a running sum that keeps its autograd graph"),
            parts.counted("block saved for backward", "blocks saved for backward"),
            "add x.item() or x.detach() to it".to_owned(),
        ],
        CauseKind::QueueBacksUp => [
            format!("{subject} is filled faster than it is emptied"),
            parts.counted("tensor waits", "tensors wait"),
            "bound it: Queue(maxsize=N), deque(maxlen=N); or make what takes from it faster".to_owned(),
        ],
        CauseKind::CacheByArgument => [
            format!("the cache {subject} keeps what it was called with, or returned"),
            parts.counted("tensor", "tensors"),
            "cache by a key that is no tensor and no module, bound it (maxsize=N), or call cache_clear()".to_owned(),
        ],
        CauseKind::ExceptionKept => [
            format!("a stored exception keeps the frames of its traceback: {subject}"),
            parts.counted("block", "blocks"),
            "leave the except block before trying again; del the exception, or traceback.clear_frames(error.__traceback__)".to_owned(),
        ],
        CauseKind::Cycle => [
            format!("objects that refer to each other, and no variable leads to them: {subject}"),
            parts.counted("block", "blocks"),
            "break the cycle, for example by weakref; gc.collect() frees what is there".to_owned(),
        ],
        _ => [
            format!("{subject} grows, and nothing is taken out of it"),
            parts.counted("tensor", "tensors"),
            "bound it (deque(maxlen=N)), or move what it keeps to the CPU: .cpu()".to_owned(),
        ],
    }
}

fn of_what_is_held(kind: CauseKind, parts: &CauseParts) -> [String; 3] {
    let CauseParts { subject, size, .. } = parts;
    match kind {
        CauseKind::Notebook => [
            format!("the notebook keeps what cells returned, or where they failed: {subject}"),
            parts.counted("block", "blocks"),
            of_notebook(subject),
        ],
        CauseKind::Instances => [
            format!("many models of one kind: {subject}"),
            parts.counted("block or instance", "blocks or instances"),
            "drop the unused ones; if no variable refers to them, a cycle keeps them: gc.collect() frees them".to_owned(),
        ],
        CauseKind::StateCopies => [
            format!("{subject} has copies of the parameters on the GPU"),
            parts.counted("copy", "copies"),
            "copy to the CPU: {k: v.cpu() for k, v in model.state_dict().items()}; load with map_location=\"cpu\"".to_owned(),
        ],
        CauseKind::TwoPrecisions => [
            "parameters are there in 16 bits and again in float32".to_owned(),
            format!("{}, such as {subject}", parts.counted("block", "blocks")),
            "keep one of them; an optimizer that keeps its master copy sharded or on the CPU".to_owned(),
        ],
        CauseKind::ViewKeepsStorage => [
            "views keep storages of which less than half is used".to_owned(),
            format!("{}, such as {subject}", parts.counted("storage", "storages")),
            "keep x[...].clone() and not the slice".to_owned(),
        ],
        CauseKind::DdpBuckets => [
            "DistributedDataParallel has its buckets beside the gradients".to_owned(),
            format!("{}, and as much of gradients", parts.counted("bucket", "buckets")),
            "DistributedDataParallel(model, gradient_as_bucket_view=True): gradients are then views of the buckets".to_owned(),
        ],
        CauseKind::Workspaces => [
            "cuBLAS has a workspace for each stream and thread that multiplies matrices".to_owned(),
            parts.counted("workspace", "workspaces"),
            "fewer streams and threads; CUBLAS_WORKSPACE_CONFIG=:4096:2 makes them smaller; torch._C._cuda_clearCublasWorkspaces() frees them".to_owned(),
        ],
        CauseKind::OldOptimizers => [
            "several optimizers have a state for the same parameters".to_owned(),
            format!("{} of them; {size} beyond one state each", count(parts.number)),
            "drop the optimizers that make no more steps, and what refers to them (schedulers, trainers, lists)".to_owned(),
        ],
        _ => of_place(kind, parts),
    }
}

/// Texts for causes of which only the source line or the owner is known.
fn of_place(kind: CauseKind, parts: &CauseParts) -> [String; 3] {
    let CauseParts { subject, size, rate, .. } = parts;
    match kind {
        CauseKind::LongerTensor => [
            format!("{subject} is replaced by ever longer tensors"),
            format!("{size}{rate}{}", parts.line),
            "join on the CPU: .cpu() before torch.cat, or write results out batch by batch".to_owned(),
        ],
        _ if subject.is_empty() => [
            "tensors without a known line are not freed".to_owned(),
            format!("{size}{rate}"),
            "memwatch holdings names what keeps them".to_owned(),
        ],
        _ if !parts.line.is_empty() => [
            format!("{subject} keeps growing"),
            parts.counted("block", "blocks"),
            "release what is no longer needed, or move it to the CPU: .cpu()".to_owned(),
        ],
        _ => [
            format!("allocations of {subject} are not freed"),
            parts.counted("block", "blocks"),
            "memwatch holdings names what keeps them".to_owned(),
        ],
    }
}

fn of_no_tensor(kind: CauseKind, parts: &CauseParts) -> [String; 3] {
    let CauseParts { size, rate, number, .. } = parts;
    match kind {
        CauseKind::StreamCache => [
            "free memory belongs to streams that cannot share it".to_owned(),
            format!("{} have {size} free{rate}, while tensors need no more than before", plural(*number, "stream", "streams")),
            "make one torch.cuda.Stream and use it again; torch.cuda.empty_cache() gives back what whole segments are free".to_owned(),
        ],
        CauseKind::PrivatePools => [
            "free memory is in private pools of CUDA graphs or torch.cuda.MemPool".to_owned(),
            format!("{size} free{rate}, while tensors need no more than before"),
            "drop graphs that are no longer replayed, capture fewer shapes; empty_cache() does not release this memory".to_owned(),
        ],
        CauseKind::CacheGrows => [
            "PyTorch reserves more memory although tensors need no more".to_owned(),
            format!("{size} free in its cache{rate}"),
            "fewer different sizes; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (memwatch simulate says what it saves)".to_owned(),
        ],
        CauseKind::RecordStream => [
            "freed memory waits until other streams are done with it (record_stream)".to_owned(),
            format!("{size} freed and waiting{rate}, while tensors need no more than before"),
            "let the streams catch up: stream.synchronize(), or wait_stream() before the tensor is dropped instead of record_stream()".to_owned(),
        ],
        CauseKind::PinnedGrows => [
            "pinned host memory grows".to_owned(),
            format!("{size}{rate}"),
            "pin buffers of few sizes and use them again; PyTorch keeps each size that it has pinned".to_owned(),
        ],
        CauseKind::OutsideGrows => [
            "driver memory outside of tensors grows".to_owned(),
            format!("{size}{rate}; not PyTorch's"),
            "memwatch where --native PID names the libraries that take it".to_owned(),
        ],
        _ => [
            "tensors grow, and no line or name explains it yet".to_owned(),
            format!("{size}{rate}"),
            "watch longer, with --duration; with --budget 100% each line is traced".to_owned(),
        ],
    }
}

fn of_failure(kind: CauseKind, parts: &CauseParts) -> [String; 3] {
    let CauseParts { size, subject, wanted, number, line, .. } = parts;
    match kind {
        CauseKind::OptimizerState => [
            "the optimizer's state does not fit at its first step".to_owned(),
            format!("{wanted} were wanted in the optimizer before its first step was over{line}"),
            "an 8-bit or fused optimizer, sharding (FSDP, ZeRO) or offload; a smaller batch does not make the state smaller".to_owned(),
        ],
        CauseKind::WeightsAlone => [
            "the model alone does not fit".to_owned(),
            format!("{size} of parameters, {wanted} more wanted, and no forward pass has begun"),
            "fewer bits (bfloat16, quantisation), several GPUs (tensor parallel, FSDP), or a larger one".to_owned(),
        ],
        CauseKind::Activations => [
            "activations take most of it".to_owned(),
            format!("{size} made in the forward pass{}, {wanted} more wanted", if subject.is_empty() { String::new() } else { format!(", most in {subject}") }),
            "a smaller batch, or checkpointing (torch.utils.checkpoint)".to_owned(),
        ],
        CauseKind::Fragmentation => [
            "enough memory was free, but not in one piece".to_owned(),
            format!("{size} free between blocks, no piece of it as large as the {wanted} wanted"),
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; fewer sizes that change from step to step".to_owned(),
        ],
        CauseKind::OwnLimit => [
            "PyTorch has a limit of its own, below what the GPU has".to_owned(),
            format!("{wanted} were wanted beyond the {size} that it has; it did not ask the driver, though {} of the GPU were free", bytes(*number)),
            "torch.cuda.set_per_process_memory_fraction() sets it (or per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF): allow more, or need less".to_owned(),
        ],
        CauseKind::NoBackward => [
            "forward passes keep graphs, and no backward pass follows".to_owned(),
            format!("{size} saved for backward in {}{line}; {wanted} more wanted", plural(*number, "block", "blocks")),
            "with torch.inference_mode(): (or torch.no_grad()) around the forward pass; the setting applies per thread".to_owned(),
        ],
        _ => [
            "the request alone is larger than the GPU".to_owned(),
            format!("{wanted} were wanted at once"),
            "no setting helps: the tensor itself must be smaller".to_owned(),
        ],
    }
}

/// Texts for causes in other processes. `number` is a PID.
fn of_others(kind: CauseKind, parts: &CauseParts) -> [String; 3] {
    let CauseParts { size, subject, wanted, number, .. } = parts;
    let tgid = (*number > 0).then(|| count(*number).replace(',', ""));
    match kind {
        CauseKind::ForkedKeep => [
            "a process has ended, but processes that it forked keep its memory".to_owned(),
            format!("{size} are charged to {subject}, which has ended; {wanted} were wanted"),
            match tgid {
                Some(tgid) => format!("end PID {tgid}, which it forked; start workers by spawn (multiprocessing.set_start_method(\"spawn\")) or before CUDA is used"),
                None => "end the processes that it forked; start workers by spawn (multiprocessing.set_start_method(\"spawn\")) or before CUDA is used".to_owned(),
            },
        ],
        CauseKind::IpcKept => [
            "another process keeps memory that its owner has given up (CUDA IPC)".to_owned(),
            format!("PID {} ({subject}) has {size} of it open; {wanted} were wanted", tgid.unwrap_or_default()),
            "drop the tensors there that came from the other process, then torch.cuda.ipc_collect() in the one that sent them".to_owned(),
        ],
        _ => [
            "other processes have the memory that was missing".to_owned(),
            format!("they hold {size} of this GPU{}; {wanted} were wanted", tgid.map_or_else(String::new, |tgid| format!(", most of it PID {tgid} ({subject})"))),
            "end them or take another GPU: memwatch ps lists them; several ranks on one GPU: torch.cuda.set_device(local_rank)".to_owned(),
        ],
    }
}

/// Returns how to free a notebook's object of this name.
fn of_notebook(subject: &str) -> String {
    let name = subject.rsplit(['.', ':']).next().unwrap_or_default().trim();
    let is_variable = !name.is_empty() && name.chars().all(|letter| letter == '_' || letter.is_alphanumeric());
    if subject.contains("Out[") || subject.contains("_oh[") {
        "%reset -f out; end a cell with a semicolon, and it keeps nothing".to_owned()
    } else if is_variable && subject.contains("user_ns") {
        format!("%xdel {name}; restarting the kernel is not needed")
    } else {
        "run a cell that fails at once (1/0): it takes the place of that error; %xdel name for a variable".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::words::Tgid;

    use super::*;

    const KINDS: [CauseKind; 36] = [
        CauseKind::GraphsKept,
        CauseKind::RunningSum,
        CauseKind::Unbounded,
        CauseKind::QueueBacksUp,
        CauseKind::CacheByArgument,
        CauseKind::ExceptionKept,
        CauseKind::Cycle,
        CauseKind::Notebook,
        CauseKind::Instances,
        CauseKind::StateCopies,
        CauseKind::TwoPrecisions,
        CauseKind::ViewKeepsStorage,
        CauseKind::LongerTensor,
        CauseKind::LineKeeps,
        CauseKind::NoPlaceYet,
        CauseKind::StreamCache,
        CauseKind::PrivatePools,
        CauseKind::CacheGrows,
        CauseKind::PinnedGrows,
        CauseKind::OutsideGrows,
        CauseKind::OptimizerState,
        CauseKind::WeightsAlone,
        CauseKind::Activations,
        CauseKind::Fragmentation,
        CauseKind::OtherProcesses,
        CauseKind::LargerThanGpu,
        CauseKind::OwnLimit,
        CauseKind::NoBackward,
        CauseKind::ForkedKeep,
        CauseKind::IpcKept,
        CauseKind::RecordStream,
        CauseKind::DdpBuckets,
        CauseKind::Workspaces,
        CauseKind::OldOptimizers,
        CauseKind::KvCacheFull,
        CauseKind::KvCacheTooLarge,
    ];

    pub(super) fn cause(kind: CauseKind) -> Cause {
        Cause {
            kind,
            tgid: Tgid(7),
            bytes: 6 << 30,
            bytes_per_minute: Some(7.5e9),
            count: Some(20),
            subject: Some("metrics['val'][*]\u{1b}".to_owned()),
            line: Some("train.py:76".to_owned()),
            wanted_bytes: Some(3 << 20),
            kv_cache: None,
            period_ns: None,
            confidence: Confidence::Shown,
        }
    }

    #[test]
    fn cause_texts_are_distinct_have_a_number_and_no_escapes() {
        let mut seen = std::collections::BTreeSet::new();
        for kind in KINDS {
            let [what, evidence, fix] = words(&cause(kind));
            assert!(seen.insert(what.replace("metrics['val'][*]\\x1b", "")), "{what} stands twice");
            assert!(evidence.contains("6.00 GiB") || evidence.contains("3.0 MiB"), "{evidence}");
            assert!(!fix.is_empty() && !format!("{what}{evidence}{fix}").contains(['\u{1b}', '\n']), "{what}");
        }
    }

    #[test]
    fn notebook_cause_fix_names_the_notebook_command() {
        let fix = |subject: &str| {
            let of = Cause { subject: Some(subject.to_owned()), ..cause(CauseKind::Notebook) };
            words(&of)[2].clone()
        };
        assert!(fix("Out[5]").starts_with("%reset -f out;"), "{}", fix("Out[5]"));
        assert!(fix("get_ipython.__self__.user_ns._oh[5]").starts_with("%reset -f out;"));
        assert!(fix("get_ipython.__self__.user_ns.batch").starts_with("%xdel batch;"));
        let of_error = fix("IPython's last error.tb_frame → In [7]:fit: batch");
        assert!(of_error.contains("1/0") && of_error.contains("%xdel name"), "{of_error}");
    }

    #[test]
    fn a_process_that_keeps_memory_for_others_is_named_by_its_number() {
        let of = |kind, count| {
            let subject = Some("python3 train.py".to_owned());
            words(&Cause { count, subject, ..cause(kind) }).join("; ")
        };
        assert!(of(CauseKind::ForkedKeep, Some(4711)).contains("end PID 4711, which it forked"));
        assert!(of(CauseKind::ForkedKeep, None).contains("end the processes that it forked"));
        assert!(of(CauseKind::IpcKept, Some(4711)).contains("PID 4711 (python3 train.py) has 6.00 GiB of it open"));
        assert!(of(CauseKind::OtherProcesses, Some(4711)).contains("most of it PID 4711 (python3 train.py)"));
        assert!(!of(CauseKind::OtherProcesses, None).contains("most of it"));
    }

    #[test]
    fn a_cause_is_three_lines() {
        let text: Vec<_> = lines(&[cause(CauseKind::GraphsKept)]).into_iter().map(|line| line.text).collect();
        assert_eq!(
            text,
            [
                "cause     metrics['val'][*]\\x1b keeps autograd graphs",
                "evidence  20 blocks saved for backward, 6.00 GiB, +6.98 GiB/min (train.py:76)",
                "fix       append loss.item() or loss.detach() instead (train.py:76); evaluate under torch.no_grad()",
            ]
        );
        let likely = Cause { confidence: Confidence::Likely, ..cause(CauseKind::Activations) };
        assert!(words(&likely)[0].starts_with("probably: "));
    }
}
