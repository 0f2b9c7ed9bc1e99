use super::fixture::{SERVER, TRAINER, forecast, left_behind, out_of_memory};
use super::*;

const ALL: Viewer = Viewer::Everything;

fn tgids(event: &MachineEvent) -> Vec<u32> {
    event.subjects().iter().map(|process| process.tgid.0).collect()
}

#[test]
fn failure_is_shown_to_its_user_without_processes_of_others() {
    let event = out_of_memory();
    assert_eq!(event.owner(), Some(TRAINER));
    assert!(event.observed_by(Viewer::User(SERVER)).is_none());
    let shown = |viewer| {
        let Some(MachineEvent::OutOfMemory(oom)) = event.observed_by(viewer) else { panic!("it is a failure") };
        (oom.snapshot.processes.len(), oom.snapshot.processes.iter().all(|process| process.uid == Some(TRAINER)))
    };
    assert_eq!((shown(ALL), shown(Viewer::User(TRAINER))), ((3, false), (2, true)));
}

#[test]
fn forecast_is_shown_to_users_whose_processes_grow() {
    let event = forecast();
    let all = tgids(&event);
    assert_eq!((event.owner(), all.len()), (Some(SERVER), 2));
    for (uid, own) in [(SERVER, all[0]), (TRAINER, all[1])] {
        let seen = event.observed_by(Viewer::User(uid)).expect("a process of the user grows");
        assert_eq!(tgids(&seen), [own]);
        let MachineEvent::Forecast(seen) = seen else { panic!("it is a forecast") };
        assert_eq!(seen.change.processes.iter().map(|process| process.tgid.0).collect::<Vec<_>>(), [own]);
    }
    assert!(event.observed_by(Viewer::User(5)).is_none());
}

#[test]
fn forecast_without_growth_is_about_the_processes_that_grew_before() {
    let MachineEvent::Forecast(event) = forecast() else { panic!("it is a forecast") };
    let snapshot = crate::render::fixture::owned_node();
    let mut watch = EventWatch::default();
    let all = |event: ForecastEvent| event.subjects.iter().map(|process| process.tgid).collect::<Vec<_>>();
    let grown = all(watch.forecast(event.change.clone(), &snapshot));
    assert_eq!(grown.len(), 2);
    let mut over = event.change;
    over.processes.iter_mut().for_each(|process| process.outlook.level = "none".into());
    let event = watch.forecast(over.clone(), &snapshot);
    assert_eq!(event.change.processes, [], "none grows");
    assert_eq!(all(event), grown);
    assert_eq!(all(watch.forecast(over, &snapshot)), [], "that is known already");
}

#[test]
fn left_behind_memory_is_shown_to_the_user_of_the_exited_process() {
    let event = left_behind(false);
    assert!(event.observed_by(Viewer::User(SERVER)).is_none());
    let Some(MachineEvent::LeftBehind(own)) = event.observed_by(Viewer::User(TRAINER)) else { panic!("it is shown") };
    assert_eq!(own.forked, [Tgid(453)]);
}
