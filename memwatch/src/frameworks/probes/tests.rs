//! Real PyTorch on the simulated GPU with real probes: the kernel half sends what PyTorch's own
//! trace and Python's own objects show.

mod asleep;
mod calls;
mod job;
mod proof;

use std::collections::{BTreeMap, BTreeSet};

use memwatch_common::loss::Loss;
use memwatch_common::tensor::{
    FLAG_NO_PYTHON, FLAG_RETURN, FLAG_STACK_OVER_BUDGET, StackFrame, TensorMeaning, TensorRecord, tensor_probe,
};

use job::{LIBRARIES, ProbedJob, PythonJob};

/// Events of a job, in order.
#[derive(Debug, Default)]
struct SentEvents {
    events: Vec<TensorRecord>,
    stacks: BTreeMap<u64, Vec<StackFrame>>,
    /// Allocator address, number of events before it, and words.
    statistics: Vec<(u64, usize, Vec<u64>)>,
    texts: Vec<String>,
}

impl SentEvents {
    fn of(&self, wanted: TensorMeaning) -> Vec<&TensorRecord> {
        self.events.iter().filter(|event| meaning(event) == wanted).collect()
    }

    /// Returns the reported allocations of tensors.
    fn grants(&self) -> Vec<&TensorRecord> {
        let reported = self.of(TensorMeaning::Reported).into_iter();
        reported.filter(|event| event.args[1].cast_signed() > 0).collect()
    }

    /// Returns the stacks that contain a frame of this code object.
    fn stacks_with(&self, code: u64) -> Vec<&Vec<StackFrame>> {
        self.stacks.values().filter(|frames| frames.iter().any(|frame| frame.code == code)).collect()
    }
}

fn meaning(event: &TensorRecord) -> TensorMeaning {
    tensor_probe(event.probe).expect("only rows of the table are attached").meaning
}

fn with_a_job(version: &str, classic: bool, checks: &[fn(&mut PythonJob, &mut ProbedJob)]) {
    let Some(mut job) = PythonJob::start(version) else { return };
    // Memory held before memwatch attaches.
    job.ask("held.append(leaf(3 << 20)); held.append(leaf(100)); train(1)");
    let mut watched = ProbedJob::attach(&job, (classic, 64 << 20), &LIBRARIES);
    for check in checks {
        check(&mut job, &mut watched);
    }
}

#[test]
fn pytorch_2_15_events_match_its_trace_and_statistics_are_on_demand() {
    with_a_job(
        "2.15",
        false,
        &[
            events_are_those_of_its_own_trace,
            calls::one_probe_shows_what_several_do,
            the_numbers_of_nodes_are_all_that_pytorch_gives,
            statistics_are_those_of_the_event_before,
            probes_in_all_processes_report_all_that_are_listed,
            nothing_is_walked_any_more_in_another_image,
        ],
    );
}

#[test]
fn events_of_2_8_are_those_of_its_own_trace_and_have_the_stacks_that_ran() {
    with_a_job(
        "2.8",
        false,
        &[
            events_are_those_of_its_own_trace,
            calls::one_probe_shows_what_several_do,
            the_numbers_of_nodes_are_all_that_pytorch_gives,
            statistics_are_those_of_the_event_before,
            stacks_are_those_of_the_functions_that_run,
            the_first_argument_of_a_modules_code_comes_with_its_frame,
            stacks_with_code_that_went_are_sent_again,
            a_stack_over_budget_is_left_out_and_counted,
            nothing_is_left_of_a_job_that_is_forgotten,
            a_full_ring_loses_events_and_stacks_and_counts_them,
        ],
    );
}

#[test]
fn classic_probes_see_all_threads_of_the_process_too() {
    with_a_job(
        "2.8",
        true,
        &[
            calls::one_probe_shows_what_several_do,
            events_are_those_of_its_own_trace,
            nothing_is_walked_any_more_in_a_job_that_has_ended,
        ],
    );
}

