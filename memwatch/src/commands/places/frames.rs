//! Details below the lines of `memwatch where`: the library lines that each of them called, and
//! whole stacks.

use memwatch_core::snapshot::{DeviceAttributionView, NativeView, SiteView, StackView, TensorsView};
use memwatch_core::words::Name;

use super::text::{LISTED, RowRank, ranked};
use crate::render::Tone;
use crate::render::format::{bytes, count, plural, printable};
use crate::render::places::{self, FrameDetail};
use crate::render::sentences::Sentence;
use crate::render::text::TextPage;

impl TextPage {
    /// Writes the requested details.
    pub(super) fn frames(&mut self, device: &DeviceAttributionView, wanted: FrameDetail, rank: RowRank) {
        if wanted == FrameDetail::Lines {
            return;
        }
        if wanted == FrameDetail::Python {
            for site in ranked(&device.sites, rank) {
                self.library_lines(&site, rank);
            }
        }
        if device.stacks.is_empty() {
            let why = if rank.at_peak {
                "no stacks: the program has ended, and stacks are shown of blocks that are live; --until 10s shows those of 10 s before the end"
            } else {
                "no stacks: no block that is live has one"
            };
            self.line(&Sentence::new(Tone::Plain, why));
        }
        match wanted {
            FrameDetail::Native => self.native_stacks(device),
            FrameDetail::Python | FrameDetail::Lines => self.python_stacks(device),
        }
    }

    /// Writes the lines of packages and of torch that one line of the program called.
    fn library_lines(&mut self, site: &SiteView, rank: RowRank) {
        if site.library_lines.is_empty() {
            return;
        }
        self.line(&Sentence::new(Tone::Heading, format!("{}:", places::site(site))));
        for line in &site.library_lines {
            let name = match &*line.kind {
                "rest" => "(all others)".to_owned(),
                _ => places::library_line(line).unwrap_or_else(|| "(the line itself)".to_owned()),
            };
            let held = if rank.at_peak { line.at_peak_bytes } else { line.live_bytes };
            let (held, total) = (bytes(held), bytes(line.total_bytes));
            let when = if rank.at_peak { "at the peak" } else { "live" };
            self.line(&Sentence::new(Tone::Plain, format!("  {held:>10} {when}, {total:>10} in all  {name}")));
        }
    }

    fn heading_of(&mut self, stack: &StackView) {
        let allocations = plural(stack.sum.allocations, "allocation", "allocations");
        let text = format!("{} live, {} in {allocations}:", bytes(stack.sum.live_bytes), bytes(stack.sum.total_bytes));
        self.line(&Sentence::new(Tone::Heading, text));
    }

    /// Writes the stacks with most memory, with all Python frames.
    fn python_stacks(&mut self, device: &DeviceAttributionView) {
        for stack in device.stacks.iter().filter(|stack| !stack.frames.is_empty()).take(LISTED) {
            self.heading_of(stack);
            for frame in &stack.frames {
                let file = printable(frame.file.as_deref().unwrap_or("?"));
                let line = frame.line.map_or_else(String::new, |line| format!(":{line}"));
                let function = printable(frame.function.as_deref().unwrap_or("?"));
                self.line(&Sentence::new(Tone::Plain, format!("  {file}{line} {function}")));
            }
            if stack.truncated {
                self.line(&Sentence::new(Tone::Warning, "  (outer frames are missing)"));
            }
        }
    }

    /// Writes the native stacks with most memory. The interpreter's own frames are replaced by the
    /// Python frames that it runs.
    fn native_stacks(&mut self, device: &DeviceAttributionView) {
        if !device.stacks.is_empty() && device.stacks.iter().all(|stack| stack.native.is_none()) {
            self.line(&Sentence::new(Tone::Plain, "no native frames: the stacks of what is live have none"));
        }
        for stack in device.stacks.iter().take(LISTED) {
            let Some(native) = &stack.native else { continue };
            self.heading_of(stack);
            for (number, frame) in native.frames.iter().enumerate() {
                if native.cut == Some(number) {
                    self.cut(native);
                }
                if let Some(text) = places::frame(frame) {
                    let tone = if frame.kind == "python" { Tone::Plain } else { Tone::Faint };
                    self.line(&Sentence::new(tone, format!("  {text}")));
                }
            }
            if native.cut.is_some_and(|cut| cut >= native.frames.len()) {
                self.cut(native);
            }
        }
    }

    fn cut(&mut self, native: &NativeView) {
        let why = match (native.mismatched, &*native.end) {
            (true, _) => "the interpreter's frames do not match those of Python",
            (false, "complete") => "there are more frames of Python",
            (false, end) => places::native_end(end),
        };
        self.line(&Sentence::new(Tone::Warning, format!("  (native frames are missing from here on: {why})")));
    }

    pub(super) fn missing_frames(&mut self, tensors: &TensorsView) {
        let ended = |(end, times): (&Name, &u64)| format!("{} ({})", count(*times), places::native_end(end));
        let short: Vec<_> = tensors.native_stacks.iter().filter(|(end, _)| **end != "complete").map(ended).collect();
        if !short.is_empty() {
            let text = format!("native stacks that are not whole: {}", short.join(", "));
            self.line(&Sentence::new(Tone::Warning, text));
        }
        if tensors.stacks_left_out > 0 {
            let text = format!(
                "{} stacks are not shown: the program has too many different ones",
                count(tensors.stacks_left_out)
            );
            self.line(&Sentence::new(Tone::Warning, text));
        }
    }
}
