use super::*;
use crate::render::fixture::owned_node;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn shown(choice: &Choice, tgids: &[u32]) -> Vec<u32> {
    let mut snapshot = owned_node();
    let tgids: Vec<_> = tgids.iter().copied().map(Tgid).collect();
    Selection::new(choice, &tgids).apply(&mut snapshot);
    snapshot.processes.iter().map(|process| process.tgid.0).collect()
}

#[test]
fn selection_without_criteria_shows_all_processes() {
    assert_eq!(shown(&Choice::default(), &[]), [1234, 2002, 4321]);
}

#[test]
fn a_container_is_named_by_name_or_the_beginning_of_its_id() {
    for (word, found) in [
        ("train", &[1234][..]),
        ("/train", &[1234]),
        ("17db", &[1234]),
        ("17db96a24ae1e9dd", &[1234]),
        ("17d", &[]),
        ("trai", &[]),
        ("vllm", &[2002]),
    ] {
        assert_eq!(shown(&Choice { containers: words(&[word]), ..Choice::default() }, &[]), found, "{word}");
    }
}

#[test]
fn a_pod_is_named_with_or_without_its_namespace() {
    for (word, found) in
        [("ml/serve-0", &[2002][..]), ("serve-0", &[2002]), ("8712f785", &[2002]), ("dev/serve-0", &[]), ("serve", &[])]
    {
        assert_eq!(shown(&Choice { pods: words(&[word]), ..Choice::default() }, &[]), found, "{word}");
    }
}

#[test]
fn a_job_is_named_as_a_whole_or_by_step() {
    for (word, found) in [("42", &[4321][..]), ("42.0", &[4321]), ("42.1", &[]), ("4", &[])] {
        assert_eq!(shown(&Choice { slurm_jobs: words(&[word]), ..Choice::default() }, &[]), found, "{word}");
    }
}

#[test]
fn a_user_is_named_by_name_or_number() {
    assert_eq!(shown(&Choice { users: words(&["alice"]), ..Choice::default() }, &[]), [1234]);
    assert_eq!(shown(&Choice { users: words(&["1001"]), ..Choice::default() }, &[]), [2002]);
}

#[test]
fn selection_by_cgroup_includes_descendants_not_name_prefixes() {
    for (word, found) in [
        ("/docker", &[1234][..]),
        ("docker/", &[1234]),
        ("/sys/fs/cgroup/docker", &[1234]),
        ("/doc", &[]),
        ("/docker/17db96a24ae1e9dd", &[1234]),
        ("/", &[1234]),
    ] {
        assert_eq!(shown(&Choice { cgroups: words(&[word]), ..Choice::default() }, &[]), found, "{word}");
    }
}

#[test]
fn a_name_is_the_programs_the_scripts_or_a_parents() {
    let by_name = |word, no_children| shown(&Choice { names: words(&[word]), no_children, ..Choice::default() }, &[]);
    for word in ["train.py", "train*", "*.py", "t*n*y"] {
        assert_eq!(by_name(word, false), [1234], "{word}");
    }
    assert_eq!(by_name("launch.sh", false), [1234]);
    assert_eq!(by_name("launch.sh", true), [0; 0]);
    assert_eq!(by_name("python3", false), [1234, 2002, 4321]);
    assert_eq!(by_name("train", false), [0; 0]);
}

#[test]
fn children_of_a_process_come_with_it_unless_they_are_not_wanted() {
    assert_eq!(shown(&Choice::default(), &[50]), [1234]);
    assert_eq!(shown(&Choice { no_children: true, ..Choice::default() }, &[50]), [0; 0]);
    assert_eq!(shown(&Choice { no_children: true, ..Choice::default() }, &[1234]), [1234]);
}

#[test]
fn words_of_a_kind_are_alternatives_and_kinds_add_up() {
    let choice = Choice { users: words(&["alice", "bob"]), containers: words(&["train"]), ..Choice::default() };
    assert_eq!(shown(&choice, &[]), [1234]);
    assert_eq!(Selection::new(&choice, &[Tgid(7)]).describe(), "container train, user alice or bob, PID 7");
}