/// Returns PyTorch's number of a trace action.
fn action(name: &str) -> Option<u64> {
    let names = ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"];
    (0..).zip(names).find(|(_, known)| *known == name).map(|(number, _)| number)
}

fn events_are_those_of_its_own_trace(job: &mut PythonJob, watched: &mut ProbedJob) {
    let before = job.number("torch.cuda.memory_allocated()");
    watched.drain();
    job.ask("torch.cuda.memory._record_memory_history(max_entries=100000)");
    job.ask("train(3)");
    job.ask("held.append(middle(70000)); held.pop(0)");
    let after = job.number("torch.cuda.memory_allocated()");
    let sent = watched.drain();

    let reported = sent.of(TensorMeaning::Reported);
    let sum: i64 = reported.iter().map(|event| event.args[1].cast_signed()).sum();
    assert!(reported.len() > 50, "{}", reported.len());
    assert_eq!(sum, after.cast_signed() - before.cast_signed());
    assert_eq!(reported.last().unwrap().args[2], after);

    let trace = job
        .ask("out = [[e['action'], e['addr'], e['size']] for e in torch.cuda.memory._snapshot()['device_traces'][0]]");
    // While it records, PyTorch would keep references to code objects it has seen.
    job.ask("torch.cuda.memory._record_memory_history(enabled=None)");
    let stated =
        |entry: &serde_json::Value| Some((action(entry[0].as_str()?)?, entry[1].as_u64()?, entry[2].as_u64()?));
    let trace: Vec<(u64, u64, u64)> = trace.as_array().unwrap().iter().filter_map(stated).collect();
    let traced = sent.of(TensorMeaning::Traced);
    let low = |word: u64| word & u64::from(u32::MAX);
    let traced: Vec<_> = traced.iter().map(|event| (low(event.args[1]), event.args[2], event.args[3])).collect();
    assert_eq!(traced, trace);
    let grants = trace.iter().filter(|(action, ..)| *action == 0).count();
    assert_eq!(sent.of(TensorMeaning::Requested).len(), grants);
    let threads: BTreeSet<u32> = reported.iter().map(|event| event.tid).collect();
    assert!(threads.len() > 1, "backward runs in a thread of its own: {threads:?}");
    assert!(sent.texts.iter().any(|text| text.starts_with("Optimizer.step#")), "{:?}", sent.texts);
    assert_ne!(sent.of(TensorMeaning::BackwardNode).len(), 0);
    assert_ne!(sent.of(TensorMeaning::SequenceNumber).len(), 0);
    assert!(sent.stacks.is_empty(), "no layout, no stacks");
}

fn statistics_are_those_of_the_event_before(job: &mut PythonJob, watched: &mut ProbedJob) {
    job.ask("held.append(leaf(5000))");
    assert!(watched.drain().statistics.is_empty(), "nobody has asked");
    for _ in 0..2 {
        watched.want_statistics(job);
        job.ask("held.append(leaf(5000)); held.append(leaf(2 << 20)); held.clear()");
        let sent = watched.drain();
        let [(allocator, before, words)] = &sent.statistics[..] else { panic!("{:?}", sent.statistics) };
        let event = &sent.events[before - 1];
        assert_eq!(meaning(event), TensorMeaning::Reported);
        // Allocated and reserved bytes, as the caching allocator's own code loads them for the
        // event.
        assert_eq!((words[48], words[60]), (event.args[2], event.args[3]));
        assert!(sent.of(TensorMeaning::Traced).iter().all(|event| event.args[0] == *allocator));
    }
}

