//! Text output of allocation churn.

use memwatch_core::features::churn::view::{ChurnView, FlowView};

use crate::render::Tone;
use crate::render::format::{bytes, count, known, percent, plural, rate};
use crate::render::places;
use crate::render::sentences::Sentence;
use crate::render::text::TextPage;
use crate::render::text::grid::{Align, TextGrid};

/// Maximum length of a bar, in characters.
const BAR: u128 = 30;

/// Writes the counts, and at most `top` lines of Python.
pub(crate) fn section(page: &mut TextPage, churn: &ChurnView, top: usize) {
    if churn.kinds.is_empty() {
        page.line(&Sentence::new(Tone::Plain, "Nothing was allocated and nothing freed."));
        return;
    }
    flows(page, churn);
    for flow in &churn.kinds {
        classes(page, flow);
    }
    temporaries(page, churn, top);
}

fn flows(page: &mut TextPage, churn: &ChurnView) {
    let columns = [
        ("KIND", Align::Left),
        ("ALLOCATED", Align::Right),
        ("COUNT", Align::Right),
        ("FREED", Align::Right),
        ("PER SECOND", Align::Right),
        ("MEAN LIFE", Align::Right),
        ("LONGEST", Align::Right),
        ("TEMPORARY", Align::Right),
    ];
    let mut grid = TextGrid::new(&columns);
    for flow in &churn.kinds {
        grid.push(vec![
            flow.kind.replace('_', " "),
            bytes(flow.total_bytes),
            count(flow.allocations),
            count(flow.frees),
            rate(flow.allocations_per_second.unwrap_or(f64::NAN)),
            known(flow.mean_lifetime_ns, short),
            known(flow.longest_lifetime_ns, short),
            if flow.frees == 0 { "-".to_owned() } else { percent(flow.temporary, flow.allocations) },
        ]);
    }
    page.grid(&grid);
    let within = plural(churn.temporary_within, "more of its kind", "more of their kind");
    page.line(&Sentence::new(Tone::Faint, format!("temporary: freed before {within} were allocated in the process")));
}

/// Writes sizes and lifetimes, with a row for each non-empty class.
fn classes(page: &mut TextPage, flow: &FlowView) {
    let kind = flow.kind.replace('_', " ");
    let sizes = flow.sizes.iter().map(|of| (range(of.from_bytes, of.below_bytes, bytes), of.allocations, of.bytes));
    let lifetimes = flow.lifetimes.iter().map(|of| (range(of.from_ns, of.below_ns, short), of.frees, of.bytes));
    for (title, classes) in [("SIZE", sizes.collect::<Vec<_>>()), ("LIFE", lifetimes.collect())] {
        let most = classes.iter().map(|(_, number, _)| *number).max().unwrap_or(0);
        if most == 0 {
            continue;
        }
        let title = format!("{} {title}", kind.to_uppercase());
        let columns =
            [(title.as_str(), Align::Right), ("COUNT", Align::Right), ("BYTES", Align::Right), ("", Align::Left)];
        let mut grid = TextGrid::new(&columns);
        for (range, number, of_bytes) in classes.into_iter().filter(|(_, number, _)| *number > 0) {
            grid.push(vec![range, count(number), bytes(of_bytes), bar(number, most, page.options.ascii)]);
        }
        page.grid(&grid);
    }
}

/// Formats `below 1.0 ms`, `64 B to 128 B`, `1 min 0 s and more`.
fn range(from: u64, below: Option<u64>, text: fn(u64) -> String) -> String {
    match below {
        Some(below) if from == 0 => format!("below {}", text(below)),
        Some(below) => format!("{} to {}", text(from), text(below)),
        None => format!("{} and more", text(from)),
    }
}

/// Draws a bar proportional to `count / most`, at least one character long.
fn bar(count: u64, most: u64, ascii: bool) -> String {
    let length = u128::from(count) * BAR / u128::from(most.max(1));
    let letter = if ascii { "#" } else { "█" };
    letter.repeat(usize::try_from(length).unwrap_or(1).max(1))
}

fn temporaries(page: &mut TextPage, churn: &ChurnView, top: usize) {
    if churn.temporaries.is_empty() {
        return;
    }
    let columns = [
        ("TEMPORARY", Align::Right),
        ("COUNT", Align::Right),
        ("OF ITS", Align::Right),
        ("MEAN LIFE", Align::Right),
        ("WHERE", Align::Left),
    ];
    let mut grid = TextGrid::new(&columns);
    for one in churn.temporaries.iter().take(top) {
        grid.push(vec![
            bytes(one.temporary_bytes),
            count(one.temporary),
            percent(one.temporary, one.allocations),
            short(one.mean_lifetime_ns),
            format!("PID {}: {}", one.tgid.0, places::site(&one.site)),
        ]);
    }
    page.grid(&grid);
    let more = churn.temporaries.len().saturating_sub(top);
    if more > 0 {
        page.line(&Sentence::new(Tone::Faint, format!("and {} more", count(more as u64))));
    }
}

/// Formats `120 us`, `3.4 ms`, `2.0 s`, `1 min 3 s`.
fn short(time_ns: u64) -> String {
    match time_ns {
        0..1_000_000 => format!("{} us", time_ns / 1_000),
        1_000_000..1_000_000_000 => format!("{}.{} ms", time_ns / 1_000_000, time_ns / 100_000 % 10),
        _ => crate::render::format::duration(time_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::text::TableOptions;
    use memwatch_core::features::churn::view::SizeView;

    #[test]
    fn short_times_have_a_unit_that_fits() {
        assert_eq!([short(999), short(1_250_000), short(2_000_000_000)], ["0 us", "1.2 ms", "2.0 s"]);
    }

    #[test]
    fn churn_text_lists_kinds_with_size_classes_or_that_there_are_none() {
        let class = SizeView { from_bytes: 64, below_bytes: Some(128), allocations: 3, bytes: 300 };
        let flow = FlowView {
            kind: "tensor".into(),
            allocations: 3,
            frees: 1,
            temporary: 1,
            sizes: vec![class],
            ..FlowView::default()
        };
        let churn =
            ChurnView { watched_ns: 2_000_000_000, temporary_within: 10, kinds: vec![flow], ..ChurnView::default() };
        let reported = |churn| {
            let mut page = TextPage { text: String::new(), options: TableOptions::default() };
            section(&mut page, churn, 5);
            page.text
        };
        let text = reported(&churn);
        assert!(text.contains("64 B to 128 B      3  300 B") && text.contains("33.3 %"), "{text}");
        assert!(reported(&ChurnView::default()).contains("Nothing was allocated and nothing freed."));
    }
}
