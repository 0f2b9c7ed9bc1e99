use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(60);

fn queues(busy: usize, threads: usize) -> OwnerQueues {
    let (patience, idle) = (Duration::from_millis(20), Duration::from_millis(50));
    OwnerQueues::with("test", Limits { busy, threads, patience, idle })
}

/// Orders work that hangs until the returned sender is dropped, and that reports this number when
/// it starts.
fn hang(queues: &OwnerQueues, owner: FileOwner, begun: &Sender<u32>, number: u32) -> Sender<()> {
    let (release, released) = channel::<()>();
    let begun = begun.clone();
    queues
        .order(owner, move || {
            let _ = begun.send(number);
            let _ = released.recv();
        })
        .expect("there is room");
    release
}

fn note(queues: &OwnerQueues, owner: FileOwner, begun: &Sender<u32>, number: u32) {
    let begun = begun.clone();
    queues.order(owner, move || begun.send(number).unwrap_or_default()).expect("there is room");
}

fn next(begun: &Receiver<u32>) -> u32 {
    begun.recv_timeout(LONG).expect("it starts")
}

#[test]
fn one_owners_work_runs_in_its_order() {
    let (queues, (sender, begun)) = (queues(4, 8), channel());
    (0..100).for_each(|number| note(&queues, FileOwner::User(1), &sender, number));
    assert!((0..100).all(|number| next(&begun) == number));
}

#[test]
fn owner_queue_that_hangs_does_not_block_other_owners() {
    let (queues, (sender, begun)) = (queues(2, 16), channel());
    let hanging: Vec<_> = (0..6).map(|owner| hang(&queues, FileOwner::User(owner), &sender, owner)).collect();
    let mut stuck: Vec<u32> = (0..6).map(|_| next(&begun)).collect();
    stuck.sort_unstable();
    assert_eq!(stuck, [0, 1, 2, 3, 4, 5], "each that is stuck makes room for the next");
    note(&queues, FileOwner::User(9), &sender, 9);
    note(&queues, FileOwner::Root(1), &sender, 10);
    let mut others = [next(&begun), next(&begun)];
    others.sort_unstable();
    assert_eq!(others, [9, 10]);
    drop(hanging);
}

#[test]
fn an_owner_has_two_threads_at_most_and_a_bounded_queue() {
    let (queues, (sender, begun)) = (queues(4, 16), channel());
    let owner = FileOwner::User(7);
    let mut hanging = vec![hang(&queues, owner, &sender, 1), hang(&queues, owner, &sender, 2)];
    assert_eq!([next(&begun), next(&begun)], [1, 2]);
    while queues.stuck_owners() == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    note(&queues, owner, &sender, 3);
    note(&queues, FileOwner::User(8), &sender, 4);
    assert_eq!(next(&begun), 4, "the third work of the stuck owner waits");
    for _ in 1..MOST_WAITING {
        assert!(queues.order(owner, || ()).is_ok());
    }
    assert_eq!(queues.order(owner, || ()), Err(QueueFull));
    assert!(begun.try_recv().is_err());
    hanging.pop();
    assert_eq!(next(&begun), 3, "once one thread is back, the queue goes on");
    drop(hanging);
}

#[test]
fn roots_work_has_places_of_its_own() {
    let (queues, (sender, begun)) = (queues(4, 3), channel());
    let hanging: Vec<_> = (0..3).map(|owner| hang(&queues, FileOwner::User(owner), &sender, owner)).collect();
    (0..3).for_each(|_| assert!(next(&begun) < 3));
    note(&queues, FileOwner::User(5), &sender, 5);
    note(&queues, FileOwner::Root(1), &sender, 6);
    assert_eq!(next(&begun), 6, "users have no thread left");
    drop(hanging);
    assert_eq!(next(&begun), 5);
}

#[test]
fn threads_end_when_there_is_nothing_to_do_and_with_the_queues() {
    let (queues, (sender, begun)) = (queues(4, 8), channel());
    note(&queues, FileOwner::User(1), &sender, 1);
    assert_eq!(next(&begun), 1);
    let shared = Arc::clone(&queues.shared);
    let end = Instant::now() + LONG;
    while Arc::strong_count(&shared) > 2 && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(Arc::strong_count(&shared), 2, "no thread is left");
    note(&queues, FileOwner::User(1), &sender, 2);
    assert_eq!(next(&begun), 2, "one starts again");
    let hanging = hang(&queues, FileOwner::User(1), &sender, 3);
    assert_eq!(next(&begun), 3);
    note(&queues, FileOwner::User(1), &sender, 4);
    drop(queues);
    drop(hanging);
    drop(sender);
    assert!(begun.recv_timeout(LONG).is_err(), "what waited is dropped, and nobody waits for what hung");
}

#[test]
fn work_that_panics_ends_no_queue() {
    let (queues, (sender, begun)) = (queues(1, 2), channel());
    queues.order(FileOwner::User(1), || panic!("as it is meant to")).expect("there is room");
    note(&queues, FileOwner::User(1), &sender, 1);
    assert_eq!(next(&begun), 1);
}

#[test]
fn owner_queue_withdraws_work_without_a_thread_and_runs_accepted_work() {
    let (queues, (sender, begun)) = (queues(4, 8), channel());
    let accept = |owner, number: u32| {
        let sender = sender.clone();
        queues.shared.lock().add(FileOwner::User(owner), Box::new(move || sender.send(number).unwrap_or_default()));
    };
    for (owner, number) in [(1, 10), (1, 11), (1, 12), (2, 20)] {
        accept(owner, number);
    }
    for owner in [1, 2, 3] {
        queues.shared.lock().take_back(FileOwner::User(owner));
    }
    assert_eq!(queues.shared.lock().turns, [FileOwner::User(1)]);
    note(&queues, FileOwner::User(4), &sender, 40);
    let mut run = [next(&begun), next(&begun), next(&begun)];
    run.sort_unstable();
    assert_eq!(run, [10, 11, 40]);
    drop((queues, sender));
    assert!(begun.recv_timeout(LONG).is_err(), "what was taken back does not run");
}