fn the_numbers_of_nodes_are_all_that_pytorch_gives(job: &mut PythonJob, watched: &mut ProbedJob) {
    job.ask("weight = torch.zeros(8, device='cuda', requires_grad=True)");
    watched.drain();
    let given = job.ask("out = [(weight * 2).grad_fn._sequence_nr() for _ in range(5)]");
    let given: Vec<u64> = given.as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).collect();
    let seen = |sent: &SentEvents| -> Vec<_> {
        sent.of(TensorMeaning::SequenceNumber).iter().map(|event| (event.tid, event.extra[0])).collect()
    };
    let expected: Vec<_> = given.iter().map(|number| (job.tgid(), *number)).collect();
    assert_eq!((seen(&watched.drain()), given.len()), (expected, 5));

    // A thread that has never counted begins at 0.
    job.ask("def count(): global own; own = [(weight * 2).grad_fn._sequence_nr() for _ in range(3)]");
    job.ask("thread = threading.Thread(target=count); thread.start(); thread.join()");
    assert_eq!(job.ask("out = own"), serde_json::json!([0, 1, 2]));
    let sent = watched.drain();
    let others = seen(&sent).into_iter().filter(|(tid, _)| *tid != job.tgid());
    assert_eq!(others.map(|(_, number)| number).collect::<Vec<_>>(), [0, 1, 2]);
    let cheap = |event: &&TensorRecord| event.flags & FLAG_RETURN == 0;
    assert!(sent.of(TensorMeaning::SequenceNumber).iter().all(cheap), "the function's code is not as expected");
}

fn stacks_are_those_of_the_functions_that_run(job: &mut PythonJob, watched: &mut ProbedJob) {
    watched.set_layout(job, &[]);
    let codes = job.ask("out = [id(f.__code__) for f in (leaf, middle)] + [id(sys._getframe().f_back.f_code)]");
    let codes: Vec<u64> = codes.as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).collect();
    watched.drain();
    job.ask("for _ in range(50): held.append(middle(70000))");
    job.ask("train(2)");
    let sent = watched.drain();
    let grants = sent.grants();
    let first: BTreeSet<u64> = grants[..50].iter().map(|event| event.stack).collect();
    assert_eq!(first.len(), 1, "one line of code, one stack");
    let seen: Vec<u64> = sent.stacks[first.first().unwrap()].iter().map(|frame| frame.code).collect();
    assert_eq!((seen[0], seen[1], seen.len(), seen[3]), (codes[0], codes[1], 4, codes[2]));
    for event in &grants {
        let known = sent.stacks.contains_key(&event.stack);
        let is_main = event.tid == job.tgid();
        assert_eq!((known, event.flags), if is_main { (true, 0) } else { (false, FLAG_NO_PYTHON) }, "{event:?}");
    }
    assert!(grants.iter().any(|event| event.tid != job.tgid()), "backward runs without Python");
}

fn the_first_argument_of_a_modules_code_comes_with_its_frame(job: &mut PythonJob, watched: &mut ProbedJob) {
    let code = job.number("id(torch.nn.Module._wrapped_call_impl.__code__)");
    watched.set_layout(job, &[code]);
    let modules = job.ask("out = [id(m) for m in model.modules()]");
    let modules: Vec<u64> = modules.as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).collect();
    watched.drain();
    job.ask("train(1)");
    let sent = watched.drain();
    let (of_modules, others): (Vec<&StackFrame>, Vec<&StackFrame>) =
        sent.stacks.values().flatten().partition(|frame| frame.code == code);
    let objects: BTreeSet<u64> = of_modules.iter().map(|frame| frame.object).collect();
    assert!(objects.len() >= 2 && objects.iter().all(|object| modules.contains(object)), "{objects:?} {modules:?}");
    assert!(others.iter().all(|frame| frame.object == 0));
}

