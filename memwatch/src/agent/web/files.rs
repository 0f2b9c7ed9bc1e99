//! The page's files: they are part of this program.

/// Files by name: what they are, and their bytes.
const FILES: [(&str, &str, &[u8]); 10] = [
    ("dom.js", JS, include_bytes!("../../../web/dom.js")),
    ("page.css", CSS, include_bytes!("../../../web/page.css")),
    ("page.js", JS, include_bytes!("../../../web/page.js")),
    ("plots.js", JS, include_bytes!("../../../web/plots.js")),
    ("process.js", JS, include_bytes!("../../../web/process.js")),
    ("words.js", JS, include_bytes!("../../../web/words.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("../../../web/icon.svg")),
    // From npm, by `cargo xtask build`; empty where it was not installed, and the page says so.
    ("uplot.js", JS, include_bytes!(env!("MEMWATCH_UPLOT_JS"))),
    ("uplot.css", CSS, include_bytes!(env!("MEMWATCH_UPLOT_CSS"))),
    ("uplot-license.txt", "text/plain; charset=utf-8", include_bytes!(env!("MEMWATCH_UPLOT_LICENSE"))),
];

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// A file, and what it is.
pub(super) fn find(name: &str) -> Option<(&'static str, &'static [u8])> {
    FILES.iter().find(|(own, ..)| *own == name).map(|(_, content_type, bytes)| (*content_type, *bytes))
}
