//! Classifies the path that leads to a tensor by the kind of its retainer.

/// Kind of retainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// Frames of a traceback or an exception.
    Exception,
    /// A notebook's or an interactive shell's own variables.
    Notebook,
    /// Arguments or results in a cache of calls.
    Cache,
    /// A queue, by the name of its class or variable.
    Queue,
    /// An element of a container.
    Container,
    /// A variable or an attribute.
    Plain,
}

const EXCEPTION: [&str; 6] = ["__traceback__", "tb_frame", "tb_next", "last_traceback", "last_exc", "exc_info"];
const NOTEBOOK: [&str; 6] = ["Out[", "_oh[", "IPython", "get_ipython", "InteractiveTB", "user_ns"];
const CACHE: [&str; 4] = ["lru_cache", "_lru_cache_wrapper", "cache_info", "functools"];
const QUEUE: [&str; 3] = [".queue[", "queue[", "_queue["];

/// Returns the kind of retainer of a path, with indices or with `*` for them.
pub fn kind(path: &str) -> PathKind {
    let has = |words: &[&str]| words.iter().any(|word| path.contains(word));
    if has(&EXCEPTION) {
        PathKind::Exception
    } else if has(&NOTEBOOK) {
        PathKind::Notebook
    } else if has(&CACHE) || path.contains("cache(") {
        PathKind::Cache
    } else if has(&QUEUE) {
        PathKind::Queue
    } else if path.contains('[') {
        PathKind::Container
    } else {
        PathKind::Plain
    }
}

/// Returns the container: the part of a path before its first index.
pub fn container(path: &str) -> &str {
    path.split_once('[').map_or(path, |(container, _)| container)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retainer_path_kind_and_container_come_from_the_path() {
        for (path, expected) in [
            ("a.py:main: error.__traceback__.tb_frame.f_locals['x']", PathKind::Exception),
            ("sys.last_traceback", PathKind::Exception),
            ("Out[5]", PathKind::Notebook),
            ("get_ipython.__self__.InteractiveTB.tb", PathKind::Notebook),
            ("model.encode: lru_cache[*]", PathKind::Cache),
            ("loader.work_queue[*]", PathKind::Queue),
            ("q1.queue[*]", PathKind::Queue),
            ("a.py:main: kept[*]", PathKind::Container),
            ("board['error'].acc", PathKind::Container),
            ("model.cached", PathKind::Plain),
            ("traceback_of_costs", PathKind::Plain),
        ] {
            assert_eq!(kind(path), expected, "{path}");
        }
        assert_eq!(container("a.py:main: kept[3]['b']"), "a.py:main: kept");
        assert_eq!(container("total"), "total");
    }
}
