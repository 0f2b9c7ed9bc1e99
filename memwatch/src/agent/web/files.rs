//! Static files of the page, embedded in the program.

/// Files by name, with content type and contents.
const FILES: [(&str, &str, &[u8]); 10] = [
    ("dom.js", JS, include_bytes!("../../../web/dom.js")),
    ("page.css", CSS, include_bytes!("../../../web/page.css")),
    ("page.js", JS, include_bytes!("../../../web/page.js")),
    ("plots.js", JS, include_bytes!("../../../web/plots.js")),
    ("process.js", JS, include_bytes!("../../../web/process.js")),
    ("words.js", JS, include_bytes!("../../../web/words.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("../../../web/icon.svg")),
    // Installed from npm by `cargo xtask build`. The files are empty if npm was not run, and the
    // page reports it.
    ("uplot.js", JS, include_bytes!(env!("MEMWATCH_UPLOT_JS"))),
    ("uplot.css", CSS, include_bytes!(env!("MEMWATCH_UPLOT_CSS"))),
    ("uplot-license.txt", "text/plain; charset=utf-8", include_bytes!(env!("MEMWATCH_UPLOT_LICENSE"))),
];

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// Returns the content type and the contents of a file.
pub(super) fn find(name: &str) -> Option<(&'static str, &'static [u8])> {
    FILES.iter().find(|(own, ..)| *own == name).map(|(_, content_type, bytes)| (*content_type, *bytes))
}
