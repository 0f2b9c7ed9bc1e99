//! Events: what the agent runs on a failure.

use std::fs;

use memwatch_tests::agent::{TestAgent, workload_of};
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, SimulatedGpu, until};
use serde_json::Value;

const ANN: u32 = 64_001;

#[test(alone)]
fn agent_runs_its_command_on_each_failure_once_its_outcome_is_known() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    // The directory of the socket is one that the agent can write to.
    let file = gpu.directory().join("run/events");
    let mut command = gpu.memwatch(&[]);
    command.env("MEMWATCH_ON_EVENT", format!("cat >> {}", file.display()));
    let agent = TestAgent::by(&gpu, command);
    let events = |number: usize| -> Vec<Value> {
        until("the command has run", || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            (text.ends_with('\n') && text.lines().count() >= number).then_some(text)
        })
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
    };
    let mut survivor = workload_of(&gpu, ANN);
    survivor.run(&["uuid 0", "device 0", "alloc held 4M"]);
    assert_eq!(survivor.ask("alloc huge 200000000000")["result"], 2);
    survivor.run(&["alloc more 8M"]);
    let [event] = &events(1)[..] else { panic!("one failure") };
    assert_eq!(event["schema"], "memwatch.oom_failure/1", "{event:#}");
    assert_eq!(
        (&event["data"]["pid"], &event["data"]["wanted_bytes"]),
        (&survivor.tgid().into(), &200_000_000_000_u64.into())
    );
    assert_eq!(event["data"]["is_survived"], true, "{event:#}");

    let mut victim = workload_of(&gpu, ANN);
    victim.run(&["uuid 0", "device 0", "alloc held 4M"]);
    assert_eq!(victim.ask("alloc huge 300000000000")["result"], 2);
    let tgid = victim.tgid();
    drop(victim);
    let [_, event] = &events(2)[..] else { panic!("two failures") };
    assert_eq!(event["data"]["pid"], tgid, "{event:#}");
    assert!(event["data"]["ended"].is_string() || event["data"]["ended"].is_object(), "{event:#}");
    drop(agent);
}
