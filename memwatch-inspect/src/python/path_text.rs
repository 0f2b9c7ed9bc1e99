//! Writes paths as text, in Python syntax as far as possible.

use std::fmt::{self, Write as _};

use super::classes::{PythonClass, Role, member_name};
use super::edges::EdgeLabel;
use super::frames::{place_of, variable_name};
use super::heap::Heap;
use super::notebook::SHELL;
use super::numbers::number;
use crate::memory::MemoryAccess;

/// Maximum number of characters of a key.
const MOST_LETTERS: usize = 64;
/// Maximum number of characters of a path.
const MOST_PATH_LETTERS: usize = 400;
/// Attributes in which a PyTorch module keeps its parts. They are left out of paths, since the
/// parts are accessible as attributes.
const PARTS: [&str; 3] = ["_modules", "_parameters", "_buffers"];

/// Describes the owner of a traceback by the global variable that leads to it: IPython keeps its
/// last error in its shell, the interpreter in `sys`.
fn last_error(heap: &Heap<'_, impl MemoryAccess>, first: Option<&EdgeLabel>) -> Option<&'static str> {
    let Some(EdgeLabel::Global { module, name }) = first else { return None };
    let (module, name) = (heap.objects.text(*module)?, heap.objects.text(*name)?);
    match (module.as_str(), name.as_str()) {
        ("__main__", SHELL) => Some("IPython's last error"),
        ("sys", name) if name.starts_with("last_") => Some("the interpreter's last error"),
        _ => None,
    }
}

/// Writes a path. `begin` is the class of the object at which it begins, if no name leads to that.
/// `traceback` is the index of the first reference to a traceback.
pub(super) fn text(
    heap: &Heap<'_, impl MemoryAccess>,
    begin: Option<String>,
    labels: &[EdgeLabel],
    traceback: Option<usize>,
) -> String {
    let mut text = begin.map(|class| format!("<{class}>")).unwrap_or_default();
    let mut is_part = false;
    let error = traceback.and_then(|_| last_error(heap, labels.first()));
    let mut is_in_error = false;
    let mut repeated = 0;
    for (index, label) in labels.iter().enumerate() {
        if repeated > 0 {
            repeated -= 1;
            continue;
        }
        let run = run_length(&labels[index..]);
        if run > 2 {
            put(&mut text, format_args!("({} ×{run})", self::text(heap, None, &[*label], None)));
            repeated = run - 1;
            continue;
        }
        let word = |address: u64| heap.objects.text(address);
        let was_part = std::mem::take(&mut is_part);
        is_in_error = error.is_some() && (traceback == Some(index) || is_in_error);
        match *label {
            EdgeLabel::Item(index) => put(&mut text, format_args!("[{index}]")),
            EdgeLabel::Key(key) if was_part => put(&mut text, format_args!(".{}", word(key).as_deref().unwrap_or("?"))),
            EdgeLabel::Key(key) => put(&mut text, format_args!("[{}]", key_text(heap, key))),
            EdgeLabel::KeyItself => text += ".keys()",
            EdgeLabel::Member => text += "{*}",
            EdgeLabel::Attribute(name) => match word(name) {
                Some(name) if PARTS.contains(&name.as_str()) => is_part = true,
                name => put(&mut text, format_args!(".{}", name.as_deref().unwrap_or("?"))),
            },
            EdgeLabel::Body { class, offset } => put(&mut text, format_args!(".{}", body_text(heap, class, offset))),
            // A shared variable is written like any other.
            EdgeLabel::Cell if index > 0 && matches!(labels[index - 1], EdgeLabel::Variable { .. }) => {}
            EdgeLabel::Cell => text += ".cell_contents",
            EdgeLabel::Graph => text += ".grad_fn",
            EdgeLabel::Loop { code } => text = format!("{}: loop", place_text(heap, code)),
            EdgeLabel::Variable { code, index } => {
                if std::mem::take(&mut is_in_error) {
                    error.unwrap_or_default().clone_into(&mut text);
                }
                let name = variable_name(heap, code, index).unwrap_or_else(|| "?".to_owned());
                // For the frame of a generator or a traceback, its retainer comes first.
                let retainer = if text.is_empty() { String::new() } else { format!("{text} → ") };
                text = format!("{retainer}{}: {name}", place_text(heap, code));
            }
            EdgeLabel::Global { module, name } => text = global_text(heap, module, name),
            EdgeLabel::Handled => text = String::from("exception being handled"),
            EdgeLabel::Thread => text = String::from("thread state"),
        }
        if text.len() > 4 * MOST_PATH_LETTERS {
            break;
        }
    }
    shortened(&text, MOST_PATH_LETTERS)
}

/// Returns how often the first label repeats, as in a linked list.
fn run_length(labels: &[EdgeLabel]) -> usize {
    match labels.first() {
        Some(first @ (EdgeLabel::Attribute(_) | EdgeLabel::Body { .. } | EdgeLabel::Item(_))) => {
            labels.iter().take_while(|label| *label == first).count()
        }
        _ => 1,
    }
}

fn place_text(heap: &Heap<'_, impl MemoryAccess>, code: u64) -> String {
    place_of(heap, code).unwrap_or_else(|| "?".to_owned())
}

fn global_text(heap: &Heap<'_, impl MemoryAccess>, module: u64, name: u64) -> String {
    let module = heap.objects.text(module).filter(|module| module != "__main__");
    let name = heap.objects.text(name);
    module.map(|module| module + ".").unwrap_or_default() + name.as_deref().unwrap_or("?")
}

fn put(text: &mut String, part: fmt::Arguments<'_>) {
    text.write_fmt(part).expect("a string takes any text");
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Writes a key as Python does: strings and integers. For other objects, writes the class.
fn key_text(heap: &Heap<'_, impl MemoryAccess>, key: u64) -> String {
    let class = heap.class_of(key);
    let name = class.as_deref().map_or("?", |class| class.short_name());
    let written = match name {
        "str" => heap.objects.text(key).map(|text| format!("'{}'", shortened(&text, MOST_LETTERS))),
        "int" => number(heap, key).map(|number| number.to_string()),
        _ => None,
    };
    written.unwrap_or_else(|| format!("<{name}>"))
}

/// Names the word at an offset in instances of a class: the member there, a known field of
/// functions and exceptions, or else the class.
fn body_text(heap: &Heap<'_, impl MemoryAccess>, class: u64, offset: u32) -> String {
    /// `Py_TPFLAGS_BASE_EXC_SUBCLASS`.
    const IS_EXCEPTION: u64 = 1 << 30;
    let memory = heap.objects.memory;
    let Some(class) = heap.classes.at(memory, class) else { return "?".to_owned() };
    let member = |offset: u32| member_name(memory, &class, offset);
    let known = || {
        // Both are properties, and their fields precede the member __closure__
        // (Include/cpython/funcobject.h).
        let behind = |bytes: u32| member(offset + bytes).is_some_and(|name| name == "__closure__");
        match class.name.as_str() {
            "function" if behind(16) => return Some("__defaults__"),
            "function" if behind(8) => return Some("__kwdefaults__"),
            "traceback" if offset == 16 => return Some("tb_next"),
            _ if class.flags & IS_EXCEPTION == 0 => return None,
            _ => {}
        }
        // PyException_HEAD, with __notes__ from 3.11 on (Include/cpython/pyerrors.h).
        let notes = if heap.objects.layout.code.adaptive == 0 { 0 } else { 8 };
        let names =
            [(24, "args"), (32 + notes, "__traceback__"), (40 + notes, "__context__"), (48 + notes, "__cause__")];
        names.into_iter().find(|(at, _)| *at == offset).map(|(_, name)| name)
    };
    let known = || known().or_else(|| hooks(&class, offset)).map(str::to_owned);
    member(offset).or_else(known).unwrap_or_else(|| format!("<{}>", class.short_name()))
}

/// Names the hooks of a tensor: the last two words of PyTorch's own class (`THPVariable` in
/// torch/csrc/autograd/python_variable.h, 2.1 to 2.15).
fn hooks(class: &PythonClass, offset: u32) -> Option<&'static str> {
    let base = class.chain().filter(|class| class.role == Role::Tensor).last()?;
    match base.basic_bytes.checked_sub(offset)? {
        16 => Some("_backward_hooks"),
        8 => Some("_post_accumulate_grad_hooks"),
        _ => None,
    }
}
