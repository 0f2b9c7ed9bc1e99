//! JSON output of allocation churn.

use memwatch_core::features::churn::view::{ChurnView, TemporaryView};
use serde::Serialize;

/// Returns the data of a report.
pub(crate) fn data(churn: &ChurnView) -> ChurnData<'_> {
    ChurnData { churn, temporaries: churn.temporaries.iter().map(temporary).collect() }
}

#[derive(Serialize)]
pub(crate) struct ChurnData<'a> {
    #[serde(flatten)]
    churn: &'a ChurnView,
    temporaries: Vec<Temporary<'a>>,
}

/// Temporary allocations of a line, without its live memory.
#[derive(Serialize)]
struct Temporary<'a> {
    #[serde(flatten)]
    view: &'a TemporaryView,
    kind: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
}

fn temporary(view: &TemporaryView) -> Temporary<'_> {
    let site = &view.site;
    Temporary {
        view,
        kind: &site.kind,
        file: site.file.as_deref(),
        line: site.line,
        function: site.function.as_deref(),
    }
}
