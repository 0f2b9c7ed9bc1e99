//! Links between documents: the page and the heading that a link names exist.

use super::Violation;
use super::source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Directory of the book, and the list of its pages, relative to the root.
const BOOK: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Returns links to documents or headings that do not exist, and pages of the book that its table of contents lacks.
pub(super) fn dead(sources: &[Source]) -> Vec<(usize, Violation)> {
    let pages: BTreeMap<&str, BTreeSet<String>> =
        documents(sources).map(|(_, page)| (&*page.path, anchors(page))).collect();
    let dead = documents(sources).flat_map(|(index, page)| {
        let pages = &pages;
        links(page).filter_map(move |(line, link)| Some((index, (line, problem(pages, page, &link)?))))
    });
    dead.chain(unlisted(sources)).collect()
}

/// Returns the Markdown files with their indices.
fn documents(sources: &[Source]) -> impl Iterator<Item = (usize, &Source)> {
    sources.iter().enumerate().filter(|(_, source)| source.has_extension("md"))
}

/// Returns pages of the book that its table of contents does not link.
fn unlisted(sources: &[Source]) -> Vec<(usize, Violation)> {
    let Some(summary) = sources.iter().find(|source| source.path == SUMMARY) else { return Vec::new() };
    let listed: BTreeSet<String> = links(summary).filter_map(|(_, link)| target(summary, &link)).collect();
    // Reports of single machines are linked by the page on them.
    let is_page =
        |source: &Source| source.is_below(BOOK) && source.path != SUMMARY && !source.path.contains("gpu-runs/2");
    documents(sources)
        .filter(|(_, page)| is_page(page) && !listed.contains(&page.path))
        .map(|(index, _)| (index, (1, format!("{SUMMARY} does not list the page"))))
        .collect()
}

/// Describes what is wrong with a link; `None` for other sites, and for files that are no documents.
fn problem(pages: &BTreeMap<&str, BTreeSet<String>>, page: &Source, link: &str) -> Option<String> {
    let path = target(page, link)?;
    let anchors = pages.get(&*path);
    match (anchors, link.split_once('#')) {
        (None, _) if is_document(&path) => Some(format!("a link to {path}, which does not exist")),
        (Some(anchors), Some((_, anchor))) if !anchors.contains(anchor) => {
            Some(format!("a link to '{anchor}', which is no heading of {path}"))
        }
        _ => None,
    }
}

fn is_document(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "md")
}

/// Returns the path that a link leads to, relative to the root.
fn target(page: &Source, link: &str) -> Option<String> {
    let path = link.split('#').next()?;
    if path.contains("://") {
        return None;
    }
    if path.is_empty() {
        return Some(page.path.clone());
    }
    let mut parts: Vec<&str> = page.path.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns the targets of a page's links with their lines.
fn links(page: &Source) -> impl Iterator<Item = (usize, String)> {
    prose(&page.text).flat_map(|(line, text)| {
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        targets.map(|target| (line, target.to_owned())).collect::<Vec<_>>()
    })
}

/// Returns the anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &Source) -> BTreeSet<String> {
    prose(&page.text)
        .filter_map(|(_, line)| line.strip_prefix('#'))
        .map(|heading| anchor(heading.trim_start_matches('#')))
        .collect()
}

fn anchor(heading: &str) -> String {
    let is_kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    heading.trim().chars().filter(is_kept).collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns the lines outside code blocks, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pages: &[(&str, &str)]) -> Vec<(usize, usize)> {
        let sources: Vec<_> = pages.iter().map(|(path, text)| Source::new(path, text)).collect();
        dead(&sources).into_iter().map(|(index, (line, _))| (index, line)).collect()
    }

    #[test]
    fn links_to_missing_pages_and_headings_are_found() {
        let page = "# A\n[b](b/c.md#two-words), [own](#a) and [out](https://x/y.md)\n[no](d.md)\n[no](b/c.md#three)\n";
        let other = "## `Two` words\n[up](../a.md)\n```\n[code](x.md)\n```\n[file](../Makefile)\n";
        assert_eq!(found(&[("a.md", page), ("b/c.md", other)]), [(0, 3), (0, 4)]);
    }

    #[test]
    fn pages_that_the_table_of_contents_lacks_are_found() {
        let pages =
            [("docs/SUMMARY.md", "- [a](a.md)\n"), ("docs/a.md", ""), ("docs/b.md", ""), ("docs/gpu-runs/2026.md", "")];
        assert_eq!(found(&pages), [(2, 1)]);
    }
}