fn stacks_with_code_that_went_are_sent_again(job: &mut PythonJob, watched: &mut ProbedJob) {
    watched.drain();
    job.ask("exec('def passing(): return leaf(70000)', globals())");
    let code = job.number("id(passing.__code__)");
    job.ask("for _ in range(3): held.append(passing())");
    let sent = watched.drain();
    assert_eq!(sent.stacks_with(code).len(), 1);
    let goes = |sent: &SentEvents| sent.of(TensorMeaning::CodeGoes).iter().any(|event| event.args[0] == code);
    assert!(!goes(&sent));
    let train = "exec('train(1)', {'train': train})";
    let of_training = job.number("id(train.__code__)");
    job.ask(train);
    let before = watched.drain();
    job.ask("del passing");
    assert!(goes(&watched.drain()), "its address may be another's from now on");
    job.ask(train);
    let after = watched.drain();
    assert!(!before.stacks_with(of_training).is_empty() && !after.stacks_with(of_training).is_empty());
    assert!(before.stacks.keys().all(|id| !after.stacks.contains_key(id)), "no id means two stacks");
}

fn a_stack_over_budget_is_left_out_and_counted(job: &mut PythonJob, watched: &mut ProbedJob) {
    watched.drain();
    watched.set_window_frames(20);
    // The sleep starts a new window of the budget.
    job.ask("time.sleep(0.2); [held.append(middle(70000)) for _ in range(2000)]");
    let sent = watched.drain();
    let grants = sent.grants();
    let left_out = grants.iter().filter(|event| event.flags == FLAG_STACK_OVER_BUDGET).count();
    assert_eq!(grants.len(), 2000, "no event is left out");
    assert!(left_out > 1000 && grants.iter().any(|event| event.stack != 0), "{left_out}");
    assert!(grants.iter().all(|event| (event.stack == 0) == (event.flags != 0)));
    assert_eq!(watched.left_out(job), left_out as u64);
}

fn nothing_is_left_of_a_job_that_is_forgotten(job: &mut PythonJob, watched: &mut ProbedJob) {
    assert!(watched.known(job.tgid()) > 1);
    watched.detach(job);
    assert_eq!(watched.known(job.tgid()), 0);
    watched.drain();
    job.ask("held.append(leaf(5000))");
    assert_eq!(watched.drain().events.len(), 0);
}

fn a_full_ring_loses_events_and_stacks_and_counts_them(job: &mut PythonJob, _: &mut ProbedJob) {
    let mut watched = ProbedJob::attach(job, (false, 64 << 10), &LIBRARIES[..1]);
    job.ask("for _ in range(1000): held.append(leaf(70000))");
    watched.set_layout_alone(job);
    // The same stack twice: the first is lost, the second is found.
    job.ask("twice()");
    assert_eq!(watched.lost(Loss::StackLost), 1);
    let sent = watched.drain();
    assert!(sent.events.len() > 100 && sent.stacks.is_empty());
    assert_eq!(sent.events.len() as u64 + watched.lost(Loss::TensorEventLost), 1001);
    job.ask("");
    let sent = watched.drain();
    assert_eq!(sent.events.iter().map(|event| sent.stacks.contains_key(&event.stack)).collect::<Vec<_>>(), [true]);
    job.ask("");
}

fn nothing_is_walked_any_more_in_a_job_that_has_ended(job: &mut PythonJob, watched: &mut ProbedJob) {
    watched.set_layout(job, &[]);
    job.ask("held.append(leaf(5000))");
    assert!(watched.known(job.tgid()) > 1);
    job.end();
    assert!(!watched.is_walked(job.tgid()), "its number may be another's");
}

fn probes_in_all_processes_report_all_that_are_listed(job: &mut PythonJob, watched: &mut ProbedJob) {
    watched.attach_to_all(job, LIBRARIES[0]);
    watched.drain();
    job.ask("held.append(leaf(5000))");
    assert_eq!(watched.drain().grants().len(), 1);
    watched.forget(job);
    job.ask("held.append(leaf(5000))");
    assert_eq!(watched.drain().events.len(), 0);
}

fn nothing_is_walked_any_more_in_another_image(job: &mut PythonJob, watched: &mut ProbedJob) {
    watched.set_layout_alone(job);
    assert!(watched.is_walked(job.tgid()));
    job.ask("import os; os.execv('/bin/sh', ['sh', '-c', 'echo =1; read line'])");
    assert!(!watched.is_walked(job.tgid()), "nothing lies where it lay");
}
